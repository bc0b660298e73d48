"""Acceptance criteria of Microsoft's ADR-0030 that no other test had; ``adr_0030.yaml`` has all."""

from __future__ import annotations

from dataclasses import replace

from surehand.activities.ledger.approvals import decisions, requests
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import approvals, effects
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.steps.entries import (
    ApprovalRefused,
    Claimed,
    ClaimRequest,
    Mismatch,
)
from surehand.verify import verify_chain, verify_story
from surehand.workflows.contracts.approvals import Assurance, VerifyDecision
from surehand.workflows.plan.policy import Needs, Requirement
from tests.ledger.people import person
from tests.ledger.scene import RUN, STEP, WINDOW, Scene


def test_an_approval_of_one_digest_lets_no_other_through(scene: Scene) -> None:
    gated = scene.approved(scene.call())
    other = scene.call(params={"order": "1001", "amount": "1200.00"})
    same_id = {"gated": True, "approval_id": gated.approval_id}

    result = scene.claim(scene.call(params=other.params, **same_id))

    assert isinstance(result, Mismatch) and other.params_hash in result.reason
    assert scene.rows(effects) == []
    assert scene.row(approvals)["consumed_entry"] is None


async def test_a_restart_and_what_is_no_decision_leave_a_request_unapproved(
    scene: Scene, ledger: Ledger, ledger_url: str
) -> None:
    gated = scene.ask_approval(scene.call())
    malformed = VerifyDecision(
        tenant=scene.tenant, run_id=RUN, decision_id=f"{RUN}#odd", decision=None, refused="no JSON"
    )
    with scene.tx() as tx:
        judged = decisions.verify_decision(
            tx,
            malformed,
            assurance=Assurance.OPEN,
            check_edit=lambda *_: "no",
            covers=lambda *_: None,
        )
    assert judged.verdict.code == "malformed"
    ledger.close()

    async with open_ledger(ledger_url) as again:
        later = Scene(again, scene.tenant)
        assert later.row(approvals)["state"] == "pending"
        assert isinstance(later.claim(gated), ApprovalRefused)
        assert later.rows(effects) == []
        assert later.decide(gated).code == "accepted"  # it was waiting for nothing else
        assert isinstance(later.claim(gated), Claimed)


def test_all_stages_have_to_say_yes_and_one_no_ends_it(scene: Scene) -> None:
    person(scene, "fay", "finance")
    person(scene, "lee", "legal")
    stages = Requirement(roles=("finance",)), Requirement(roles=("legal",))

    needs = Needs(requirements=stages, expires_in=WINDOW)

    def ask(number: int) -> ClaimRequest:
        call = scene.call()
        with scene.tx() as tx:
            row = requests.request_approval(tx, call, number=number, description="", needs=needs)
        return replace(call, gated=True, approval_id=row["approval_id"])

    first = ask(1)
    assert scene.decide(first, approver="fay").state == "pending"
    assert scene.events(type_="approval.approved") == []
    assert isinstance(scene.claim(first), ApprovalRefused)
    assert scene.decide(first, "reject", approver="lee").state == "rejected"
    assert scene.decide(first, approver="lee").code != "accepted"
    assert isinstance(scene.claim(first), ApprovalRefused)

    second = ask(2)
    assert scene.decide(second, approver="lee").state == "pending"
    assert scene.decide(second, approver="fay").state == "approved"
    assert isinstance(scene.claim(second), Claimed)


async def test_events_lead_from_the_request_to_what_was_done(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(quorum=2))
    scene.decide(gated, approver="ann")
    scene.decide(gated, approver="bob")
    entry = scene.committed(gated)

    chain, _, head = await scene.ledger.transact(scene.tenant, chain_of, RUN)

    assert verify_chain(chain, [head]) is None and verify_story(chain) is None
    told = [(one["type"], one["body"]) for one in chain if one["step_id"] == STEP]
    path = {type_: body for type_, body in told}
    assert [type_ for type_, _ in told] == [
        "approval.requested",
        *["decision.accepted"] * 2,
        "approval.approved",
        "approval.consumed",
        "effect.claimed",
        "effect.committed",
    ]
    assert (path["approval.requested"]["quorum"], path["approval.requested"]["tool"]) == (
        2,
        gated.tool,
    )
    approval = ("approval.requested", "decision.accepted", "approval.approved", "approval.consumed")
    assert {path[type_]["approval_id"] for type_ in approval} == {gated.approval_id}
    hashed = ("approval.requested", "approval.consumed", "effect.claimed")
    assert {path[type_]["params_hash"] for type_ in hashed} == {gated.params_hash}
    done = ("approval.consumed", "effect.claimed", "effect.committed")
    assert {path[type_]["entry_id"] for type_ in done} == {entry.entry_id}
    votes = [body["approver"] for type_, body in told if type_ == "decision.accepted"]
    assert votes == ["ann", "bob"]
