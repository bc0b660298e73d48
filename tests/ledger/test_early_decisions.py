"""A decision that comes before its request is counted as the request is written (G3).

No request that is decided already is shown, counted or told as waiting.
"""

from __future__ import annotations

from typing import Any

import pytest

from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, notifications
from surehand.activities.ledger.quotas.limits import QuotaUsedUp
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest
from surehand.workflows.contracts.approvals import (
    Assurance,
    Decision,
    DecisionOutcome,
    VerifyDecision,
)
from surehand.workflows.identity import approval_id
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import person
from tests.ledger.quotas import limited
from tests.ledger.scene import RUN, STEP, Scene

pytestmark = pytest.mark.guarantee("G3")

FIRST = approval_id(RUN, STEP, 1)


def ask(
    scene: Scene,
    call: ClaimRequest,
    *said: tuple[str, str],
    requirement: Requirement = Requirement(),  # noqa: B008
) -> ClaimRequest:
    """Ask about a call on which people, each with an outcome, have decided before."""
    asked = [
        VerifyDecision(
            tenant=scene.tenant,
            run_id=RUN,
            decision_id=f"{RUN}#first.{number}",
            decision=Decision(
                approval_id=FIRST,
                params_hash=call.params_hash,
                outcome=DecisionOutcome(outcome),
                approver=approver,
                params={"amount": "1"} if outcome == "edit" else None,
            ),
        )
        for number, (approver, outcome) in enumerate(said)
    ]
    how: dict[str, Any] = {
        "assurance": Assurance.OPEN,
        "check_edit": lambda _row, params: Edited(dict(params), "sha256:less", call.key),
        "covers": lambda _row, scope: call.covers(scope),
    }

    def judge(tx: Transaction) -> bool:
        for one in asked:
            decision_rows.verify(tx, one, **how)
        return bool(asked)

    return scene.ask_approval(call, requirement=requirement, judge_early=judge)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("approve", "approved"), ("reject", "rejected"), ("edit", "superseded")],
)
def test_of_a_request_that_was_decided_before_it_was_made_nobody_is_told(
    scene: Scene, outcome: str, state: str
) -> None:
    gated = ask(scene, scene.call(), ("ann", outcome))

    assert scene.row(approvals)["state"] == state
    assert scene.rows(notifications) == []
    told = [event["type"] for event in scene.events()]
    assert told[1:] == ["approval.requested", "decision.accepted", f"approval.{state}"]
    assert isinstance(scene.claim(gated), Claimed) == (outcome == "approve")


def test_of_a_request_that_still_waits_after_that_people_are_told(scene: Scene) -> None:
    person(scene, "ann", "finance")
    two = Requirement(quorum=2, roles=("finance",))

    ask(scene, scene.call(), ("ann", "approve"), ("eve", "approve"), requirement=two)

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "not_permitted"]
    assert scene.row(approvals)["state"] == "pending"
    assert scene.row(notifications)["subject"] == FIRST


def test_whoever_was_enough_decides_and_who_came_later_is_told_so(scene: Scene) -> None:
    ask(scene, scene.call(), ("ann", "approve"), ("bob", "reject"))

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "already_decided"]
    assert scene.row(approvals)["state"] == "approved"


def test_a_request_that_is_decided_already_needs_no_place(scene: Scene) -> None:
    limited(scene, pending_approvals=0)

    ask(scene, scene.call(), ("ann", "approve"))
    with pytest.raises(QuotaUsedUp):
        ask(scene, scene.call(step_id="other", key="other"), ("ann", "approve"))

    assert scene.row(approvals)["state"] == "approved"


def test_a_request_whose_activity_is_tried_again_counts_an_early_decision_once(
    scene: Scene,
) -> None:
    for _ in range(2):
        ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"))

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "already_decided"]
    assert len(scene.events(type_="approval.approved")) == 1
    # A run that was reset asks anew, and may hear for the first time what others have said since.
    ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"), ("bob", "reject"))
    assert [row["verdict"] for row in scene.rows(decisions)][2:] == ["already_decided"]
