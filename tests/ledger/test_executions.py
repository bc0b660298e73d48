"""G1 and G4: of a run's executions the newest acts, and no attempt of an earlier one makes more."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.ledger.core.tables import bars, effects, interventions, steps
from surehand.activities.ledger.core.tables import runs as run_rows
from surehand.activities.ledger.effects import claims, outcomes, reconcile, run_tree
from surehand.activities.ledger.history.open_items import open_items
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.runs.lifecycle import (
    EndedByItself,
    bar_terminated,
    close_terminated,
    not_closed,
)
from surehand.activities.ledger.steps import acting
from surehand.activities.ledger.steps.acting import ActsElsewhere
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Barred, Committed, Doubtful
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.runs import CloseRun, OpenRun
from surehand.workflows.contracts.states import RunState
from tests.ledger.scene import LEASE, LEASE_OVER, OTHER_RUN, RUN, SETTLED, STEP, Scene

FIRST, SECOND, THIRD = "first", "second", "third"


def refused(scene: Scene, execution: str, **changes: Any) -> ActsElsewhere:
    """Have an execution claim, and return how it is refused."""
    with pytest.raises(ActsElsewhere) as found:
        scene.claim(scene.call(execution=execution, **changes))
    return found.value


def goes_on(scene: Scene, execution: str = SECOND) -> ActsElsewhere:
    """Let another execution act for the run, which Temporal has called the newest."""
    found = refused(scene, execution)
    with scene.tx() as tx:
        acting.take_over_run(tx, found)
    return found


def goes_on_elsewhere(scene: Scene) -> None:
    """Let another execution act that has not come to this step yet."""
    with scene.tx() as tx:
        acting.take_over_run(tx, ActsElsewhere(scene.tenant, RUN, SECOND, FIRST))


def ends(
    scene: Scene, state: RunState = RunState.COMPLETED, execution: str = FIRST, **more: Any
) -> None:
    with scene.tx() as tx:
        if state is not RunState.COMPLETED:
            run_tree.bar(tx, RUN)
        asked = CloseRun(tenant=scene.tenant, run_id=RUN, state=state, **more)
        lifecycle.close_run(tx, asked, execution)


def test_an_attempt_of_an_earlier_execution_claims_nothing(scene: Scene) -> None:
    goes_on(scene)

    assert (refused(scene, FIRST)).acting == SECOND
    assert scene.remaining() == []
    scene.committed(scene.call(execution=SECOND))


def test_an_attempt_that_outlives_the_run_claims_nothing_once_a_later_life_has_completed(
    scene: Scene,
) -> None:
    ends(scene)
    goes_on(scene)
    ends(scene, execution=SECOND)

    refused(scene, FIRST, step_id="late", key="late")
    assert scene.remaining() == []


def test_an_attempt_that_is_in_its_lookup_when_it_is_overtaken_claims_nothing(
    scene: Scene,
) -> None:
    scene.in_doubt(scene.call(execution=FIRST))
    late = scene.call(execution=FIRST, attempt=2)
    doubted = scene.claim(late, LEASE_OVER)
    assert isinstance(doubted, Doubtful)
    goes_on_elsewhere(scene)

    with pytest.raises(ActsElsewhere), scene.tx(SETTLED) as tx:
        reconcile.after_not_found(tx, late, doubted.entry, forward=True)

    assert scene.entry(doubted.entry.entry_id) == doubted.entry


def test_what_an_overtaken_attempt_has_not_found_is_recorded_all_the_same(scene: Scene) -> None:
    scene.in_doubt(scene.call(execution=FIRST))
    late = scene.call(execution=FIRST, attempt=2)
    doubted = scene.claim(late, LEASE_OVER)
    assert isinstance(doubted, Doubtful)
    goes_on_elsewhere(scene)

    with scene.tx(SETTLED) as tx:
        found = reconcile.after_not_found(tx, late, doubted.entry, forward=False)

    assert isinstance(found, Barred)
    assert scene.entry(doubted.entry.entry_id).state == "failed"


def test_a_write_of_an_earlier_execution_is_not_claimed_with_the_outcome_before_it(
    scene: Scene,
) -> None:
    first = scene.call(execution=FIRST)
    entry = scene.claimed(first)
    goes_on(scene)
    with scene.tx() as tx:
        assert outcomes.commit(tx, first, entry, Kept("r-1")) is not None
        following = scene.call(execution=FIRST, step_id="next", key="next")
        assert claims.claim_at_once(tx, following) is None

    assert scene.remaining() == [first.key]


def test_what_is_done_for_a_run_from_outside_is_no_execution_of_it(scene: Scene) -> None:
    goes_on(scene)

    scene.committed(scene.call(execution=None))


async def undoes_late(
    scene: Scene, entry_id: str, run_id: str, toolbox: Toolbox | None = None, **more: Any
) -> None:
    """Have the first execution of ``RUN`` undo an effect, as an activity that thaws."""
    context = WorkerContext(
        *(scene.ledger, toolbox or Toolbox([]), scene.artifacts, Crash(), LEASE, LEASE / 3)
    )
    its = {"tenant": scene.tenant, "run_id": run_id, "step_id": STEP, "user": "ada"}
    asked = Compensate.model_validate({**its, "entry_id": entry_id, **more})
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_id=RUN, workflow_run_id=FIRST)
    # Whether it is the newest again only Temporal could say, which is not there.
    with pytest.raises(RuntimeError, match="client"):
        await environment.run(CompensationActivities(context).compensate, asked)


async def test_an_attempt_of_an_earlier_execution_undoes_nothing(scene: Scene) -> None:
    made = scene.committed(scene.call(execution=FIRST))
    goes_on(scene)
    assert isinstance(scene.claim(scene.call(execution=SECOND)), Committed)
    ends(scene, execution=SECOND)

    await undoes_late(scene, made.entry_id, RUN)

    assert scene.rows(bars) == []
    assert scene.entry(made.entry_id).state == "committed"


async def test_an_attempt_that_freezes_once_it_has_looked_asks_nothing_of_a_later_life(
    scene: Scene,
) -> None:
    made = scene.committed(scene.call(execution=FIRST))

    class Freezing(Toolbox):
        def get(self, name: str) -> None:
            """Say that the tool is not there, long after it was asked for."""
            goes_on_elsewhere(scene)
            ends(scene, execution=SECOND)

    await undoes_late(scene, made.entry_id, RUN, Freezing([]))

    assert scene.rows(interventions) == []
    assert scene.entry(made.entry_id).state == "committed"


async def test_an_attempt_of_an_earlier_execution_undoes_nothing_of_a_child_run(
    scene: Scene,
) -> None:
    scene.open_run(OTHER_RUN)
    made = scene.committed(scene.call(run_id=OTHER_RUN))
    goes_on(scene)

    await undoes_late(scene, made.entry_id, OTHER_RUN, within=RUN)

    assert scene.rows(bars) == []
    assert scene.entry(made.entry_id).state == "committed"


@pytest.mark.parametrize("within", [None, RUN])
def test_an_undo_that_an_earlier_execution_has_begun_is_not_claimed_any_more(
    scene: Scene, within: str | None
) -> None:
    run_id = RUN if within is None else OTHER_RUN
    if within is not None:
        scene.open_run(OTHER_RUN)
    made = scene.committed(scene.call(run_id=run_id))
    goes_on(scene)

    with pytest.raises(ActsElsewhere) as found:
        scene.claim(scene.undo(made, execution=FIRST, within=within))

    assert found.value.run_id == RUN
    assert [row["entry_id"] for row in scene.rows(effects)] == [made.entry_id]
    scene.claimed(scene.undo(made, execution=SECOND, within=within))


def test_an_execution_that_was_the_newest_when_it_asked_does_not_act_after_a_newer_one(
    scene: Scene,
) -> None:
    late = refused(scene, SECOND)
    goes_on(scene, THIRD)
    with scene.tx() as tx:
        acting.take_over_run(tx, late)

    assert (scene.row(run_rows))["execution"] == THIRD


def test_an_earlier_execution_neither_opens_the_run_nor_ends_it(scene: Scene) -> None:
    goes_on(scene)
    opening = OpenRun(request=scene.start(RUN), execution=FIRST)
    with pytest.raises(ActsElsewhere), scene.tx() as tx:
        lifecycle.open_run(tx, opening, {}, execution=FIRST)
    with pytest.raises(ActsElsewhere):
        ends(scene)

    assert (scene.row(run_rows))["closed_ms"] is None


def test_a_completed_run_that_is_reset_is_open_again(scene: Scene) -> None:
    scene.committed(scene.call())
    ends(scene)
    goes_on(scene)

    assert (scene.row(run_rows))["state"] == "running"
    [reopened] = scene.events(type_="run.reopened")
    assert reopened["body"] == {"was": "completed", "rule": "reset"}
    with scene.tx() as tx:
        assert not_closed(tx, [RUN]) == [RUN]
        bar_terminated(tx, RUN)
        assert close_terminated(tx, RUN)


def test_a_second_life_that_fails_is_on_record_as_failed(scene: Scene) -> None:
    scene.committed(scene.call())
    ends(scene)
    goes_on(scene)
    assert open_items(scene.events()).uncompensated == []
    ends(scene, RunState.FAILED, SECOND)

    assert (scene.row(run_rows))["state"] == "failed"
    assert len(open_items(scene.events()).uncompensated) == 1


def test_what_a_life_has_skipped_the_next_one_may_skip_as_well(scene: Scene) -> None:
    ends(scene, skipped={"mail": "mail.send"})
    goes_on(scene)
    ends(scene, execution=SECOND, skipped={"mail": "mail.send", "refund": "payments.refund"})

    assert [one["step_id"] for one in scene.rows(steps)] == ["mail", "refund"]


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_a_run_whose_late_attempts_are_refused_stays_as_it_has_ended(
    scene: Scene, state: RunState
) -> None:
    ends(scene, state)
    goes_on(scene)

    assert (scene.row(run_rows))["state"] == state
    assert scene.events(type_="run.reopened") == []
    with pytest.raises(EndedByItself), scene.tx() as tx:
        bar_terminated(tx, RUN)
