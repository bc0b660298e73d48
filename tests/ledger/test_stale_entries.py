"""G2: what nobody is settling is found by the reaper, and by the reaper alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel, field_validator

from surehand.activities.effects.reaper import settle_stale
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import outcomes, reconcile
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Entry, Held
from surehand.activities.tools.tool import Dedupes, ToolContext
from surehand.activities.tools.toolbox import WRITE, Toolbox, tool
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.maintenance import Reconciled
from tests.ledger.attempts import Payment
from tests.ledger.rows import change
from tests.ledger.scene import LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, TIMEOUT, Scene

QUIET = timedelta(seconds=30)
LATER = TIMEOUT + QUIET + timedelta(seconds=5)


def found(scene: Scene, after: timedelta = LATER, limit: int = 100) -> list[Entry]:
    with scene.tx(after) as tx:
        return reconcile.stale_entries(tx, QUIET, limit)


def take_over(scene: Scene, seen: Entry) -> Entry | None:
    with scene.tx(LATER) as tx:
        return reconcile.take_over(tx, seen)


def test_entries_without_an_outcome_are_overdue_oldest_first(scene: Scene) -> None:
    claimed = scene.claimed(scene.call(key="a"))
    doubted = scene.in_doubt(scene.call(key="b", step_id="b"), after=timedelta(seconds=1))

    assert found(scene) == [claimed, doubted]
    assert found(scene, limit=1) == [claimed]


def test_what_its_own_run_may_still_settle_is_left_to_it(scene: Scene) -> None:
    scene.claimed(scene.call(key="a"))
    scene.in_doubt(scene.call(key="b", step_id="b"))

    for after in (NOW, LEASE_OVER, QUIET):
        assert found(scene, after) == []
    (claimed,) = found(scene, LEASE + QUIET + timedelta(seconds=1))
    assert claimed.state == "claimed"


def test_what_is_settled_is_never_overdue(scene: Scene) -> None:
    scene.committed(scene.call(key="a"))
    scene.failed(scene.call(key="b", step_id="b"))
    scene.answered_no(scene.call(key="c", step_id="c"))
    scene.compensated(scene.call(key="d", step_id="d"))

    assert found(scene) == []


@pytest.mark.parametrize("partial", [False, True])
def test_the_reaper_leaves_asked_and_given_up_effects(scene: Scene, partial: bool) -> None:
    _, intervention = scene.asked(scene.call(), partial=partial)
    assert found(scene) == []

    outcome = ResolutionOutcome.GIVE_UP
    scene.settle(Resolution(intervention_id=intervention, outcome=outcome, actor="olga"))
    assert found(scene) == []


def test_what_a_human_was_asked_about_since_the_round_began_is_left_alone(
    scene: Scene,
) -> None:
    request = scene.call()
    scene.in_doubt(request)
    (seen,) = found(scene)
    with scene.tx() as tx:
        assert outcomes.ask_human(tx, seen, "Did it?")

    assert take_over(scene, seen) is None


def test_another_tenants_entries_are_another_rounds(scene: Scene, other: Scene) -> None:
    entry = scene.claimed(scene.call())

    assert found(other) == []
    assert take_over(other, entry) is None
    assert scene.entry(entry.entry_id) == entry


def test_the_reaper_takes_an_entry_over_under_the_next_token(scene: Scene) -> None:
    request = scene.call()
    claimed = scene.claimed(request)

    taken = take_over(scene, claimed)

    assert taken is not None
    assert (taken.state, taken.fencing_token) == ("in_doubt", claimed.fencing_token + 1)
    with scene.tx() as tx:
        assert outcomes.commit(tx, request, claimed, Kept("late")) is None


@pytest.mark.parametrize("quicker", ["renewed", "committed", "reaped"])
def test_a_quicker_settlement_is_not_taken_over(scene: Scene, quicker: str) -> None:
    request = scene.call()
    seen = scene.claimed(request)
    if quicker == "reaped":
        assert take_over(scene, seen) is not None
    elif quicker == "committed":
        scene.commit(request, seen)
    else:
        with scene.tx(LATER) as tx:
            assert outcomes.renew(tx, seen)
    before = scene.entry(seen.entry_id)

    assert take_over(scene, seen) is None

    assert scene.entry(seen.entry_id) == before
    if quicker == "renewed":
        assert isinstance(scene.claim(scene.call(attempt=2), after=LATER), Held)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
async def test_a_round_reaches_every_entry_behind_stuck_ones(scene: Scene, size: int) -> None:
    """Three of paused runs, which only these can settle, then two that were terminated."""

    @tool("payments.refund", effect=WRITE, dedupes=Dedupes(timedelta(days=1)), irreversible=True)
    async def refund(params: Payment, ctx: ToolContext) -> None:
        raise AssertionError("the reaper calls nothing")

    for name in ("paused-1", "paused-2", "paused-3", "terminated-1", "terminated-2"):
        scene.open_run(name)
        scene.in_doubt(scene.call(run_id=name, key=name, timeout=NOW))
    # All of one millisecond: their order is that of their ids.
    change(scene, effects, claimed_ms=7)
    every = timedelta(seconds=1)
    tools = Toolbox([refund])
    context = WorkerContext(scene.ledger, tools, scene.artifacts, Crash(), LEASE, every)

    async def alive(run_id: str) -> bool:
        return run_id.startswith("paused")

    done = Reconciled(next=None)
    parts = 0
    while parts == 0 or done.next is not None:
        page = await settle_stale(
            context, scene.tenant, alive, quiet=-every, limit=size, after=done.next
        )
        done, parts = done.and_then(page), parts + 1

    assert (done.looked_at, done.waiting, done.asked) == (5, 3, 2)
    assert parts == 5 // size + 1


async def test_a_broken_entry_keeps_nothing_from_those_behind_it(
    scene: Scene,
) -> None:
    @tool("payments.refund", effect=WRITE, recovery="human", irreversible=True)
    async def refund(params: Payment, ctx: ToolContext) -> None:
        raise AssertionError("the reaper calls nothing")

    async def alive(run_id: str) -> bool:
        if run_id == RUN:
            raise RuntimeError("whatever it is")
        return False

    scene.open_run(OTHER_RUN)
    scene.in_doubt(scene.call(timeout=NOW))
    scene.in_doubt(scene.call(run_id=OTHER_RUN, key="b", timeout=NOW))
    every = timedelta(seconds=1)
    tools = Toolbox([refund])
    context = WorkerContext(scene.ledger, tools, scene.artifacts, Crash(), LEASE, every)

    done = await settle_stale(context, scene.tenant, alive, quiet=-every, limit=10)

    assert (done.looked_at, done.waiting, done.asked) == (2, 1, 1)


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
        raise AssertionError("the reaper calls nothing")

    async def ended(run_id: str) -> bool:
        return False

    scene.in_doubt(scene.call(timeout=NOW))
    every = timedelta(seconds=1)
    tools = Toolbox([refund])
    context = WorkerContext(scene.ledger, tools, scene.artifacts, Crash(), LEASE, every)

    done = await settle_stale(context, scene.tenant, ended, quiet=-every, limit=10)

    assert (done.looked_at, done.asked) == (1, 1)
