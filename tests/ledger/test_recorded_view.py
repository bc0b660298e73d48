"""What the ledger tells people of a run for which no worker answers, and of a recovery."""

from __future__ import annotations

from typing import get_args

import pytest

from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.ledger.effects import reconcile
from surehand.activities.ledger.history.recorded_view import _RECOVERY, recorded_view, recovery_of
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.entries import Claimed, Doubtful
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState, StepState
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.scene import LEASE_OVER, OTHER_RUN, RUN, SETTLED, Scene


def test_the_view_has_steps_effects_approvals_doubts_and_the_story(scene: Scene) -> None:
    scene.committed(scene.call(step_id="paid", key="one"), receipt={"refund_id": "r-1"})
    _, intervention = scene.asked(scene.call(step_id="lost", key="two"))
    gated = scene.ask_approval(scene.call(step_id="asks", key="three"), description="Refund 5 EUR")

    with scene.tx() as tx:
        view = recorded_view(tx, RUN)

    result = view.result
    assert (result.run_id, result.state, view.tenant) == (RUN, RunState.RUNNING, scene.tenant)
    states = {step.id: (step.state, step.output) for step in result.steps}
    assert states["paid"] == (StepState.SUCCEEDED, {"refund_id": "r-1"})
    assert states["lost"][0] is StepState.NEEDS_INTERVENTION
    assert [(one.step_id, one.state) for one in result.effects] == [
        ("paid", "committed"),
        ("lost", "in_doubt"),
    ]
    assert [(one.kind, one.id) for one in result.waiting_for] == [
        ("approval", gated.approval_id),
        ("intervention", intervention),
    ]
    [request] = view.pending
    assert (request.approval_id, request.params_hash) == (gated.approval_id, gated.params_hash)
    assert (request.description, request.params) == ("Refund 5 EUR", gated.params)
    told = [line.text for line in view.timeline]
    assert told[0].startswith("run opened") and "effect committed: payments.refund" in told
    assert len(told) == len(scene.events())


def test_an_ended_run_waits_for_nothing_and_another_tenant_s_is_not_found(scene: Scene) -> None:
    scene.ask_approval(scene.call(step_id="asks", key="three"))
    with scene.tx() as tx:
        asked = CloseRun(tenant=scene.tenant, run_id=RUN, state=RunState.FAILED)
        lifecycle.close_run(tx, asked)

    with scene.tx() as tx:
        view = recorded_view(tx, RUN)
        with pytest.raises(RunNotFound):
            recorded_view(tx, OTHER_RUN)

    assert (view.result.state, view.result.waiting_for, view.pending) == ("failed", [], [])


def test_how_an_outcome_was_found_out_is_told_of_its_own_step_alone(scene: Scene) -> None:
    first, again = (
        scene.call(recovery=Recovery.LOOKUP, step_id="refund", key="one", attempt=number)
        for number in (1, 2)
    )
    scene.claimed(first)
    later = scene.claim(again, LEASE_OVER)
    assert isinstance(later, Doubtful)
    scene.committed(scene.call(step_id="other", key="two"))
    with scene.tx(SETTLED) as tx:
        assert isinstance(reconcile.after_not_found(tx, again, later.entry, forward=True), Claimed)

    with scene.tx() as tx:
        told = recovery_of(tx, RUN, "refund")
        assert recovery_of(tx, RUN, "other") == ()

    assert [line.text for line in told] == [
        "the worker died during payments.refund, or was cut off: nobody knew whether it had"
        " happened",
        "the outside system was asked: payments.refund had not happened; it was called again",
    ]
    assert told[0].at <= told[1].at and told[0].step_id == "refund"


def test_each_proof_on_which_a_call_is_made_again_is_told() -> None:
    repeated = {*get_args(reconcile.Proof), Recovery.DEDUPES.value, Recovery.TRANSACTIONAL.value}

    assert repeated == set(_RECOVERY["effect.reconciled"])
