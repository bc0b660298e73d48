"""What an audit says beside the breaks: what a run has left open, from its events alone."""

from __future__ import annotations

from surehand.activities.ledger.effects import compensations
from surehand.activities.ledger.history.open_items import OpenItems, open_items
from surehand.activities.ledger.runs import lifecycle
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState
from tests.ledger.scene import RUN, Scene

NOTHING = OpenItems([], [], [], [])


def left_by(scene: Scene, state: RunState | None) -> OpenItems:
    """Close the run, unless it goes on, and return what its events leave open."""
    if state is not None:
        with scene.tx() as tx:
            lifecycle.close_run(tx, CloseRun(tenant=scene.tenant, run_id=RUN, state=state))
    return open_items(scene.events())


def test_a_standing_effect_is_open_only_if_it_should_be_undone(
    scene: Scene,
) -> None:
    entry = scene.committed(scene.call())

    assert left_by(scene, None) == NOTHING
    named = f"payments.refund (step refund, entry {entry.entry_id})"
    assert (left_by(scene, RunState.CANCELLED)).uncompensated == [named]


def test_a_completed_run_leaves_its_effects_and_nothing_open(scene: Scene) -> None:
    scene.committed(scene.call())

    assert left_by(scene, RunState.COMPLETED) == NOTHING


def test_what_was_undone_and_what_undid_it_are_not_open(scene: Scene) -> None:
    scene.compensated(scene.call())

    assert left_by(scene, RunState.FAILED) == NOTHING


def test_a_proven_failure_and_a_no_are_not_open(scene: Scene) -> None:
    scene.failed(scene.call())
    scene.answered_no(scene.call(key="other"))

    assert left_by(scene, RunState.FAILED) == NOTHING


def test_doubt_and_its_open_question_are_told_until_a_human_answers(scene: Scene) -> None:
    entry, question = scene.asked(scene.call())
    left = left_by(scene, None)
    assert (len(left.in_doubt), left.interventions) == (1, [question])

    answer = Resolution(
        intervention_id=question, outcome=ResolutionOutcome.NOT_HAPPENED, actor="olga"
    )
    assert (scene.settle(answer))[0]

    assert entry.entry_id in left.in_doubt[0]
    assert left_by(scene, None) == NOTHING


def test_an_effect_in_part_stays_in_part_when_a_human_gives_up(scene: Scene) -> None:
    _, question = scene.asked(scene.call(), partial=True)
    asked = left_by(scene, None)
    assert (len(asked.partial), asked.in_doubt, asked.interventions) == (1, [], [question])
    answer = Resolution(intervention_id=question, outcome=ResolutionOutcome.GIVE_UP, actor="olga")
    assert (scene.settle(answer))[0]

    left = left_by(scene, RunState.FAILED)

    assert (len(left.partial), left.in_doubt, left.interventions) == (1, [], [])


def test_a_call_without_an_outcome_is_in_doubt_once_its_run_has_ended(scene: Scene) -> None:
    scene.claimed(scene.call())

    assert left_by(scene, None) == NOTHING
    assert len((left_by(scene, RunState.FAILED)).in_doubt) == 1


def test_an_undo_that_failed_leaves_its_original_uncompensated(scene: Scene) -> None:
    entry = scene.committed(scene.call())
    with scene.tx() as tx:
        question = compensations.failed(tx, entry, "undoing it failed")

    left = left_by(scene, RunState.FAILED)

    assert (len(left.uncompensated), left.interventions) == (1, [question])


def test_a_run_stopped_from_outside_is_told_as_not_undone(
    scene: Scene,
) -> None:
    entry = scene.committed(scene.call())

    with scene.tx() as tx:
        assert lifecycle.close_terminated(tx, RUN)

    named = f"payments.refund (step refund, entry {entry.entry_id})"
    assert (left_by(scene, None)).uncompensated == [named]
