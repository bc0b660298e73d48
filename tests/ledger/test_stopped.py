"""G4: unwinding a run that was stopped from outside leaves nothing behind it."""

from __future__ import annotations

import pytest

from surehand.activities.ledger.core.tables import approvals, notifications
from surehand.activities.ledger.core.tables import runs as run_rows
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps import acting
from surehand.activities.ledger.steps.acting import ActsElsewhere
from surehand.activities.ledger.steps.entries import Barred
from surehand.activities.maintenance import _close
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState
from tests.ledger.scene import RUN, Scene


def unwinding(scene: Scene) -> list[str]:
    """Begin to unwind, as `begin_unwind` does, and return the keys of what is to be undone."""
    with scene.tx() as tx:
        lifecycle.bar_terminated(tx, RUN)
        lifecycle.close_terminated(tx, RUN)
    return scene.remaining()


def ended(scene: Scene, state: RunState) -> None:
    with scene.tx() as tx:
        lifecycle.close_run(tx, CloseRun(tenant=scene.tenant, run_id=RUN, state=state))


def test_an_attempt_that_outlives_its_run_claims_nothing_once_it_is_unwound(
    scene: Scene,
) -> None:
    assert unwinding(scene) == []

    # Of no step, also where the plan lists none: an item of a list, a step made by code.
    for step_id in ("refund", "refund[7]", "code-3"):
        late = scene.call(step_id=step_id, key=step_id)
        assert isinstance(scene.claim(late), Barred)


def test_a_claim_that_came_first_is_undone(scene: Scene) -> None:
    scene.claimed(scene.call())

    assert unwinding(scene) == ["refund:order-1001"]


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED])
def test_a_run_that_has_ended_by_itself_is_not_unwound(scene: Scene, state: RunState) -> None:
    scene.committed(scene.call())
    ended(scene, state)

    with pytest.raises(lifecycle.EndedByItself, match=state):
        unwinding(scene)

    assert scene.events(type_="run.barred") == []


def test_what_the_reaper_has_closed_is_unwound_as_often_as_it_is_asked_for(
    scene: Scene,
) -> None:
    scene.committed(scene.call())
    with scene.tx() as tx:
        assert lifecycle.close_terminated(tx, RUN)

    assert unwinding(scene) == ["refund:order-1001"]
    assert unwinding(scene) == ["refund:order-1001"]
    assert (scene.row(run_rows))["state"] == "failed"


def test_no_approval_of_a_stopped_run_can_be_used_and_the_events_say_so(
    scene: Scene,
) -> None:
    scene.ask_approval(scene.call())
    scene.approved(scene.call(step_id="mail", key="mail"))

    unwinding(scene)

    assert {row["state"] for row in scene.rows(approvals)} == {"void"}
    voided = scene.events(type_="approval.void")
    assert [event["body"]["approval_id"] for event in voided] == ["run-1/mail/1", "run-1/refund/1"]


async def test_people_are_told_each_time_that_a_run_is_stopped(scene: Scene) -> None:
    assert await _close(scene.ledger, scene.tenant, RUN) is not None
    assert await _close(scene.ledger, scene.tenant, RUN) is None
    with scene.tx() as tx:
        acting.take_over_run(tx, ActsElsewhere(scene.tenant, RUN, "second", "first"))
    scene.committed(scene.call(execution="second"))

    stopped = await _close(scene.ledger, scene.tenant, RUN)

    assert stopped is not None and len(stopped.remaining) == 1
    told = scene.rows(notifications, kind="run.stopped")
    assert sorted(row["facts"]["what"] for row in told) == [
        f"{RUN}: 0 of its effects may stand",
        f"{RUN}: 1 of its effects may stand",
    ]
