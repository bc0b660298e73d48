"""Each delivered decision gets one recorded verdict, and one decision decides a request."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.core.tables import approvals, decisions
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.workflows.contracts.approvals import Assurance, VerifyDecision
from tests.ledger.scene import NOW, OTHER_RUN, RUN, Scene

MINUTE = timedelta(minutes=1)


def _pending(scene: Scene, gated: ClaimRequest) -> timedelta:
    return NOW


def _late(scene: Scene, gated: ClaimRequest) -> timedelta:
    return MINUTE


def _approved(scene: Scene, gated: ClaimRequest) -> timedelta:
    scene.decide(gated, "approve", approver="bob")
    return NOW


def _rejected(scene: Scene, gated: ClaimRequest) -> timedelta:
    scene.decide(gated, "reject", approver="bob")
    return NOW


def _used(scene: Scene, gated: ClaimRequest) -> timedelta:
    scene.decide(gated, "approve", approver="bob")
    scene.claimed(gated)
    return NOW


def _expired(scene: Scene, gated: ClaimRequest) -> timedelta:
    scene.close(gated, "expired", after=MINUTE)
    return NOW


def _void(scene: Scene, gated: ClaimRequest) -> timedelta:
    scene.close(gated, "void")
    return NOW


RIGHT, WRONG = "right", "wrong"
#: What the request is in when the decision arrives, the decision's hash, the verdict and the state
#: that the request is in afterwards.
TABLE: list[tuple[Any, str, str, str]] = [
    (_pending, RIGHT, "accepted", "by outcome"),
    (_pending, WRONG, "wrong_hash", "pending"),
    (_late, RIGHT, "expired", "pending"),
    (_late, WRONG, "expired", "pending"),
    (_approved, RIGHT, "already_decided", "approved"),
    (_approved, WRONG, "already_decided", "approved"),
    (_used, RIGHT, "already_decided", "approved"),
    (_rejected, RIGHT, "already_decided", "rejected"),
    (_rejected, WRONG, "already_decided", "rejected"),
    (_expired, RIGHT, "expired", "expired"),
    (_expired, WRONG, "expired", "expired"),
    (_void, RIGHT, "not_waiting", "void"),
    (_void, WRONG, "not_waiting", "void"),
]


@pytest.mark.parametrize(("given", "hash_", "code", "state"), TABLE)
@pytest.mark.parametrize("outcome", ["approve", "reject"])
def test_the_verdict_follows_from_the_request_and_only_an_accepted_one_changes_it(
    scene: Scene, given: Any, hash_: str, code: str, state: str, outcome: str
) -> None:
    gated = scene.ask_approval(scene.call(), expires_in=MINUTE)
    after = given(scene, gated)
    before = scene.row(approvals)
    changes = {} if hash_ == RIGHT else {"params_hash": "sha256:stale"}

    verdict = scene.decide(gated, outcome, after=after, **changes)

    if state == "by outcome":
        state = {"approve": "approved", "reject": "rejected"}[outcome]
    assert (verdict.code, verdict.state) == (code, state)
    row = scene.row(approvals)
    if code == "accepted":
        assert (row["state"], row["decided_by"], row["verified"]) == (state, "alice", False)
        assert row == {**before, "state": state, "decided_by": "alice", "verified": False}
    else:
        assert row == before
    type_ = "decision.accepted" if code == "accepted" else "decision.refused"
    event = (scene.events(type_=type_))[-1]
    assert event["body"]["decision_id"] == verdict.decision_id
    assert event["body"].get("reason") == (None if code == "accepted" else code)


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
            tx,
            asked,
            assurance=Assurance.OPEN,
            check_edit=lambda *_: "no",
            covers=lambda *_: None,
        )
    verdict = judged.verdict

    assert (verdict.code, verdict.message) == ("malformed", "approver: is missing")
    assert (scene.row(decisions))["verdict"] == "malformed"


@pytest.mark.parametrize(
    "other",
    [{"approver": "mallory"}, {"outcome": "reject"}, {"params_hash": "sha256:other"}],
    ids=lambda other: next(iter(other)),
)
def test_no_decision_counts_under_the_number_of_another_one(
    scene: Scene, other: dict[str, Any]
) -> None:
    gated = scene.ask_approval(scene.call())
    assert scene.decide(gated, decision_id=f"{RUN}#1").code == "accepted"

    verdict = scene.decide(gated, decision_id=f"{RUN}#1", **other)

    assert (verdict.code, verdict.state) == ("malformed", "approved")
    assert "send it again" in verdict.message
    assert scene.decide(gated, decision_id=f"{RUN}#1").code == "accepted"
    assert len(scene.rows(decisions)) == 1


@pytest.mark.parametrize("changes", [{}, {"params_hash": "sha256:stale"}])
def test_a_delivery_that_is_verified_again_gets_its_recorded_verdict(
    scene: Scene, changes: dict[str, Any]
) -> None:
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
def test_however_long_the_texts_of_a_decision_are_it_gets_a_verdict(
    scene: Scene, odd: dict[str, Any]
) -> None:
    gated = scene.ask_approval(scene.call())

    verdict = scene.decide(gated, decision_id="run-1#odd", **odd)
    again = scene.decide(gated, decision_id="run-1#odd", **odd)

    assert again.code == verdict.code
    assert len(verdict.model_dump_json()) < 5_000
    assert (scene.row(decisions))["verdict"] == verdict.code
