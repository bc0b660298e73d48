"""G4: a step that is undone stays undone, and its effect is undone once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from surehand.activities.ledger.core.tables import bars, effects, interventions
from surehand.activities.ledger.effects import compensations, outcomes, reconcile, run_tree
from surehand.activities.ledger.effects.compensations import GivenUp, NothingToUndo, ToUndo
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Asked,
    Barred,
    Claimed,
    Committed,
    Doubtful,
    Held,
    Mismatch,
    entry_id_for,
)
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.identity import forward_key, step_key
from tests.ledger.scene import AT_ONCE, LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, STEP, WINDOW, Scene

pytestmark = pytest.mark.guarantee("G4")


def test_undoing_what_never_happened_is_recorded_and_bars_a_late_attempt(scene: Scene) -> None:
    assert isinstance(scene.begin_undo(), NothingToUndo)

    assert isinstance(scene.claim(scene.call()), Barred)

    assert scene.rows(effects) == []
    bar = scene.row(bars)
    assert (bar["run_id"], bar["step_id"]) == (RUN, STEP)
    types = [event["type"] for event in scene.events()][-2:]
    assert types == ["step.barred", "effect.refused"]


def test_a_bar_is_written_once_however_often_the_undoing_begins(scene: Scene) -> None:
    first = scene.begin_undo()
    row = scene.row(bars)

    assert scene.begin_undo() == first

    assert scene.row(bars) == row
    assert len(scene.events(type_="step.barred")) == 1


def test_a_bar_binds_its_step_and_not_the_business_key(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    scene.begin_undo()

    assert isinstance(scene.claim(scene.call(key="another key")), Barred)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Claimed)


@pytest.mark.parametrize("recovery", list(Recovery))
def test_a_bar_stops_failed_and_doubtful_entries(scene: Scene, recovery: Recovery) -> None:
    how = {"recovery": recovery, "window": WINDOW}
    scene.failed(scene.call(**how))
    doubted = scene.call(**how, step_id="doubted", key="doubted")
    scene.in_doubt(doubted)
    for step in (STEP, "doubted"):
        scene.begin_undo(step_id=step)

    assert isinstance(scene.claim(scene.call(**how, attempt=2)), Barred)
    later = scene.claim(replace(doubted, attempt=2, holder="later"))
    # Where nothing but a question could settle it, the late attempt may ask; it may not call.
    by_calling = recovery in (Recovery.DEDUPES, Recovery.TRANSACTIONAL)
    assert isinstance(later, Barred if by_calling else Doubtful)
    assert [row["calls"] for row in scene.rows(effects)] == [1, 1]


def test_the_claim_of_an_undo_marks_its_original_and_keeps_the_key(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.begin_undo()

    undoing = scene.claimed(scene.undo(committed))

    assert undoing.undoes == committed.entry_id
    assert (scene.entry(committed.entry_id)).state == "compensating"
    assert isinstance(scene.begin_undo(), ToUndo)


def test_the_commit_of_an_undo_marks_its_original_in_the_same_transaction(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    undo = scene.undo(committed)
    undoing = scene.claimed(undo)

    with pytest.raises(ZeroDivisionError), scene.tx() as tx:
        assert outcomes.commit_effect(tx, undo, undoing, Kept("u-1")) is not None
        raise ZeroDivisionError
    states = {row["state"] for row in scene.rows(effects)}
    assert states == {"compensating", "claimed"}

    scene.commit(undo, undoing, "u-1")
    original = scene.row(effects, entry_id=committed.entry_id)
    assert (original["state"], original["receipt"]) == ("compensated", "r-1")
    assert (scene.entry(undoing.entry_id)).state == "committed"
    compensated, *_ = scene.events(type_="effect.compensated")
    by = {"tool": undoing.tool, "by": undoing.entry_id}
    assert compensated["body"] == {"entry_id": committed.entry_id, **by}
    _, committed_undo = scene.events(type_="effect.committed")
    assert compensated["seq"] == committed_undo["seq"] + 1


def test_an_effect_is_undone_once_however_often_its_undoing_is_asked_for(scene: Scene) -> None:
    compensated = scene.compensated(scene.call())

    assert scene.begin_undo() == NothingToUndo("already undone")
    again = scene.claim(scene.undo(compensated))

    assert isinstance(again, Committed)
    assert (scene.row(effects, undoes=compensated.entry_id))["calls"] == 1


def test_an_undo_needs_no_approval_and_is_not_barred_by_the_bar_of_its_step(scene: Scene) -> None:
    committed = scene.committed(scene.approved(scene.call()))
    scene.begin_undo()

    assert isinstance(scene.claim(scene.undo(committed)), Claimed)


def test_an_attempt_under_way_is_waited_for_before_its_step_is_undone(scene: Scene) -> None:
    entry = scene.claimed(scene.call())

    found = scene.begin_undo()

    assert isinstance(found, Held)
    assert timedelta(0) < found.wait <= LEASE
    assert scene.entry(entry.entry_id) == entry


@pytest.mark.parametrize("made", [Scene.claimed, Scene.in_doubt])
def test_doubts_are_settled_before_an_undo(scene: Scene, made: object) -> None:
    request = scene.call()
    entry = made(scene, request)  # type: ignore[operator]

    found = scene.begin_undo(after=LEASE_OVER)

    assert isinstance(found, Doubtful)
    assert found.entry.fencing_token == entry.fencing_token + 1
    with scene.tx() as tx:
        assert outcomes.commit_effect(tx, request, entry, Kept("late")) is None


@pytest.mark.parametrize("made", [Scene.failed, Scene.answered_no, Scene.compensated])
def test_what_did_not_happen_needs_no_undo(scene: Scene, made: object) -> None:
    made(scene, scene.call())  # type: ignore[operator]

    assert isinstance(scene.begin_undo(), NothingToUndo)


def test_a_run_that_only_replayed_an_effect_does_not_undo_it(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)
    assert scene.claim(scene.call(run_id=OTHER_RUN)) == Committed(committed)

    assert isinstance(scene.begin_undo(OTHER_RUN), NothingToUndo)

    assert scene.entry(committed.entry_id) == committed


def test_a_failed_undo_is_put_in_front_of_a_human_once_and_keeps_the_key(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    with scene.tx() as tx:
        first = compensations.ask_about_undo(tx, committed, "the bank says no")
    with scene.tx() as tx:
        assert compensations.ask_about_undo(tx, committed, "again") == first

    original = scene.entry(committed.entry_id)
    assert original.state == "compensating"
    assert scene.begin_undo() == Asked(original, first, "the bank says no")
    assert len(scene.rows(interventions)) == 1
    assert len(scene.events(type_="intervention.opened")) == 1


def test_an_effect_whose_undoing_a_human_gave_up_stands(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    with scene.tx() as tx:
        intervention = compensations.ask_about_undo(tx, committed, "the bank says no")
    outcome = ResolutionOutcome.GIVE_UP
    resolution = Resolution(
        intervention_id=intervention, outcome=outcome, actor="olga", evidence="too late"
    )
    scene.settle(resolution)

    assert scene.begin_undo() == GivenUp("olga left it as it is: too late")

    assert (scene.entry(committed.entry_id)).state == "committed"


@pytest.mark.parametrize("params", [{"refund": "r-1"}, {"refund": "r-1", "note": "newer code"}])
def test_a_failed_undo_is_claimed_with_other_params(scene: Scene, params: dict[str, str]) -> None:
    committed = scene.committed(scene.call())
    scene.failed(scene.undo(committed))

    again = scene.undo(committed, params=params, attempt=2)
    scene.commit(again, scene.claimed(again))

    assert (scene.entry(committed.entry_id)).state == "compensated"


def test_a_forward_call_never_meets_an_undo(scene: Scene) -> None:
    """A run called ``undo`` has a step that is called like the entry to come."""
    entry_id = entry_id_for(scene.tenant, "payments.refund", "refund:order-1001", 1)
    scene.open_run("undo")
    key = forward_key(step_key("undo", entry_id))
    early = scene.call(
        run_id="undo", step_id=entry_id, tool="payments.charge", key=key, params={"refund": "r-1"}
    )
    scene.committed(early)
    committed = scene.committed(scene.call())

    undo = scene.undo(committed)
    assert (committed.entry_id, undo.key) == (entry_id, f"undo:{entry_id}")
    scene.commit(undo, scene.claimed(undo))

    assert (scene.entry(entry_id)).state == "compensated"


@pytest.mark.parametrize("settled", [True, False])
def test_a_claim_that_undoes_something_else_is_a_mismatch(scene: Scene, settled: bool) -> None:
    committed = scene.committed(scene.call())
    undo = scene.undo(committed)
    entry = scene.claimed(undo)
    if settled:
        scene.commit(undo, entry)

    for undoes in (None, "ef-another"):
        found = scene.claim(scene.undo(committed, undoes=undoes, attempt=2))
        assert isinstance(found, Mismatch), found
    assert (scene.entry(entry.entry_id)).fencing_token == entry.fencing_token


def test_a_step_of_an_undone_run_does_not_wait_for_its_undo(scene: Scene) -> None:
    entry = scene.compensating(scene.call())
    assert isinstance(scene.claim(scene.call()), Held)

    with scene.tx() as tx:
        run_tree.bar_tree(tx, RUN)

    # Its run was reset: nobody else undoes it but this life, once the step has ended.
    assert isinstance(scene.claim(scene.call()), Barred)
    assert isinstance(scene.begin_undo(), ToUndo)
    assert (scene.entry(entry.entry_id)).state == "compensating"


def test_what_others_have_settled_meanwhile_is_not_nothing(scene: Scene) -> None:
    call = scene.call(timeout=NOW, settle=AT_ONCE)
    scene.in_doubt(call)
    doubted = scene.begin_undo()
    assert isinstance(doubted, Doubtful)
    # The reaper has looked, too, and has found it.
    with scene.tx() as tx:
        done = reconcile.take_over(tx, doubted.entry)
    assert done is not None
    scene.commit(call, done)

    with scene.tx(LEASE_OVER) as tx:
        found = reconcile.after_not_found(tx, call, doubted.entry, forward=False)

    assert isinstance(found, Held)
    assert isinstance(scene.begin_undo(), ToUndo)
