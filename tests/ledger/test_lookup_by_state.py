"""G2: what was so before a call proves nothing after it: lookups that go by the world's state."""

from __future__ import annotations

from typing import Any, Final

import pytest
from sqlalchemy import update
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.effects.write import CallResult, EffectCall
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.steps.entries import (
    UNASKED,
    Asked,
    Claimed,
    Entry,
)
from surehand.activities.tools.failures import OutcomeUnknown, Transient
from surehand.activities.tools.tool import Found, No, NotFound, Partial, Tool, ToolContext, Unknown
from tests.ledger.attempts import (
    Payment,
    Provider,
    effect_call,
    last_of,
    request_for,
    time_passes,
)
from tests.ledger.scene import LEASE_OVER, SETTLE, Scene

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
    with scene.tx() as tx:
        mine = (effects.c.tenant_id == tx.tenant, effects.c.state == "claimed")
        tx.execute(update(effects).where(*mine).values(lease_until_ms=0))


def observed(scene: Scene) -> Any:
    return ((scene.row(effects))["observed"] or {}).get("answer")


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
async def test_the_world_is_looked_at_before_the_call_and_the_call_is_made(
    scene: Scene, state: Any, said: str
) -> None:
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
async def test_a_state_that_was_so_before_the_call_is_no_proof_of_it(
    scene: Scene, state: Any, why: str
) -> None:
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


async def test_the_reaper_records_the_no_of_a_lookup(scene: Scene) -> None:
    world = World([LOST], [No("closed")])
    loaded = world.tool(lookup=world.look, settle=SETTLE)
    request = request_for(scene, loaded)
    entry = scene.in_doubt(request)

    result = await effect_call(scene, loaded, request).reconcile(entry, forward=False)

    assert isinstance(result, SaidNo)
    assert (scene.row(effects))["state"] == "failed"
