"""G2: what nobody is settling is found by the sweep, and by the sweep alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel, field_validator

from activities.attempt import Resources
from activities.crashpoints import Crash
from activities.ledger import outcomes, overdue
from activities.ledger.artifacts import Kept
from activities.ledger.entries import Entry, Held
from activities.ledger.tables import effects
from activities.reconciliation import reconcile_once
from activities.toolbox import WRITE, Dedupes, Toolbox, ToolContext, tool
from tests.ledger.attempts import Payment
from tests.ledger.rows import change
from tests.ledger.scene import LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, TIMEOUT, Scene
from workflows.contracts import Resolution, ResolutionOutcome, Swept

QUIET = timedelta(seconds=30)
LATER = TIMEOUT + QUIET + timedelta(seconds=5)


async def found(scene: Scene, after: timedelta = LATER, limit: int = 100) -> list[Entry]:
    async with scene.tx(after) as tx:
        return await overdue.overdue(tx, QUIET, limit)


async def take_over(scene: Scene, seen: Entry) -> Entry | None:
    async with scene.tx(LATER) as tx:
        return await overdue.take_over(tx, seen)


async def test_entries_without_an_outcome_are_overdue_oldest_first(scene: Scene) -> None:
    claimed = await scene.claimed(scene.call(key="a"))
    doubted = await scene.in_doubt(scene.call(key="b", step_id="b"), after=timedelta(seconds=1))

    assert await found(scene) == [claimed, doubted]
    assert await found(scene, limit=1) == [claimed]


async def test_what_its_own_run_may_still_settle_is_left_to_it(scene: Scene) -> None:
    await scene.claimed(scene.call(key="a"))
    await scene.in_doubt(scene.call(key="b", step_id="b"))

    for after in (NOW, LEASE_OVER, QUIET):
        assert await found(scene, after) == []
    (claimed,) = await found(scene, LEASE + QUIET + timedelta(seconds=1))
    assert claimed.state == "claimed"


async def test_what_is_settled_is_never_overdue(scene: Scene) -> None:
    await scene.committed(scene.call(key="a"))
    await scene.failed(scene.call(key="b", step_id="b"))
    await scene.answered_no(scene.call(key="c", step_id="c"))
    await scene.compensated(scene.call(key="d", step_id="d"))

    assert await found(scene) == []


@pytest.mark.parametrize("partial", [False, True])
async def test_what_a_human_is_asked_about_or_has_given_up_is_left_alone(
    scene: Scene, partial: bool
) -> None:
    _, intervention = await scene.asked(scene.call(), partial=partial)
    assert await found(scene) == []

    outcome = ResolutionOutcome.GIVE_UP
    await scene.settle(Resolution(intervention_id=intervention, outcome=outcome, actor="olga"))
    assert await found(scene) == []


async def test_what_a_human_was_asked_about_since_the_round_began_is_left_alone(
    scene: Scene,
) -> None:
    request = scene.call()
    await scene.in_doubt(request)
    (seen,) = await found(scene)
    async with scene.tx() as tx:
        assert await outcomes.ask_human(tx, seen, "Did it?")

    assert await take_over(scene, seen) is None


async def test_another_tenants_entries_are_another_sweeps(scene: Scene, other: Scene) -> None:
    entry = await scene.claimed(scene.call())

    assert await found(other) == []
    assert await take_over(other, entry) is None
    assert await scene.entry(entry.entry_id) == entry


async def test_the_sweep_takes_an_entry_over_under_the_next_token(scene: Scene) -> None:
    request = scene.call()
    claimed = await scene.claimed(request)

    taken = await take_over(scene, claimed)

    assert taken is not None
    assert (taken.state, taken.fencing_token) == ("in_doubt", claimed.fencing_token + 1)
    async with scene.tx() as tx:
        assert await outcomes.commit(tx, request, claimed, Kept("late")) is None


@pytest.mark.parametrize("quicker", ["renewed", "committed", "swept"])
async def test_an_entry_that_somebody_was_quicker_with_is_not_taken_over(
    scene: Scene, quicker: str
) -> None:
    request = scene.call()
    seen = await scene.claimed(request)
    if quicker == "swept":
        assert await take_over(scene, seen) is not None
    elif quicker == "committed":
        await scene.commit(request, seen)
    else:
        async with scene.tx(LATER) as tx:
            assert await outcomes.renew(tx, seen)
    before = await scene.entry(seen.entry_id)

    assert await take_over(scene, seen) is None

    assert await scene.entry(seen.entry_id) == before
    if quicker == "renewed":
        assert isinstance(await scene.claim(scene.call(attempt=2), after=LATER), Held)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
async def test_a_round_comes_to_every_entry_however_many_stay_stuck_in_front(
    scene: Scene, size: int
) -> None:
    """Three of paused runs, which only these can settle, then two that were terminated."""

    @tool("payments.refund", effect=WRITE, dedupes=Dedupes(timedelta(days=1)), irreversible=True)
    async def refund(params: Payment, ctx: ToolContext) -> None:
        raise AssertionError("the sweep calls nothing")

    for name in ("paused-1", "paused-2", "paused-3", "terminated-1", "terminated-2"):
        await scene.open_run(name)
        await scene.in_doubt(scene.call(run_id=name, key=name, timeout=NOW))
    # All of one millisecond: their order is that of their ids.
    await change(scene, effects, claimed_ms=7)
    every = timedelta(seconds=1)
    tools = Toolbox([refund])
    resources = Resources(scene.ledger, tools, scene.artifacts, Crash(), LEASE, every)

    async def alive(run_id: str) -> bool:
        return run_id.startswith("paused")

    swept = Swept(next=None)
    parts = 0
    while parts == 0 or swept.next is not None:
        page = await reconcile_once(
            resources, scene.tenant, alive, quiet=-every, limit=size, after=swept.next
        )
        swept, parts = swept.and_then(page), parts + 1

    assert (swept.looked_at, swept.waiting, swept.asked) == (5, 3, 2)
    assert parts == 5 // size + 1


async def test_an_entry_that_a_round_trips_over_keeps_nothing_from_those_behind_it(
    scene: Scene,
) -> None:
    @tool("payments.refund", effect=WRITE, recovery="human", irreversible=True)
    async def refund(params: Payment, ctx: ToolContext) -> None:
        raise AssertionError("the sweep calls nothing")

    async def alive(run_id: str) -> bool:
        if run_id == RUN:
            raise RuntimeError("whatever it is")
        return False

    await scene.open_run(OTHER_RUN)
    await scene.in_doubt(scene.call(timeout=NOW))
    await scene.in_doubt(scene.call(run_id=OTHER_RUN, key="b", timeout=NOW))
    every = timedelta(seconds=1)
    tools = Toolbox([refund])
    resources = Resources(scene.ledger, tools, scene.artifacts, Crash(), LEASE, every)

    swept = await reconcile_once(resources, scene.tenant, alive, quiet=-every, limit=10)

    assert (swept.looked_at, swept.waiting, swept.asked) == (2, 1, 1)


class Known(BaseModel):
    """Params whose validator raises what pydantic does not wrap."""

    order: str

    @field_validator("order")
    @classmethod
    def known(cls, order: str) -> str:
        known: dict[str, str] = {}
        return known[order]


async def test_params_that_a_validator_trips_over_do_not_stop_the_round(scene: Scene) -> None:
    @tool("payments.refund", effect=WRITE, recovery="human", irreversible=True)
    async def refund(params: Known, ctx: ToolContext) -> None:
        raise AssertionError("the sweep calls nothing")

    async def ended(run_id: str) -> bool:
        return False

    await scene.in_doubt(scene.call(timeout=NOW))
    every = timedelta(seconds=1)
    tools = Toolbox([refund])
    resources = Resources(scene.ledger, tools, scene.artifacts, Crash(), LEASE, every)

    swept = await reconcile_once(resources, scene.tenant, ended, quiet=-every, limit=10)

    assert (swept.looked_at, swept.asked) == (1, 1)
