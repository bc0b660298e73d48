"""Batches: who is cut off from Temporal claims nothing more, and answers nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from sqlalchemy import update

from surehand.activities.ledger.core import tables
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects.claims import claim_at_once
from surehand.activities.ledger.steps import acting, attempts
from surehand.activities.ledger.steps.acting import Holding, Overtaken, Revoked
from surehand.activities.ledger.steps.attempts import StepAttempt, Stored
from surehand.activities.ledger.steps.entries import Claimed, Held
from tests.ledger.scene import RUN, Scene

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
        return attempts.finish(tx, row, "succeeded", output=output)


def counts(scene: Scene) -> object:
    """Return what the next attempt takes as the answer."""
    with scene.tx() as tx:
        known = attempts.stored(tx, read("next", attempt=9), after=0)
    return None if known is None else known.output


def test_a_batch_tells_of_its_beginning_and_its_end(
    scene: Scene,
) -> None:
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


def test_a_batch_is_given_up_with_one_event(scene: Scene) -> None:
    for _ in range(2):
        with scene.tx() as tx:
            revoke(tx)

    assert len(scene.events(type_="batch.revoked")) == 1


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


def test_a_run_that_is_reset_reads_anew_what_was_answered(scene: Scene) -> None:
    begun(scene, read("before"))
    assert answered(scene, read("before"), "old")

    assert begun(scene, read("mine")) is None
    assert answered(scene, read("mine"), "new")
    assert counts(scene) == "new"


def test_a_read_that_is_tried_again_takes_what_the_same_activity_has_recorded(
    scene: Scene,
) -> None:
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


def test_a_read_that_is_begun_anew_with_other_params_is_recorded_with_them(
    scene: Scene,
) -> None:
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
    with scene.tx() as tx:
        mine_only = tables.steps.c.tenant_id == scene.tenant
        earlier = tables.steps.c.started_ms - 1
        tx.execute(update(tables.steps).where(mine_only).values(started_ms=earlier))
    begun(scene, mine)
    assert answered(scene, mine, "new")
    assert answered(scene, late, "old")

    assert counts(scene) == "new"
