"""Who may decide, how many have to, and that it still holds right before the call (G3)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.tables import approvals, decisions
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.steps.entries import (
    ApprovalRefused,
    Claimed,
    Forbidden,
)
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import administration, person, revoked
from tests.ledger.scene import Scene

pytestmark = pytest.mark.guarantee("G3")

MANAGER = Requirement(roles=("manager",))
TWO = Requirement(quorum=2, roles=("manager", "auditor"))
FOUR_EYES = Requirement(four_eyes=True)
#: The scene's acting user.
REQUESTER = "ada"


def test_an_approver_without_the_role_is_refused_and_nothing_changes(scene: Scene) -> None:
    person(scene, "ann", "clerk")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)

    for approver in ("ann", "nobody"):
        for outcome in ("approve", "reject"):
            verdict = scene.decide(gated, outcome, approver=approver)
            assert (verdict.code, verdict.state) == ("not_permitted", "pending")
    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_the_quorum_counts_different_people_and_the_last_one_approves(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "auditor")
    gated = scene.ask_approval(scene.call(), requirement=TWO)

    first = scene.decide(gated, approver="ann")
    assert (first.code, first.state) == ("accepted", "pending")
    assert "1 of 2" in first.message
    assert isinstance(scene.claim(gated), ApprovalRefused)
    again = scene.decide(gated, approver="ann", reason="once more")
    assert (again.code, again.state) == ("already_voted", "pending")

    second = scene.decide(gated, approver="bob")
    assert (second.code, second.state) == ("accepted", "approved")
    assert isinstance(scene.claim(gated), Claimed)


def test_one_who_may_decide_can_reject_what_others_have_approved(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "manager")
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver="ann")

    verdict = scene.decide(gated, "reject", approver="bob")

    assert (verdict.code, verdict.state) == ("accepted", "rejected")
    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_whoever_has_voted_may_think_again_and_reject(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver="ann")

    verdict = scene.decide(gated, "reject", approver="ann")

    assert (verdict.code, verdict.state) == ("accepted", "rejected")


def test_four_eyes_keep_the_requester_from_deciding(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=FOUR_EYES)

    verdict = scene.decide(gated, approver=REQUESTER)

    assert (verdict.code, verdict.state) == ("four_eyes", "pending")
    assert (scene.decide(gated, approver="carl")).state == "approved"


def test_every_policy_has_to_be_satisfied_by_itself(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "bob", "auditor")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    scene.decide(gated, approver="ann")
    stricter = replace(gated, requirements=(Requirement(roles=("auditor",)),))

    refused = scene.claim(stricter)

    assert isinstance(refused, ApprovalRefused)
    assert "0 of 1 approvals of auditor" in refused.reason
    assert isinstance(scene.claim(gated), Claimed)


def test_a_role_taken_away_before_the_call_takes_the_vote_away(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    assert (scene.decide(gated, approver="ann")).state == "approved"

    revoked(scene, "ann", "role", "manager")

    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_a_role_taken_away_between_two_calls_stops_the_second(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    scene.decide(gated, approver="ann")
    scene.failed(gated)

    revoked(scene, "ann", "role", "manager")

    assert isinstance(scene.claim(replace(gated, holder="again", attempt=2)), ApprovalRefused)


@pytest.mark.parametrize("stricter", ["the row", "the worker"])
def test_where_signatures_are_asked_for_an_unsigned_decision_counts_for_nothing(
    scene: Scene, stricter: str
) -> None:
    row = Assurance.SIGNED if stricter == "the row" else Assurance.OPEN
    worker = Assurance.SIGNED if stricter == "the worker" else Assurance.OPEN
    gated = scene.ask_approval(scene.call(), assurance=row)

    verdict = scene.decide(gated, assurance=worker)

    assert (verdict.code, verdict.state) == ("unsigned", "pending")


def test_a_lax_workers_approval_does_not_pass_a_strict_workers_claim(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    refused = scene.claim(replace(gated, assurance=Assurance.SIGNED))

    assert isinstance(refused, ApprovalRefused)
    assert (scene.row(approvals))["consumed_entry"] is None


def test_an_edit_voids_the_request_and_the_votes_it_had(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(quorum=2))
    scene.decide(gated, approver="ann")
    less = Edited({"order": "1001", "amount": "50.00"}, "sha256:less", "refund:order-1001")

    edit = scene.decide(gated, "edit", approver="bob", params=less.params, edited=less)

    assert (edit.code, edit.state) == ("accepted", "superseded")
    late = scene.decide(gated, approver="carl")
    assert (late.code, late.state) == ("not_waiting", "superseded")
    assert isinstance(scene.claim(gated), ApprovalRefused)
    [kept] = scene.rows(decisions, outcome="edit")
    assert (kept["edited"], kept["verdict"]) == (less.params, "accepted")
    assert (scene.row(approvals))["params"] == {"order": "1001", "amount": "120.00"}


def test_only_who_may_edit_can_and_only_to_what_the_tool_takes(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "eve", "editor", "manager")
    requirement = Requirement(roles=("manager",), may_edit=("editor",))
    gated = scene.ask_approval(scene.call(), requirement=requirement)
    less = Edited({"amount": "50.00"}, "sha256:less", "refund:order-1001")

    for approver, edited, code in [
        ("ann", less, "not_permitted"),
        ("eve", "amount: must be a number", "not_editable"),
        ("eve", Edited({}, gated.params_hash, gated.key), "not_editable"),
    ]:
        verdict = scene.decide(gated, "edit", approver=approver, params={}, edited=edited)
        assert (verdict.code, verdict.state) == (code, "pending")


@pytest.mark.parametrize("to", ["the key it had", "the key of another call"])
def test_a_call_whose_key_has_a_live_entry_is_not_edited(scene: Scene, to: str) -> None:
    mine, other = scene.call(), scene.call(key="refund:order-7", params={"order": "7"})
    taken = mine if to == "the key it had" else other
    scene.claimed(replace(taken, step_id="another", holder="another"))
    gated = scene.ask_approval(mine)
    edited = Edited({"order": "7"}, "sha256:other", other.key)

    verdict = scene.decide(gated, "edit", params=edited.params, edited=edited)

    assert (verdict.code, verdict.state) == ("not_editable", "pending")


def test_a_user_without_the_permission_calls_nothing_and_may_when_it_is_back(
    scene: Scene,
) -> None:
    call = replace(scene.approved(scene.call()), permissions=frozenset({"refunds"}))
    assert isinstance(scene.claim(call), Forbidden)

    person(scene, REQUESTER, permissions=("refunds",))

    entry = (scene.claimed(call)).entry_id
    revoked(scene, REQUESTER, "permission", "refunds")
    after_crash = replace(call, holder="again", attempt=2, activity_key="another")
    late = timedelta(minutes=1)
    assert not isinstance(scene.claim(after_crash, late), Claimed)
    assert (scene.entry(entry)).fencing_token >= 1


def test_another_tenants_roles_count_for_nothing(scene: Scene) -> None:
    person(Scene(scene.ledger, "elsewhere"), "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=MANAGER)

    assert (scene.decide(gated, approver="ann")).code == "not_permitted"


def test_revoking_twice_changes_nothing_and_history_says_who_did(scene: Scene) -> None:
    person(scene, "ann", "manager")
    with administration(scene) as tx:
        assert principals.revoke(tx, "ann", "role", "manager", "root")
        assert not principals.revoke(tx, "ann", "role", "manager", "root")
        assert principals.grant(tx, "ann", "role", "manager", "root")

    gated = scene.ask_approval(scene.call(), requirement=MANAGER)
    assert (scene.decide(gated, approver="ann")).state == "approved"
