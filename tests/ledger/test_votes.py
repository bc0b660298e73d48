"""G3: who may decide, how many have to, and that no vote counts twice, borrowed or outdated."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.tables import approvals, decisions, effects
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, Forbidden
from surehand.client.messages import claims_for, sign
from surehand.workflows.contracts.approvals import Assurance, Decision, DecisionOutcome
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import key_of, person, revoked
from tests.ledger.scene import RUN, Scene

TWO = Requirement(quorum=2, roles=("manager", "auditor"))
#: The scene's acting user.
REQUESTER = "ada"


@pytest.mark.guarantee("G3")
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


@pytest.mark.guarantee("G3")
def test_a_lax_workers_approval_does_not_pass_a_strict_workers_claim(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    refused = scene.claim(replace(gated, assurance=Assurance.SIGNED))

    assert isinstance(refused, ApprovalRefused)
    assert (scene.row(approvals))["consumed_entry"] is None


@pytest.mark.guarantee("G3")
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


@pytest.mark.guarantee("G3")
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


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("to", ["the key it had", "the key of another call"])
def test_a_call_whose_key_has_a_live_entry_is_not_edited(scene: Scene, to: str) -> None:
    mine, other = scene.call(), scene.call(key="refund:order-7", params={"order": "7"})
    taken = mine if to == "the key it had" else other
    scene.claimed(replace(taken, step_id="another", holder="another"))
    gated = scene.ask_approval(mine)
    edited = Edited({"order": "7"}, "sha256:other", other.key)

    verdict = scene.decide(gated, "edit", params=edited.params, edited=edited)

    assert (verdict.code, verdict.state) == ("not_editable", "pending")


@pytest.mark.guarantee("G3")
def test_a_user_without_the_permission_calls_nothing_and_may_when_it_is_back(scene: Scene) -> None:
    call = replace(scene.approved(scene.call()), permissions=frozenset({"refunds"}))
    assert isinstance(scene.claim(call), Forbidden)

    person(scene, REQUESTER, permissions=("refunds",))

    entry = (scene.claimed(call)).entry_id
    revoked(scene, REQUESTER, "permission", "refunds")
    after_crash = replace(call, holder="again", attempt=2, activity_key="another")
    late = timedelta(minutes=1)
    assert not isinstance(scene.claim(after_crash, late), Claimed)
    assert (scene.entry(entry)).fencing_token >= 1


MINUTE = timedelta(minutes=1)
ANY_TWO = Requirement(quorum=2)
#: Of the scene's approval.
ASKED = "run-1/refund/1"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ann", "Ann"),
        ("ann", "ann "),
        ("ann", "\u00a0ann"),
        ("ann", "a\u200bnn"),
        ("jos\u00e9", "jose\u0301"),
        ("ann", "\uff41nn"),
        ("ann lee", "ann  lee"),
        ("strasse", "stra\u00dfe"),
    ],
)
def test_spellings_do_not_multiply_one_person(scene: Scene, first: str, second: str) -> None:
    gated = scene.ask_approval(scene.call(), requirement=ANY_TWO)
    scene.decide(gated, approver=first)

    verdict = scene.decide(gated, approver=second)

    assert (verdict.code, verdict.state) == ("already_voted", "pending")
    assert isinstance(scene.claim(gated), ApprovalRefused)


@pytest.mark.parametrize("spelling", ["Ada", " ada", "ada\u200d", "\uff41da"])
def test_spellings_do_not_hide_the_requester(scene: Scene, spelling: str) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(four_eyes=True))

    assert (scene.decide(gated, approver=spelling)).code == "four_eyes"


def test_another_spelling_of_a_name_has_none_of_its_roles(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))

    for spelling in ("Ann", "ann ", "\uff41nn"):
        assert (scene.decide(gated, approver=spelling)).code == "not_permitted"


async def test_of_one_persons_votes_at_once_one_counts(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=ANY_TWO)

    verdicts = await asyncio.gather(
        *(
            asyncio.to_thread(scene.decide, gated, approver="ann", reason=str(number))
            for number in range(6)
        )
    )

    assert sorted(verdict.code for verdict in verdicts) == ["accepted", *["already_voted"] * 5]
    assert (scene.row(approvals))["state"] == "pending"


async def test_of_two_peoples_votes_at_once_both_count_and_approve_once(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=ANY_TWO)

    verdicts = await asyncio.gather(
        *(asyncio.to_thread(scene.decide, gated, approver=who) for who in ("ann", "bob"))
    )

    assert {verdict.code for verdict in verdicts} == {"accepted"}
    assert sorted(str(verdict.state) for verdict in verdicts) == ["approved", "pending"]
    assert len(scene.events(type_="approval.approved")) == 1


async def test_of_an_edit_and_an_approval_at_once_one_decides(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call())
    less = Edited({"amount": "1.00"}, "sha256:less", gated.key)

    edit, approve = await asyncio.gather(
        asyncio.to_thread(
            scene.decide, gated, "edit", approver="bob", params=less.params, edited=less
        ),
        asyncio.to_thread(scene.decide, gated, approver="ann"),
    )

    assert sorted([edit.code == "accepted", approve.code == "accepted"]) == [False, True]
    state = (scene.row(approvals))["state"]
    assert state == ("superseded" if edit.code == "accepted" else "approved")
    claimed = isinstance(scene.claim(gated), Claimed)
    assert claimed == (state == "approved")


async def test_of_an_approval_and_its_expiry_at_once_one_holds(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), expires_in=MINUTE)

    verdict, _ = await asyncio.gather(
        asyncio.to_thread(scene.decide, gated, after=MINUTE),
        asyncio.to_thread(scene.close, gated, "expired", after=MINUTE),
    )

    assert verdict.code == "expired"
    assert isinstance(scene.claim(gated, after=MINUTE), ApprovalRefused)


async def test_a_role_revoked_at_the_claim_is_before_or_after_it(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))
    scene.decide(gated, approver="ann")

    result, _ = await asyncio.gather(
        asyncio.to_thread(scene.claim, gated),
        asyncio.to_thread(revoked, scene, "ann", "role", "manager"),
    )

    assert isinstance(result, (Claimed, ApprovalRefused))
    used = (scene.row(approvals))["consumed_entry"] is not None
    assert used == isinstance(result, Claimed) == (len(scene.rows(effects)) == 1)


async def signed(
    scene: Scene, key: Ed25519PrivateKey, approver: str, params_hash: str, **changes: Any
) -> dict[str, Any]:
    """Return a decision of the scene's approval with its signature."""
    values: dict[str, Any] = {"outcome": DecisionOutcome.APPROVE, "approval_id": ASKED, **changes}
    edited = values.pop("claimed_edit", None)
    decision = Decision(approver=approver, params_hash=params_hash, **values)
    claims = claims_for(decision, scene.tenant, RUN, int(time.time()), edited=edited)
    return {**values, "approver": approver, "signature": sign(key, claims)}


async def test_a_decision_with_another_reason_than_was_signed_does_not_count(scene: Scene) -> None:
    person(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    no = {"outcome": DecisionOutcome.REJECT, "reason": "the amount is wrong"}
    said = await signed(scene, key_of(scene, "ann"), "ann", gated.params_hash, **no)

    for reason in ("pay account 7", ""):
        verdict = scene.decide(gated, **{**said, "reason": reason})
        assert (verdict.code, verdict.message) == ("bad_signature", "it is for another reason")
    assert scene.decide(gated, **said).state == "rejected"
    [counted] = scene.rows(decisions, verdict="accepted")
    assert (counted["reason"], counted["verified"]) == ("the amount is wrong", True)


@pytest.mark.parametrize("change", ["approver", "outcome", "params", "tenant"])
async def test_a_signature_fits_what_was_signed_alone(scene: Scene, change: str) -> None:
    person(scene, "ann")
    person(scene, "bob")
    key = key_of(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    signer = Scene(scene.ledger, "elsewhere") if change == "tenant" else scene
    yes = await signed(signer, key, "ann", gated.params_hash)
    swaps: dict[str, dict[str, Any]] = {
        "approver": {"approver": "bob"},
        "outcome": {"outcome": DecisionOutcome.REJECT},
        "params": {"outcome": DecisionOutcome.EDIT, "params": {"amount": "1.00"}},
        "tenant": {},
    }

    verdict = scene.decide(gated, **{**yes, **swaps[change]})

    assert (verdict.code, verdict.state, verdict.verified) == ("bad_signature", "pending", False)


@pytest.mark.parametrize("amount", [float("nan"), float("inf")])
async def test_unsignable_params_are_refused_at_once(scene: Scene, amount: float) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    edit = await signed(
        scene,
        key,
        "ann",
        gated.params_hash,
        outcome=DecisionOutcome.EDIT,
        params={"amount": amount},
        claimed_edit="sha256:0",
    )

    assert (scene.decide(gated, **edit)).code == "bad_signature"
