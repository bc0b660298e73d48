"""G2: what a repeated call proves, it proves of itself only, never of the call before it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.steps.entries import NO_MORE_REPEATS, Asked, Claimed, Mismatch
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import Dedupes, Found, No, NotFound, Partial, Unknown
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from tests.ledger.attempts import Payment, Provider, last_of, request_for
from tests.ledger.scene import AT_ONCE, OTHER_RUN, RUN, WINDOW, Scene

DEDUPES = Dedupes(window=WINDOW)
LOST = httpx.ReadTimeout("the answer was lost")
POST = httpx.Request("POST", "http://provider/refunds")
KEY_REVOKED = httpx.HTTPStatusError("401", request=POST, response=httpx.Response(401, request=POST))
ALREADY = No("already refunded", "done")
PROVABLE = [httpx.ConnectError("no route"), KEY_REVOKED, Permanent("account closed")]
NAMES = ["down", "401", "permanent"]
OTHER_PARAMS = {"order": "1001", "amount": "140.00"}


def looked_up(answer: Any) -> Any:
    async def lookup(params: Payment, ctx: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return lookup


@pytest.mark.parametrize("provably", PROVABLE, ids=NAMES)
async def test_a_repeat_that_fails_provably_leaves_the_lost_first_call_to_a_human(
    scene: Scene, provably: Exception
) -> None:
    provider = Provider([LOST, provably])
    refund = provider.tool(dedupes=DEDUPES)

    result = await last_of(scene, refund)

    assert isinstance(result, Asked)
    row = scene.row(effects)
    assert (row["state"], row["generation"]) == ("in_doubt", 1)
    assert len(set(provider.keys)) == 1
    question = scene.row(interventions, state="open")
    assert question["intervention_id"] == result.intervention_id
    assert "never answered" in question["question"]


@pytest.mark.parametrize("provably", PROVABLE, ids=NAMES)
async def test_nobody_gets_another_generation_of_a_key_whose_first_call_may_have_happened(
    scene: Scene, provably: Exception
) -> None:
    provider = Provider([LOST, provably])
    refund = provider.tool(dedupes=DEDUPES)
    await last_of(scene, refund)
    scene.open_run(OTHER_RUN)

    for run in (RUN, OTHER_RUN):
        again = scene.claim(request_for(scene, refund, run_id=run, params=OTHER_PARAMS))
        assert isinstance(again, Mismatch)
    joined = scene.claim(request_for(scene, refund, run_id=OTHER_RUN))

    assert isinstance(joined, Asked)
    assert len(scene.rows(effects)) == 1


async def test_between_the_attempts_too_the_entry_is_never_failed(scene: Scene) -> None:
    provider = Provider([LOST, httpx.ConnectError("no route")])
    states = []

    def look(scene: Scene) -> None:
        states.append((scene.row(effects))["state"])

    await last_of(scene, provider.tool(dedupes=DEDUPES), between=look)

    assert len(states) >= 3
    assert set(states) == {"in_doubt"}


async def test_a_repeat_that_is_answered_settles_both_calls(scene: Scene) -> None:
    provider = Provider([LOST, httpx.ConnectError("no route"), {"id": "r-1"}])

    result = await last_of(scene, provider.tool(dedupes=DEDUPES))

    assert isinstance(result, Done)
    assert (scene.row(effects))["receipt"] == {"id": "r-1"}
    assert len(set(provider.keys)) == 1
    assert scene.rows(interventions) == []


async def test_without_an_earlier_doubt_a_provable_failure_frees_the_key(scene: Scene) -> None:
    refund = Provider([Permanent("no such order")]).tool(dedupes=DEDUPES)

    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, refund)

    assert failed.value.type == "ToolFailed"
    assert (scene.row(effects))["state"] == "failed"
    other = scene.claim(request_for(scene, refund, params=OTHER_PARAMS))
    assert isinstance(other, Claimed)
    assert other.entry.generation == 2


async def test_what_must_not_be_repeated_is_not_repeated_after_a_lookup_that_fails(
    scene: Scene,
) -> None:
    provider = Provider([LOST, Permanent("account closed")])
    broken = looked_up(RuntimeError("its index is being rebuilt"))

    result = await last_of(scene, provider.tool(dedupes=DEDUPES, lookup=broken, settle=AT_ONCE))

    assert isinstance(result, Asked)
    assert len(provider.keys) == 2
    assert scene.row(effects)["failures"][NO_MORE_REPEATS] == 1


async def test_what_a_human_has_settled_as_not_happened_is_doubted_no_more(scene: Scene) -> None:
    provider = Provider([LOST, Permanent("account closed")])
    refund = provider.tool(dedupes=DEDUPES)
    asked = await last_of(scene, refund)
    assert isinstance(asked, Asked)
    answer = Resolution(
        intervention_id=asked.intervention_id, outcome=ResolutionOutcome.NOT_HAPPENED, actor="ann"
    )
    assert (scene.settle(answer))[0]

    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, refund)

    assert failed.value.type == "ToolFailed"
    assert (scene.row(effects))["state"] == "failed"


@pytest.mark.parametrize("provably", PROVABLE, ids=NAMES)
async def test_a_lookup_that_finds_the_first_call_settles_it(
    scene: Scene, provably: Exception
) -> None:
    provider = Provider([LOST, provably])
    found = looked_up(Found({"id": "r-1"}))

    result = await last_of(scene, provider.tool(dedupes=DEDUPES, lookup=found, settle=AT_ONCE))

    assert isinstance(result, Done)
    row = scene.row(effects)
    assert (row["state"], row["receipt"]) == ("committed", {"id": "r-1"})
    assert row["evidence"] == {"rule": "lookup", "answer": "found"}


async def test_a_lookup_that_finds_neither_call_proves_both(scene: Scene) -> None:
    provider = Provider([LOST, Permanent("account closed")])
    refund = provider.tool(dedupes=DEDUPES, lookup=looked_up(NotFound()), settle=AT_ONCE)

    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, refund)

    assert failed.value.type == "ToolFailed"
    assert (scene.row(effects))["state"] == "failed"


async def test_a_no_to_a_repeat_leaves_the_lost_first_call_to_a_human(scene: Scene) -> None:
    """It may be the first call that the provider says no for."""
    refund = Provider([LOST, ALREADY]).tool(dedupes=DEDUPES)

    result = await last_of(scene, refund)

    assert isinstance(result, Asked)
    row = scene.row(effects)
    assert (row["state"], row["unproven"]) == ("in_doubt", True)
    assert "already refunded" in scene.row(interventions, state="open")["question"]
    other = scene.claim(request_for(scene, refund, step_id="other", params=OTHER_PARAMS))
    assert isinstance(other, Mismatch)


@pytest.mark.parametrize("found", [True, False], ids=["found", "no"])
async def test_after_a_no_to_a_repeat_its_lookup_settles_both_calls(
    scene: Scene, found: bool
) -> None:
    provider, answer = Provider([LOST, ALREADY]), Found({"id": "r-1"}) if found else ALREADY

    result = await last_of(
        scene, provider.tool(dedupes=DEDUPES, lookup=looked_up(answer), settle=AT_ONCE)
    )

    assert isinstance(result, Done if found else SaidNo)
    assert scene.row(effects)["state"] == ("committed" if found else "failed")
    rules = [event["body"]["rule"] for event in scene.events(type_="effect.in_doubt")]
    assert rules[-1] == "no_to_a_repeat"
    assert len(provider.keys) == 2


async def test_without_an_earlier_doubt_a_no_frees_the_key(scene: Scene) -> None:
    refund = Provider([ALREADY]).tool(dedupes=DEDUPES)

    result = await last_of(scene, refund)

    assert isinstance(result, SaidNo)
    other = scene.claim(request_for(scene, refund, step_id="other", params=OTHER_PARAMS))
    assert isinstance(other, Claimed)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "not found",
        NotFound,
        Unknown("its index is being rebuilt \ud83d \x00"),
        Partial("half \ud83d \x00"),
        KeyError("id"),
        asyncio.CancelledError(),
    ],
    ids=["None", "a string", "a class", "unknown", "partial", "an error", "a cancellation"],
)
async def test_a_lookup_that_says_nothing_ends_with_a_human(scene: Scene, answer: Any) -> None:
    provider = Provider([LOST])

    result = await last_of(scene, provider.tool(lookup=looked_up(answer), settle=AT_ONCE))

    assert isinstance(result, Asked)
    assert len(provider.keys) == 1
    assert len(scene.rows(interventions, state="open")) == 1


async def test_a_tool_that_cancels_itself_ends_with_a_human(scene: Scene) -> None:
    provider = Provider([asyncio.CancelledError()])

    result = await last_of(scene, provider.tool(dedupes=DEDUPES))

    assert isinstance(result, Asked)
    assert (scene.row(effects))["state"] == "in_doubt"
