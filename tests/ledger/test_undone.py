"""G4: a run that relies on another one's effect is told when that is undone."""

from __future__ import annotations

import pytest

from surehand.activities.ledger.core.tables import interventions, notifications
from surehand.activities.ledger.effects import compensations
from surehand.activities.ledger.history.audit import verify_chain
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.entries import (
    Asked,
    Claimed,
    Committed,
    Entry,
)
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState
from tests.ledger.scene import OTHER_RUN, RUN, Scene


@pytest.fixture
def relying(scene: Scene) -> Scene:
    """Run 1 has committed an effect, run 2 has replayed it."""
    scene.open_run(OTHER_RUN)
    scene.committed(scene.call())
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), Committed)
    return scene


def undo(scene: Scene) -> None:
    begun = scene.begin_undo()
    request = scene.undo(begun.entry)  # type: ignore[union-attr]
    scene.commit(request, scene.claimed(request))


def undo_failed(scene: Scene, original: Entry) -> str:
    with scene.tx() as tx:
        question = compensations.failed(tx, original, "undoing it failed")
    assert question is not None
    return question


def end(scene: Scene, run_id: str, state: RunState = RunState.COMPLETED) -> None:
    with scene.tx() as tx:
        ended = CloseRun(tenant=scene.tenant, run_id=run_id, state=state)
        lifecycle.close_run(tx, ended)


def noted(intervention_id: str, outcome: ResolutionOutcome) -> Resolution:
    return Resolution(intervention_id=intervention_id, outcome=outcome, actor="ann")


def test_undoing_opens_an_intervention_in_the_run_that_has_replayed_it(
    relying: Scene,
) -> None:
    undo(relying)

    row = relying.row(interventions)
    assert (row["run_id"], row["rule"], row["state"]) == (OTHER_RUN, "undone", "open")
    assert f"run {RUN} has undone the effect" in row["question"]
    [event] = relying.events(OTHER_RUN, "intervention.opened")
    assert event["body"]["rule"] == "undone"


def test_a_run_that_was_told_makes_no_effect_before_a_human_has_taken_note(
    relying: Scene,
) -> None:
    undo(relying)
    mail = relying.call(run_id=OTHER_RUN, step_id="mail", key="mail")

    asked = relying.claim(mail)

    assert isinstance(asked, Asked)
    note = noted(asked.intervention_id, ResolutionOutcome.COMPENSATED)
    assert relying.settle(note, OTHER_RUN) == (True, "settled: compensated")
    assert isinstance(relying.claim(mail), Claimed)


@pytest.mark.parametrize(
    "outcome", [one for one in ResolutionOutcome if one is not ResolutionOutcome.COMPENSATED]
)
def test_nothing_but_taking_note_settles_it(relying: Scene, outcome: ResolutionOutcome) -> None:
    undo(relying)
    [row] = relying.rows(interventions)
    told = noted(row["intervention_id"], outcome).model_copy(update={"evidence": "x"})

    accepted, message = relying.settle(told, OTHER_RUN)

    assert not accepted and "compensated" in message


def test_what_a_human_has_undone_by_hand_is_told_too(relying: Scene) -> None:
    begun = relying.begin_undo()
    request = relying.undo(begun.entry)  # type: ignore[union-attr]
    relying.failed(request, "permanent")
    original = relying.entry(request.undoes or "")
    question = undo_failed(relying, original)

    done = noted(question, ResolutionOutcome.COMPENSATED)
    assert (relying.settle(done))[0]

    told = relying.rows(interventions, run_id=OTHER_RUN)
    assert [row["rule"] for row in told] == ["undone"]


def test_a_run_that_has_completed_on_it_is_told_and_both_chains_say_so(
    relying: Scene,
) -> None:
    end(relying, OTHER_RUN)

    undo(relying)

    row = relying.row(interventions)
    assert (row["run_id"], row["rule"], row["state"]) == (OTHER_RUN, "undone", "open")
    assert f"run {RUN} has undone the effect that this run has completed on" in row["question"]
    [owner] = relying.events(RUN, "effect.withdrawn")
    assert (owner["body"]["told"], owner["body"]["runs"]) == ([OTHER_RUN], 1)
    [told] = relying.events(OTHER_RUN, "effect.withdrawn")
    assert (told["body"]["undone_by"], told["body"]["action"]) == (RUN, "ask_human")
    for run in (RUN, OTHER_RUN):
        assert verify_chain(relying.events(run)) is None
    # Nobody asks that run any more: it is settled in the ledger, once somebody has seen to it.
    seen_to = noted(row["intervention_id"], ResolutionOutcome.COMPENSATED)
    assert relying.settle(seen_to, OTHER_RUN) == (True, "settled: compensated")


def test_a_tool_may_have_people_notified_only_of_what_a_run_has_completed_on(
    scene: Scene,
) -> None:
    for name in ("done-1", "done-2", "under-way"):
        scene.open_run(name)
    scene.committed(scene.call())
    for name in ("done-1", "done-2", "under-way"):
        replay = scene.call(run_id=name, withdrawn="notification")
        assert isinstance(scene.claim(replay), Committed)
    end(scene, "done-1")
    end(scene, "done-2")

    undo(scene)

    # A run under way must not go on without a human's word, whatever its tool says.
    assert [row["run_id"] for row in scene.rows(interventions)] == ["under-way"]
    written = scene.rows(notifications, kind="effect.withdrawn")
    assert sorted(row["run_id"] for row in written) == ["done-1", "done-2"]
    for name in ("done-1", "done-2"):
        [told] = scene.events(name, "effect.withdrawn")
        assert told["body"]["action"] == "notify"


def test_of_two_effects_that_one_step_relies_on_people_are_notified_of_each(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    made = [scene.committed(scene.call(step_id=key, key=key)) for key in ("first", "second")]
    for entry in made:
        replay = scene.call(run_id=OTHER_RUN, key=entry.key, withdrawn="notification")
        assert isinstance(scene.claim(replay), Committed)
    end(scene, OTHER_RUN)

    for entry in made:
        request = scene.undo(entry)
        scene.commit(request, scene.claimed(request))

    written = scene.rows(notifications, kind="effect.withdrawn")
    told = {word for row in written for word in row["facts"]["what"].replace(":", " ").split()}
    assert len(written) == 2 and {"first", "second"} <= told


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_a_run_that_has_failed_relies_on_nothing_any_more(relying: Scene, state: RunState) -> None:
    end(relying, OTHER_RUN, state)

    undo(relying)

    assert relying.rows(interventions) == []
    assert relying.events(RUN, "effect.withdrawn") == []


def test_the_owner_is_told_nothing_of_its_own_undoing(scene: Scene) -> None:
    scene.committed(scene.call())
    assert isinstance(scene.claim(scene.call(attempt=2)), Committed)

    undo(scene)

    assert scene.rows(interventions) == []
