"""Batches and stale entries: who is cut off claims nothing, and the reaper settles the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest
from pydantic import BaseModel, field_validator

from surehand.activities.effects.reconcile import settle_stale
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, steps
from surehand.activities.ledger.effects import outcomes, reconcile
from surehand.activities.ledger.effects.claims import claim_at_once
from surehand.activities.ledger.steps import acting, attempts
from surehand.activities.ledger.steps.acting import Holding, Overtaken, Revoked
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.attempts import StepAttempt, Stored
from surehand.activities.ledger.steps.entries import Claimed, Entry, Held
from surehand.activities.tools.tool import Dedupes, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.workflows.contracts.effects import Reconciled
from tests.ledger.attempts import Payment, reconciled, worker_of
from tests.ledger.rows import change
from tests.ledger.scene import LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, TIMEOUT, Scene, said

FIRST: Final = Holding(1, "life", 1, "a")
AGAIN: Final = Holding(2, "life", 1, "b")
NEXT: Final = Holding(3, "life", 2, "c")
OTHER_LIFE: Final = Holding(4, "another life", 1, "d")
PARAMS: Final = {"file": "price"}
End = Callable[[Transaction], object]


def revoke(tx: Transaction) -> None:
    acting.revoke_batches(tx, RUN, [FIRST.name])


def overtake(tx: Transaction) -> None:
    acting.begin_batch(tx, RUN, AGAIN)


def go_on(tx: Transaction) -> None:
    acting.begin_batch(tx, RUN, NEXT)


#: What ends a batch for those who still make it.
ENDS: Final = [revoke, overtake, go_on]


def read(holder: str, attempt: int = 1, batch: Holding | None = None) -> StepAttempt:
    token = None if batch is None else batch.token
    return StepAttempt(RUN, "price", attempt, "prices.read", PARAMS, holder, token)


def begin(scene: Scene, holding: Holding) -> bool:
    with scene.tx() as tx:
        return acting.begin_batch(tx, RUN, holding)


def begun(scene: Scene, row: StepAttempt, *, holders: str | None = None) -> Stored | None:
    with scene.tx() as tx:
        return attempts.begin_read(tx, row, after=0, holders=holders)


def answered(scene: Scene, row: StepAttempt, output: str) -> bool:
    with scene.tx() as tx:
        return attempts.finish_attempt(tx, row, "succeeded", output=output)


def counts(scene: Scene) -> object:
    """Return what the next attempt takes as the answer."""
    with scene.tx() as tx:
        known = attempts.find_stored(tx, read("next", attempt=9), after=0)
    return None if known is None else known.output


def test_a_batch_tells_of_its_beginning_and_its_end(scene: Scene) -> None:
    assert begin(scene, FIRST) is False
    assert begin(scene, AGAIN) is True
    assert begin(scene, NEXT) is False
    # Whoever was frozen before it could begin: of this batch, of an earlier one or life.
    with pytest.raises(Overtaken):
        begin(scene, FIRST)
    with pytest.raises(Overtaken):
        begin(scene, AGAIN)
    assert begin(scene, OTHER_LIFE) is False
    with pytest.raises(Overtaken):
        begin(scene, NEXT)
    with scene.tx() as tx:
        acting.revoke_batches(tx, RUN, [OTHER_LIFE.name])
    with pytest.raises(Revoked):
        begin(scene, replace(OTHER_LIFE, scheduled_ms=5, holder="late"))
    assert begin(scene, replace(OTHER_LIFE, number=2)) is False


@pytest.mark.parametrize("end", ENDS)
def test_nothing_more_is_claimed_in_a_batch_that_is_over(scene: Scene, end: End) -> None:
    begin(scene, FIRST)
    assert isinstance(scene.claim(scene.call(batch=FIRST.token)), Claimed)
    for _ in range(2):
        with scene.tx() as tx:
            end(tx)

    late = scene.call(step_id="next", key="next", batch=FIRST.token)
    assert isinstance(scene.claim(late), Held)
    with scene.tx() as tx:
        ahead = scene.call(step_id="ahead", key="ahead", batch=FIRST.token)
        assert claim_at_once(tx, ahead) is None
    new = replace(NEXT, scheduled_ms=5, holder="new")
    begin(scene, new)  # raises where it is refused
    assert isinstance(scene.claim(replace(late, batch=new.token)), Claimed)
    assert len(scene.events(type_="batch.revoked")) == (end is revoke)


@pytest.mark.in_turns
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("began", ["before", "after"])
def test_reads_of_a_batch_that_is_over_are_lost(scene: Scene, end: End, began: str) -> None:
    begin(scene, FIRST)
    late = read("late", batch=FIRST)
    if began == "before":
        begun(scene, late)
    with scene.tx() as tx:
        end(tx)
    if began == "after":
        begun(scene, late)

    assert not answered(scene, late, "old")
    assert counts(scene) is None
    new = replace(NEXT, scheduled_ms=5, holder="new")
    begin(scene, new)
    mine = read("mine", batch=new)
    begun(scene, mine)
    assert answered(scene, mine, "new")
    assert counts(scene) == "new"


@pytest.mark.parametrize("holders", [None, ""])
def test_late_attempts_wipe_no_answer_that_counts(scene: Scene, holders: str | None) -> None:
    begin(scene, FIRST)
    begin(scene, NEXT)
    mine = read("mine", batch=NEXT)
    begun(scene, mine)
    assert answered(scene, mine, "new")

    # The same attempt number: it counts the attempts of another activity.
    known = begun(scene, read("late", batch=FIRST), holders=holders)
    assert (known.output if known else None) == (None if holders is None else "new")
    assert counts(scene) == "new"


def test_a_read_that_is_tried_again_takes_what_the_same_activity_has_recorded(scene: Scene) -> None:
    begun(scene, read("life:7:1"))
    assert answered(scene, read("life:7:1"), "recorded")

    known = begun(scene, read("life:7:2", attempt=2), holders="life:7:")
    assert (known.output if known else None) == "recorded"
    assert counts(scene) == "recorded"


@pytest.mark.parametrize("before", ["another:7:1", "life:70:1"], ids=["reset", "another activity"])
def test_a_retried_read_takes_nothing_of_another_activity(scene: Scene, before: str) -> None:
    begun(scene, read(before))
    assert answered(scene, read(before), "old")

    mine = read("life:7:2", attempt=2)
    assert begun(scene, mine, holders="life:7:") is None
    assert answered(scene, mine, "new")


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_overtaken_read_is_not_recorded(scene: Scene, attempt: int) -> None:
    late, mine = read("late"), read("mine", attempt)
    for row in (late, mine):
        begun(scene, row)

    assert not answered(scene, late, "old")
    assert answered(scene, mine, "new")
    assert not answered(scene, late, "old")
    assert counts(scene) == "new"


def test_a_read_that_is_begun_anew_with_other_params_is_recorded_with_them(scene: Scene) -> None:
    before = replace(read("before"), params={"file": "another"})
    begun(scene, before)
    mine = read("mine")
    begun(scene, mine)
    assert answered(scene, mine, "new")

    assert counts(scene) == "new"


def test_the_read_that_began_last_counts_whatever_its_number(scene: Scene) -> None:
    # Attempt 3 of an activity that was given up, and the first one of the next.
    late, mine = read("late", attempt=3), read("mine")
    begun(scene, late)
    change(scene, steps, started_ms=steps.c.started_ms - 1)
    begun(scene, mine)
    assert answered(scene, mine, "new")
    assert answered(scene, late, "old")

    assert counts(scene) == "new"


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


@pytest.mark.parametrize("partial", [False, True])
def test_the_reaper_leaves_asked_and_given_up_effects(scene: Scene, partial: bool) -> None:
    _, intervention = scene.asked(scene.call(), partial=partial)
    assert found(scene) == []

    scene.settle(said(intervention, "give_up"))
    assert found(scene) == []


def test_what_a_human_was_asked_about_since_the_round_began_is_left_alone(scene: Scene) -> None:
    request = scene.call()
    scene.in_doubt(request)
    (seen,) = found(scene)
    with scene.tx() as tx:
        assert outcomes.ask_human(tx, seen, "Did it?")

    assert take_over(scene, seen) is None


def test_the_reaper_takes_an_entry_over_under_the_next_token(scene: Scene) -> None:
    request = scene.call()
    claimed = scene.claimed(request)

    taken = take_over(scene, claimed)

    assert taken is not None
    assert (taken.state, taken.fencing_token) == ("in_doubt", claimed.fencing_token + 1)
    with scene.tx() as tx:
        assert outcomes.commit_effect(tx, request, claimed, Kept("late")) is None


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
            assert outcomes.renew_lease(tx, seen)
    before = scene.entry(seen.entry_id)

    assert take_over(scene, seen) is None

    assert scene.entry(seen.entry_id) == before
    if quicker == "renewed":
        assert isinstance(scene.claim(scene.call(attempt=2), after=LATER), Held)


@pytest.mark.in_turns
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
    worker, every = worker_of(scene, refund), timedelta(seconds=1)

    async def alive(run_id: str) -> bool:
        return run_id.startswith("paused")

    done = Reconciled(next=None)
    parts = 0
    while parts == 0 or done.next is not None:
        page = await settle_stale(
            worker, scene.tenant, alive, quiet=-every, limit=size, after=done.next
        )
        done, parts = done.and_then(page), parts + 1

    assert (done.looked_at, done.waiting, done.asked) == (5, 3, 2)
    assert parts == 5 // size + 1


async def test_a_broken_entry_keeps_nothing_from_those_behind_it(scene: Scene) -> None:
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
    worker, every = worker_of(scene, refund), timedelta(seconds=1)

    done = await settle_stale(worker, scene.tenant, alive, quiet=-every, limit=10)

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

    scene.in_doubt(scene.call(timeout=NOW))

    done = await reconciled(scene, refund)

    assert (done.looked_at, done.asked) == (1, 1)
