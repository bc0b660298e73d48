"""G2: what a crash left unknown is settled by asking, and is never blindly repeated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import reconcile
from surehand.activities.ledger.steps.entries import (
    NO_MORE_REPEATS,
    Asked,
    Barred,
    Claimed,
    ClaimResult,
    Doubtful,
    Held,
    Mismatch,
)
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import Dedupes, Found, No, NotFound, Partial, Unknown
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.attempts import Payment, Provider, last_of, request_for
from tests.ledger.scene import (
    AT_ONCE,
    LEASE,
    LEASE_OVER,
    OTHER_RUN,
    RUN,
    SETTLE,
    SETTLED,
    TIMEOUT,
    WINDOW,
    Scene,
)

pytestmark = pytest.mark.guarantee("G2")


DEDUPES = {"recovery": Recovery.DEDUPES, "window": WINDOW}
NOT_DEDUPING = [Recovery.LOOKUP, Recovery.HUMAN]


@pytest.mark.parametrize("recovery", NOT_DEDUPING)
def test_a_later_attempt_waits_for_a_lease_that_is_alive(scene: Scene, recovery: Recovery) -> None:
    first = scene.claimed(scene.call(recovery=recovery))

    result = scene.claim(scene.call(recovery=recovery, attempt=2))

    assert isinstance(result, Held)
    assert timedelta(0) < result.wait <= LEASE
    assert scene.entry(first.entry_id) == first


def test_a_later_attempt_of_one_activity_takes_a_deduping_call_over_at_once(scene: Scene) -> None:
    first = scene.claimed(scene.call(**DEDUPES))

    second = scene.claimed(scene.call(**DEDUPES, attempt=2))

    assert (second.entry_id, second.fencing_token) == (first.entry_id, 2)
    assert second.provider_key == first.provider_key
    (reconciled,) = scene.events(type_="effect.reconciled")
    assert reconciled["body"]["rule"] == "dedupes"
    assert reconciled["body"]["action"] == "call_again"


def test_another_activity_waits_even_if_the_provider_dedupes(scene: Scene) -> None:
    scene.claimed(scene.call(**DEDUPES))
    scene.open_run(OTHER_RUN)

    assert isinstance(scene.claim(scene.call(**DEDUPES, run_id=OTHER_RUN)), Held)
    same_step = scene.call(**DEDUPES, activity_key="the same step, another activity")
    assert isinstance(scene.claim(same_step), Held)


@pytest.mark.parametrize("recovery", NOT_DEDUPING)
@pytest.mark.parametrize("run_id", [RUN, OTHER_RUN])
def test_an_expired_lease_leaves_a_doubt(scene: Scene, recovery: Recovery, run_id: str) -> None:
    first = scene.claimed(scene.call(recovery=recovery))
    scene.open_run(OTHER_RUN)

    result = scene.claim(scene.call(recovery=recovery, run_id=run_id), after=LEASE_OVER)

    assert isinstance(result, Doubtful)
    assert result.entry.state == "in_doubt"
    assert result.entry.fencing_token == first.fencing_token + 1
    assert result.entry.run_id == RUN
    assert (scene.row(effects))["calls"] == 1
    (noted,) = scene.events(type_="effect.in_doubt")
    assert (noted["body"]["rule"], noted["body"]["action"]) == ("lease_over", "reconcile")


def test_an_expired_deduping_call_is_repeated_with_its_key(scene: Scene) -> None:
    first = scene.claimed(scene.call(**DEDUPES))
    scene.open_run(OTHER_RUN)

    second = scene.claimed(scene.call(**DEDUPES, run_id=OTHER_RUN), after=LEASE_OVER)

    assert second.provider_key == first.provider_key
    assert second.fencing_token == first.fencing_token + 1
    assert second.run_id == OTHER_RUN


def test_the_window_of_a_key_runs_from_its_first_call(scene: Scene) -> None:
    scene.claimed(scene.call(**DEDUPES))
    second = scene.call(**DEDUPES, attempt=2)
    scene.claimed(second, after=WINDOW - timedelta(seconds=10))

    result = scene.claim(scene.call(**DEDUPES, attempt=3), after=WINDOW)

    assert isinstance(result, Doubtful)
    assert (scene.row(effects))["calls"] == 2


@pytest.mark.parametrize("recovery", NOT_DEDUPING)
def test_a_doubtful_entry_is_reconciled_not_called(scene: Scene, recovery: Recovery) -> None:
    doubted = scene.in_doubt(scene.call(recovery=recovery))

    result = scene.claim(scene.call(recovery=recovery, attempt=2))

    assert isinstance(result, Doubtful)
    assert result.entry.fencing_token == doubted.fencing_token + 1
    assert (scene.row(effects))["calls"] == 1


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("how", [{}, DEDUPES])
def test_runs_join_one_open_question(scene: Scene, partial: bool, how: dict[str, object]) -> None:
    entry, intervention = scene.asked(scene.call(**how), partial=partial)
    scene.open_run(OTHER_RUN)

    for run_id in (RUN, OTHER_RUN):
        result = scene.claim(scene.call(**how, run_id=run_id, attempt=2))
        assert result == Asked(entry, intervention, "Did it?")

    assert entry.state == ("partial" if partial else "in_doubt")
    assert scene.entry(entry.entry_id) == entry
    assert len(scene.rows(interventions)) == 1


@pytest.mark.parametrize("partial", [False, True])
def test_nobody_makes_an_effect_that_a_human_gave_up(scene: Scene, partial: bool) -> None:
    entry, intervention = scene.asked(scene.call(**DEDUPES), partial=partial)
    scene.settle(
        Resolution(intervention_id=intervention, outcome=ResolutionOutcome.GIVE_UP, actor="olga")
    )
    scene.open_run(OTHER_RUN)

    for run_id in (RUN, OTHER_RUN):
        result = scene.claim(scene.call(**DEDUPES, run_id=run_id, attempt=2))
        assert isinstance(result, Barred)
        assert "olga" in result.reason

    assert (scene.entry(entry.entry_id)).state == entry.state


def _not_found(scene: Scene, after: timedelta, *, forward: bool) -> ClaimResult:
    """Claim, crash, find it in doubt, and have the lookup find nothing ``after`` that time."""
    scene.claimed(scene.call())
    request = scene.call(attempt=2)
    doubted = scene.claim(request, after=LEASE_OVER)
    assert isinstance(doubted, Doubtful)
    with scene.tx(after) as tx:
        return reconcile.after_not_found(tx, request, doubted.entry, forward=forward)


@pytest.mark.parametrize("after", [LEASE_OVER, TIMEOUT + timedelta(seconds=1)])
@pytest.mark.parametrize("forward", [True, False])
def test_not_found_waits_for_the_settle_time(scene: Scene, after: timedelta, forward: bool) -> None:
    result = _not_found(scene, after, forward=forward)

    assert isinstance(result, Held)
    left = TIMEOUT + SETTLE - after
    assert left - timedelta(seconds=2) < result.wait <= left
    assert (scene.row(effects))["state"] == "in_doubt"


def test_not_found_after_the_settle_time_calls_again_with_the_same_key(scene: Scene) -> None:
    result = _not_found(scene, SETTLED, forward=True)

    assert isinstance(result, Claimed)
    assert (result.entry.generation, result.entry.fencing_token) == (1, 3)
    assert (scene.row(effects))["calls"] == 2
    (reconciled,) = scene.events(type_="effect.reconciled")
    assert reconciled["body"]["rule"] == "lookup_not_found"


def test_not_found_in_a_run_that_is_being_undone_is_recorded_and_never_calls(scene: Scene) -> None:
    result = _not_found(scene, SETTLED, forward=False)

    assert isinstance(result, Barred)
    row = scene.row(effects)
    assert (row["state"], row["calls"]) == ("failed", 1)
    (reconciled,) = scene.events(type_="effect.reconciled")
    assert reconciled["body"]["action"] == "bar"


def test_a_refusal_after_a_lookup_is_recorded(scene: Scene) -> None:
    gated = scene.approved(scene.call(), expires_in=timedelta(seconds=20))
    scene.claimed(gated)
    doubted = scene.claim(replace(gated, holder="the next attempt"), LEASE_OVER)
    assert isinstance(doubted, Doubtful)

    with scene.tx(SETTLED) as tx:
        result = reconcile.after_not_found(tx, gated, doubted.entry, forward=True)

    assert type(result).__name__ == "ApprovalRefused"
    (refused,) = scene.events(type_="effect.refused")
    assert refused["body"]["rule"] == "ApprovalRefused"


def test_an_entry_settled_meanwhile_is_not_called_again(scene: Scene) -> None:
    request = scene.call()
    entry = scene.in_doubt(request)
    doubted = scene.claim(scene.call(attempt=2))
    assert isinstance(doubted, Doubtful)
    assert isinstance(scene.claim(scene.call(attempt=3)), Doubtful)

    with scene.tx(SETTLED) as tx:
        result = reconcile.after_not_found(tx, request, doubted.entry, forward=True)

    assert isinstance(result, Held)
    assert (scene.entry(entry.entry_id)).state == "in_doubt"


DEDUPING = Dedupes(window=WINDOW)
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
async def test_a_failed_repeat_proves_nothing_before_it(scene: Scene, provably: Exception) -> None:
    provider = Provider([LOST, provably])
    refund = provider.tool(dedupes=DEDUPING)

    result = await last_of(scene, refund)

    assert isinstance(result, Asked)
    row = scene.row(effects)
    assert (row["state"], row["generation"]) == ("in_doubt", 1)
    assert len(set(provider.keys)) == 1
    question = scene.row(interventions, state="open")
    assert question["intervention_id"] == result.intervention_id
    assert "never answered" in question["question"]


@pytest.mark.parametrize("provably", PROVABLE, ids=NAMES)
async def test_a_doubtful_key_gets_no_new_generation(scene: Scene, provably: Exception) -> None:
    provider = Provider([LOST, provably])
    refund = provider.tool(dedupes=DEDUPING)
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

    await last_of(scene, provider.tool(dedupes=DEDUPING), between=look)

    assert len(states) >= 3
    assert set(states) == {"in_doubt"}


async def test_a_repeat_that_is_answered_settles_both_calls(scene: Scene) -> None:
    provider = Provider([LOST, httpx.ConnectError("no route"), {"id": "r-1"}])

    result = await last_of(scene, provider.tool(dedupes=DEDUPING))

    assert isinstance(result, Done)
    assert (scene.row(effects))["receipt"] == {"id": "r-1"}
    assert len(set(provider.keys)) == 1
    assert scene.rows(interventions) == []


async def test_without_an_earlier_doubt_a_provable_failure_frees_the_key(scene: Scene) -> None:
    refund = Provider([Permanent("no such order")]).tool(dedupes=DEDUPING)

    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, refund)

    assert failed.value.type == "ToolFailed"
    assert (scene.row(effects))["state"] == "failed"
    other = scene.claim(request_for(scene, refund, params=OTHER_PARAMS))
    assert isinstance(other, Claimed)
    assert other.entry.generation == 2


async def test_a_failing_lookup_repeats_nothing_that_must_not_be(scene: Scene) -> None:
    provider = Provider([LOST, Permanent("account closed")])
    broken = looked_up(RuntimeError("its index is being rebuilt"))

    result = await last_of(scene, provider.tool(dedupes=DEDUPING, lookup=broken, settle=AT_ONCE))

    assert isinstance(result, Asked)
    assert len(provider.keys) == 2
    assert scene.row(effects)["failures"][NO_MORE_REPEATS] == 1


async def test_what_a_human_has_settled_as_not_happened_is_doubted_no_more(scene: Scene) -> None:
    provider = Provider([LOST, Permanent("account closed")])
    refund = provider.tool(dedupes=DEDUPING)
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
async def test_a_lookup_settles_the_first_call(scene: Scene, provably: Exception) -> None:
    provider = Provider([LOST, provably])
    found = looked_up(Found({"id": "r-1"}))

    result = await last_of(scene, provider.tool(dedupes=DEDUPING, lookup=found, settle=AT_ONCE))

    assert isinstance(result, Done)
    row = scene.row(effects)
    assert (row["state"], row["receipt"]) == ("committed", {"id": "r-1"})
    assert row["evidence"] == {"rule": "lookup", "answer": "found"}


async def test_a_lookup_that_finds_neither_call_proves_both(scene: Scene) -> None:
    provider = Provider([LOST, Permanent("account closed")])
    refund = provider.tool(dedupes=DEDUPING, lookup=looked_up(NotFound()), settle=AT_ONCE)

    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, refund)

    assert failed.value.type == "ToolFailed"
    assert (scene.row(effects))["state"] == "failed"


async def test_a_no_to_a_repeat_leaves_the_lost_first_call_to_a_human(scene: Scene) -> None:
    """It may be the first call that the provider says no for."""
    refund = Provider([LOST, ALREADY]).tool(dedupes=DEDUPING)

    result = await last_of(scene, refund)

    assert isinstance(result, Asked)
    row = scene.row(effects)
    assert (row["state"], row["unproven"]) == ("in_doubt", True)
    assert "already refunded" in scene.row(interventions, state="open")["question"]
    other = scene.claim(request_for(scene, refund, step_id="other", params=OTHER_PARAMS))
    assert isinstance(other, Mismatch)


@pytest.mark.parametrize("found", [True, False], ids=["found", "no"])
async def test_after_a_no_a_lookup_settles_both_calls(scene: Scene, found: bool) -> None:
    provider, answer = Provider([LOST, ALREADY]), Found({"id": "r-1"}) if found else ALREADY

    result = await last_of(
        scene, provider.tool(dedupes=DEDUPING, lookup=looked_up(answer), settle=AT_ONCE)
    )

    assert isinstance(result, Done if found else SaidNo)
    assert scene.row(effects)["state"] == ("committed" if found else "failed")
    rules = [event["body"]["rule"] for event in scene.events(type_="effect.in_doubt")]
    assert rules[-1] == "no_to_a_repeat"
    assert len(provider.keys) == 2


async def test_without_an_earlier_doubt_a_no_frees_the_key(scene: Scene) -> None:
    refund = Provider([ALREADY]).tool(dedupes=DEDUPING)

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

    result = await last_of(scene, provider.tool(dedupes=DEDUPING))

    assert isinstance(result, Asked)
    assert (scene.row(effects))["state"] == "in_doubt"
