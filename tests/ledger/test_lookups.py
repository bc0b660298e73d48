"""G2: what lookups prove, by key or by state, and that what a system says itself is confirmed."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.effects.write import CallResult, EffectCall
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.history.recordings import read_run_at
from surehand.activities.ledger.history.run_display import read_run_view
from surehand.activities.ledger.steps.entries import UNASKED, Asked, Claimed, Entry
from surehand.activities.tools.failures import OutcomeUnknown, ReportedFailure, Transient
from surehand.activities.tools.tool import (
    Dedupes,
    Found,
    No,
    NotFound,
    Partial,
    Tool,
    ToolContext,
    Unknown,
)
from surehand.verify import OpenItems, find_open_items
from surehand.workflows.names import ErrorType
from tests.ledger.attempts import (
    Payment,
    Provider,
    effect_call,
    last_of,
    looked_up,
    reconciled,
    request_for,
    time_passes,
)
from tests.ledger.rows import change
from tests.ledger.scene import (
    LEASE_OVER,
    OTHER_RUN,
    RUN,
    SETTLE,
    STEP,
    TIMEOUT,
    WINDOW,
    Scene,
)

LOST: Final = OutcomeUnknown("no answer")
RECEIPT: Final = {"id": "r-1"}


class World(Provider):
    """An outside system that can only be asked how it is."""

    def __init__(self, answers: list[Any], states: list[Any]) -> None:
        super().__init__(answers)
        self.states = states
        self.asked = 0

    async def look(self, params: Payment, ctx: ToolContext) -> Any:
        """Say how the world is; the last answer stays."""
        self.asked += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, BaseException):
            raise state
        return state

    def by_state(self, **options: Any) -> Tool:
        return self.tool(lookup=self.look, lookup_by="state", settle=SETTLE, **options)


def first(scene: Scene, loaded: Tool, **changes: Any) -> EffectCall:
    return effect_call(scene, loaded, request_for(scene, loaded, observes=True, **changes))


async def come_to(scene: Scene, loaded: Tool) -> CallResult:
    return await last_of(scene, loaded, observes=True)


async def left_behind(scene: Scene, loaded: Tool, *, observed: bool) -> Entry:
    """Leave a claim as a worker that dies right after it, or after its look at the world."""
    if observed:
        return await looked(first(scene, loaded))
    return scene.claimed(request_for(scene, loaded, observes=True))


async def looked(call: EffectCall) -> Entry:
    """Claim and look at the world, as a worker that gets no further for now."""
    claimed = await call._claim()
    assert isinstance(claimed, Claimed)
    seen = await call._observe(claimed.entry)
    assert isinstance(seen, Entry)
    return seen


def lease_runs_out(scene: Scene) -> None:
    change(scene, effects, {"state": "claimed"}, lease_until_ms=0)


def observed(scene: Scene) -> Any:
    return ((scene.row(effects))["observed"] or {}).get("answer")


BY_KEY: Final = {"dedupes": Dedupes(WINDOW)}


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("repeats", "looks"), [(BY_KEY, 1), ({}, 4)], ids=["dedupes", "lookup alone"]
)
@pytest.mark.parametrize("there", [True, False])
async def test_no_human_is_asked_for_what_a_lookup_finds_after_the_last_repeat(
    scene: Scene, repeats: dict[str, Any], looks: int, there: bool
) -> None:
    found: list[Any] = [Found(RECEIPT)] if there else [NotFound()]
    world = World([LOST], [NotFound()] * (looks - 1) + found)
    loaded = world.tool(lookup=world.look, settle=SETTLE, **repeats)

    result = await last_of(scene, loaded)

    assert (len(world.keys), world.asked) == (4, looks)
    if there:
        assert isinstance(result, Done)
        assert (result.receipt, scene.row(effects)["state"]) == (RECEIPT, "committed")
        assert scene.rows(interventions) == []
    else:
        assert isinstance(result, Asked)
        assert (
            "found nothing, and the last call ended with: OutcomeUnknown: no answer"
            in result.question
        )


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("state", "said"),
    [
        (NotFound(), "not_found"),
        (Found(RECEIPT), "found"),
        (Partial("half"), "unknown"),
        (Unknown("?"), "unknown"),
        (No("closed"), "unknown"),
        (ConnectionError("away"), "unknown"),
        ("anything", "unknown"),
    ],
)
async def test_a_state_lookup_comes_before_its_call(scene: Scene, state: Any, said: str) -> None:
    world = World([RECEIPT], [state])

    result = await first(scene, world.by_state()).run()

    assert isinstance(result, Done)
    assert (world.asked, len(world.keys)) == (1, 1)
    assert observed(scene) == said
    types = [event["type"] for event in scene.events()]
    order = [one for one in types if one.startswith("effect.")]
    assert order == ["effect.claimed", "effect.observed", "effect.committed"]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (Found(RECEIPT), "was true before the call"),
        (Unknown("?"), "could not tell before the call"),
    ],
)
async def test_a_state_before_the_call_proves_nothing(scene: Scene, state: Any, why: str) -> None:
    world = World([RECEIPT], [state])
    loaded = world.by_state()
    await left_behind(scene, loaded, observed=True)
    lease_runs_out(scene)

    result = await come_to(scene, loaded)

    assert isinstance(result, Asked)
    assert why in result.question
    assert world.keys == []
    assert (scene.row(effects))["state"] == "in_doubt"


async def test_a_state_that_has_become_so_since_the_call_proves_it(scene: Scene) -> None:
    world = World([LOST], [NotFound(), Found(RECEIPT)])

    result = await come_to(scene, world.by_state())

    assert isinstance(result, Done)
    assert (result.receipt, len(world.keys)) == (RECEIPT, 1)
    evidence = (scene.row(effects))["evidence"]
    assert (evidence["answer"], evidence["before"]["answer"]) == ("found", "not_found")


async def test_a_claim_that_had_not_looked_has_not_called_and_is_taken_again(scene: Scene) -> None:
    world = World([RECEIPT], [NotFound()])
    loaded = world.by_state()
    await left_behind(scene, loaded, observed=False)
    assert (scene.row(effects))["observed"] == UNASKED
    lease_runs_out(scene)

    result = await come_to(scene, loaded)

    assert isinstance(result, Done)
    assert (world.asked, len(world.keys)) == (1, 1)
    (told,) = scene.events(type_="effect.reconciled")
    assert (told["body"]["rule"], told["body"]["action"]) == ("not_called", "call_again")


async def test_a_human_is_asked_where_it_is_so_when_a_claim_is_taken_again(scene: Scene) -> None:
    world = World([RECEIPT], [Found(RECEIPT)])
    loaded = world.by_state()
    await left_behind(scene, loaded, observed=False)
    lease_runs_out(scene)

    result = await come_to(scene, loaded)

    assert isinstance(result, Asked)
    assert world.keys == []


async def test_an_attempt_that_was_taken_over_while_it_looked_calls_nothing(scene: Scene) -> None:
    world = World([RECEIPT], [NotFound()])
    loaded = world.by_state()
    entry = await left_behind(scene, loaded, observed=False)
    time_passes(scene)
    scene.claim(request_for(scene, loaded, observes=True, attempt=2), after=LEASE_OVER)

    with pytest.raises(ApplicationError, match="taken this effect over"):
        await first(scene, loaded)._observe(entry)

    assert world.keys == []


async def test_a_call_that_is_held_up_after_its_look_looks_again(scene: Scene) -> None:
    """A frozen worker goes on with its own claim: what it saw before may be long over."""
    world = World([RECEIPT], [NotFound(), Found(RECEIPT)])
    loaded = world.by_state()
    request = request_for(scene, loaded, observes=True)
    held_up = effect_call(scene, loaded, request)
    await looked(held_up)

    result = await held_up.run()

    assert isinstance(result, Done)
    assert (world.asked, len(world.keys)) == (2, 1)
    assert observed(scene) == "found"


async def test_each_call_has_its_own_look_before_it(scene: Scene) -> None:
    """A colleague may have done it by hand between a call that failed and the next one."""
    world = World([Transient("busy"), LOST], [NotFound(), Found(RECEIPT)])

    result = await come_to(scene, world.by_state())

    assert isinstance(result, Asked)
    assert (world.asked, len(world.keys)) == (2, 2)


async def test_a_lookup_by_key_is_not_asked_before_the_call(scene: Scene) -> None:
    world = World([RECEIPT], [Found(RECEIPT)])

    await last_of(scene, world.tool(lookup=world.look, settle=SETTLE))

    assert (world.asked, len(world.keys)) == (0, 1)
    assert observed(scene) is None


async def test_what_a_worker_without_the_look_has_left_is_for_a_human(scene: Scene) -> None:
    world = World([RECEIPT], [Found(RECEIPT)])
    loaded = world.by_state()
    scene.claimed(request_for(scene, loaded))
    lease_runs_out(scene)

    assert isinstance(await come_to(scene, loaded), Asked)
    assert world.keys == []


@pytest.mark.parametrize("by", ["key", "state"])
async def test_a_lookup_that_answers_no_is_the_steps_no(scene: Scene, by: Any) -> None:
    world = World([LOST], [NotFound(), No("the account is closed", code="closed")])
    loaded = world.tool(lookup=world.look, lookup_by=by, settle=SETTLE)
    if by == "key":
        world.states.pop(0)

    result = await last_of(scene, loaded, observes=by == "state")

    assert isinstance(result, SaidNo)
    assert (result.reason, result.code) == ("the account is closed", "closed")
    row = scene.row(effects)
    assert (row["state"], row["answer"]["code"], len(world.keys)) == ("failed", "closed", 1)
    again = await last_of(scene, loaded, observes=by == "state")
    assert (again, len(world.keys)) == (SaidNo("the account is closed", "closed", True), 1)


WORDS: Final = "ENOENT: no such file"


def refusing(answer: Any, *answers: Any, **options: Any) -> tuple[Provider, Tool]:
    """Return a provider that says that a call failed, then ``answers``; what its lookup says."""
    provider = Provider([ReportedFailure(WORDS), *answers])
    how = {"lookup": looked_up(answer), "settle": SETTLE, **options}
    return provider, provider.tool(**how)


async def fails(scene: Scene, loaded: Tool, **changes: Any) -> str:
    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, loaded, **changes)
    assert failed.value.type == ErrorType.TOOL_FAILED
    return failed.value.message


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("options", [{}, {"dedupes": Dedupes(WINDOW)}], ids=["lookup", "dedupes"])
async def test_a_confirmed_failure_needs_no_human(scene: Scene, options: dict[str, Any]) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT, **options)

    assert WORDS in await fails(scene, loaded)

    row = scene.row(effects)
    assert (len(provider.keys), row["state"]) == (1, "failed")
    assert WORDS in row["error"]
    assert scene.rows(interventions) == []
    [settled] = scene.events(type_="effect.reconciled")
    assert (settled["body"]["rule"], settled["body"]["action"]) == ("lookup_not_found", "fail")
    assert find_open_items(scene.events()) == OpenItems([], [], [], [])


async def test_a_reported_failure_is_told_to_the_next_attempt(scene: Scene) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT)
    words = await fails(scene, loaded)

    assert await fails(scene, loaded) == words
    assert (len(provider.keys), scene.row(effects)["state"]) == (1, "failed")


async def test_whoever_tries_the_failed_step_again_has_it_called(scene: Scene) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT)
    await fails(scene, loaded)

    assert isinstance(await last_of(scene, loaded, activity_key="another"), Done)
    assert (len(provider.keys), scene.row(effects)["answer"]) == (2, None)


async def test_a_reported_failure_waits_for_its_settle_time_alone(scene: Scene) -> None:
    _, loaded = refusing(NotFound())

    with pytest.raises(ApplicationError) as waits:
        await effect_call(scene, loaded, request_for(scene, loaded)).run()

    assert waits.value.type == ErrorType.SETTLING
    row = scene.row(effects)
    assert row["deadline_ms"] - row["claimed_ms"] < TIMEOUT // timedelta(milliseconds=1) // 2
    assert row["state"] == "in_doubt"


async def test_an_earlier_call_that_may_still_arrive_is_waited_for_as_ever(scene: Scene) -> None:
    _, loaded = refusing(NotFound(), dedupes=Dedupes(WINDOW))
    first = scene.claimed(request_for(scene, loaded))
    again = effect_call(scene, loaded, request_for(scene, loaded, attempt=2))

    with pytest.raises(ApplicationError) as waits:
        await again.run()

    assert waits.value.type == ErrorType.SETTLING
    row = scene.row(effects)
    assert (row["unproven"], row["deadline_ms"] >= first.deadline_ms) == (True, True)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "answer", [Found(RECEIPT), NotFound(), Unknown("?")], ids=lambda one: type(one).__name__
)
async def test_a_reported_failure_is_shown_truly(scene: Scene, answer: Any) -> None:
    provider, loaded = refusing(answer)
    with suppress(ApplicationError):
        await last_of(scene, loaded)

    with scene.tx() as tx:
        recorded, told = read_run_at(tx, RUN), read_run_view(tx, RUN).timeline

    assert recorded.given.keys() <= {STEP}
    assert len(provider.keys) == 1
    assert [line.text for line in told if "it was called again" in line.text] == []


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("answer", "options", "why"),
    [
        (NotFound(), {"settle": None}, "without a settle time"),
        (Unknown("the books are closed"), {}, "the books are closed"),
        (ConnectionError("no route"), {}, "no route"),
        (None, {"lookup": None, "settle": None, "recovery": "human"}, ""),
    ],
    ids=["no settle time", "cannot tell", "fails", "no lookup"],
)
async def test_where_nothing_confirms_it_a_human_is_asked_with_its_words_after_one_call(
    scene: Scene, answer: Any, options: dict[str, Any], why: str
) -> None:
    provider, loaded = refusing(answer, **options)

    asked = await last_of(scene, loaded)

    assert isinstance(asked, Asked)
    assert WORDS in asked.question
    assert why in asked.question
    assert "crash" not in asked.question
    assert len(provider.keys) == 1


async def test_a_state_that_was_so_before_the_call_confirms_nothing(scene: Scene) -> None:
    provider, loaded = refusing(Found(RECEIPT), lookup_by="state")

    asked = await last_of(scene, loaded, observes=True)

    assert isinstance(asked, Asked)
    assert f"{WORDS}; that leaves its outcome unknown, and its lookup was true" in asked.question
    assert len(provider.keys) == 1


async def test_another_run_that_finds_nothing_makes_its_own_call(scene: Scene) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT)
    with pytest.raises(ApplicationError, match="may still arrive"):
        await effect_call(scene, loaded, request_for(scene, loaded)).run()
    scene.open_run(OTHER_RUN)

    result = await last_of(scene, loaded, run_id=OTHER_RUN)

    assert isinstance(result, Done)
    assert len(provider.keys) == 2
    assert scene.row(effects)["run_id"] == OTHER_RUN


async def test_what_its_run_leaves_behind_the_reaper_settles(scene: Scene) -> None:
    provider, loaded = refusing(NotFound())
    with pytest.raises(ApplicationError):
        await effect_call(scene, loaded, request_for(scene, loaded)).run()
    change(scene, effects, deadline_ms=0, claimed_ms=0)

    settled = await reconciled(scene, loaded)

    assert (settled.not_applied, scene.row(effects)["state"]) == (1, "failed")
    assert len(provider.keys) == 1


async def test_the_words_of_a_foreign_tool_mark_the_run_that_fails_with_them(scene: Scene) -> None:
    _, loaded = refusing(NotFound())
    await fails(scene, loaded, foreign=True)
    [marked] = scene.events(type_="run.marked_foreign")
    assert marked["body"]["tool"] == "payments.refund"
