"""Each decision that arrives, early or late, gets one recorded verdict; one decides a request."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, notifications
from surehand.activities.ledger.quotas import QuotaUsedUp
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
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene

MINUTE = timedelta(minutes=1)


def test_a_decision_on_an_approval_nobody_asked_for_is_unknown(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())

    verdict = scene.decide(gated, approval_id="run-1/refund/2")

    assert (verdict.code, verdict.state) == ("unknown_approval", None)


def test_a_decision_that_arrives_at_another_run_is_unknown_there(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())
    scene.open_run(OTHER_RUN)
    elsewhere = scene.call(run_id=OTHER_RUN)

    verdict = scene.decide(elsewhere, approval_id=gated.approval_id, params_hash=gated.params_hash)

    assert (verdict.code, verdict.state) == ("unknown_approval", None)
    assert (scene.row(approvals))["state"] == "pending"


def test_what_was_no_decision_at_all_is_recorded_with_its_reason(scene: Scene) -> None:
    asked = VerifyDecision(
        tenant=scene.tenant,
        run_id=RUN,
        decision_id="run-1#1",
        decision=None,
        refused="approver: is missing",
    )
    with scene.tx() as tx:
        judged = decision_rows.verify(
            tx, asked, assurance=Assurance.OPEN, check_edit=lambda *_: "no", covers=lambda *_: None
        )
    verdict = judged.verdict

    assert (verdict.code, verdict.message) == ("malformed", "approver: is missing")
    assert (scene.row(decisions))["verdict"] == "malformed"


@pytest.mark.parametrize(
    "other",
    [{"approver": "mallory"}, {"outcome": "reject"}, {"params_hash": "sha256:other"}],
    ids=lambda other: next(iter(other)),
)
def test_each_decision_has_its_own_number(scene: Scene, other: dict[str, Any]) -> None:
    gated = scene.ask_approval(scene.call())
    assert scene.decide(gated, decision_id=f"{RUN}#1").code == "accepted"

    verdict = scene.decide(gated, decision_id=f"{RUN}#1", **other)

    assert (verdict.code, verdict.state) == ("malformed", "approved")
    assert "send it again" in verdict.message
    assert scene.decide(gated, decision_id=f"{RUN}#1").code == "accepted"
    assert len(scene.rows(decisions)) == 1


@pytest.mark.parametrize("changes", [{}, {"params_hash": "sha256:stale"}])
def test_a_repeated_delivery_gets_its_verdict(scene: Scene, changes: dict[str, Any]) -> None:
    gated = scene.ask_approval(scene.call())
    first = scene.decide(gated, decision_id="run-1#1", **changes)
    events = scene.events()

    again = scene.decide(gated, decision_id="run-1#1", **changes)

    assert again == first
    assert len(scene.rows(decisions)) == 1
    assert scene.events() == events


def test_a_second_decision_is_refused_and_kept(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())
    scene.decide(gated, "approve", decision_id="run-1#1")

    second = scene.decide(gated, "reject", decision_id="run-1#2", approver="bob", reason="too much")

    assert second.code == "already_decided"
    assert "alice" in second.message
    assert (scene.row(approvals))["state"] == "approved"
    kept = scene.row(decisions, decision_id="run-1#2")
    assert (kept["verdict"], kept["reason"]) == ("already_decided", "too much")


@pytest.mark.parametrize(
    "odd",
    [
        {"reason": "r" * 100_000},
        {"params_hash": "h" * 100_000},
        {"approval_id": "i" * 100_000},
        {"signature": "s" * 1_000_000},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_long_texts_of_a_decision_get_a_verdict(scene: Scene, odd: dict[str, Any]) -> None:
    gated = scene.ask_approval(scene.call())

    verdict = scene.decide(gated, decision_id="run-1#odd", **odd)
    again = scene.decide(gated, decision_id="run-1#odd", **odd)

    assert again.code == verdict.code
    assert len(verdict.model_dump_json()) < 5_000
    assert (scene.row(decisions))["verdict"] == verdict.code


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


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("outcome", "state"), [("approve", "approved"), ("reject", "rejected"), ("edit", "superseded")]
)
def test_nobody_is_told_of_early_decisions(scene: Scene, outcome: str, state: str) -> None:
    gated = ask(scene, scene.call(), ("ann", outcome))

    assert scene.row(approvals)["state"] == state
    assert scene.rows(notifications) == []
    told = [event["type"] for event in scene.events()]
    assert told[1:] == ["approval.requested", "decision.accepted", f"approval.{state}"]
    assert isinstance(scene.claim(gated), Claimed) == (outcome == "approve")


@pytest.mark.guarantee("G3")
def test_of_a_request_that_still_waits_after_that_people_are_told(scene: Scene) -> None:
    person(scene, "ann", "finance")
    two = Requirement(quorum=2, roles=("finance",))

    ask(scene, scene.call(), ("ann", "approve"), ("eve", "approve"), requirement=two)

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "not_permitted"]
    assert scene.row(approvals)["state"] == "pending"
    assert scene.row(notifications)["subject"] == FIRST


@pytest.mark.guarantee("G3")
def test_whoever_was_enough_decides_and_who_came_later_is_told_so(scene: Scene) -> None:
    ask(scene, scene.call(), ("ann", "approve"), ("bob", "reject"))

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "already_decided"]
    assert scene.row(approvals)["state"] == "approved"


@pytest.mark.guarantee("G3")
def test_a_request_that_is_decided_already_needs_no_place(scene: Scene) -> None:
    limited(scene, pending_approvals=0)

    ask(scene, scene.call(), ("ann", "approve"))
    with pytest.raises(QuotaUsedUp):
        ask(scene, scene.call(step_id="other", key="other"), ("ann", "approve"))

    assert scene.row(approvals)["state"] == "approved"


@pytest.mark.guarantee("G3")
def test_a_retried_request_counts_its_early_decision_once(scene: Scene) -> None:
    for _ in range(2):
        ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"))

    assert [row["verdict"] for row in scene.rows(decisions)] == ["accepted", "already_decided"]
    assert len(scene.events(type_="approval.approved")) == 1
    # A run that was reset asks anew, and may hear for the first time what others have said since.
    ask(scene, scene.call(), ("ann", "approve"), ("ann", "approve"), ("bob", "reject"))
    assert [row["verdict"] for row in scene.rows(decisions)][2:] == ["already_decided"]
