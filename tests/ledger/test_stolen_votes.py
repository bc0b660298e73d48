"""G3 against people: votes that are counted twice, borrowed, outdated or somebody else's."""

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
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed
from surehand.client.messages import claims_for, sign
from surehand.workflows.contracts.approvals import Assurance, Decision, DecisionOutcome
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import ADMINISTRATOR, administration, key_of, person, revoked
from tests.ledger.scene import RUN, Scene

MINUTE = timedelta(minutes=1)
TWO = Requirement(quorum=2)
TWO_MANAGERS = Requirement(quorum=2, roles=("manager",))
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
def test_one_person_is_not_two_by_another_spelling_of_the_name(
    scene: Scene, first: str, second: str
) -> None:
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver=first)

    verdict = scene.decide(gated, approver=second)

    assert (verdict.code, verdict.state) == ("already_voted", "pending")
    assert isinstance(scene.claim(gated), ApprovalRefused)


@pytest.mark.parametrize("spelling", ["Ada", " ada", "ada\u200d", "\uff41da"])
def test_the_requester_is_no_other_person_by_another_spelling_of_the_name(
    scene: Scene, spelling: str
) -> None:
    gated = scene.ask_approval(scene.call(), requirement=Requirement(four_eyes=True))

    assert (scene.decide(gated, approver=spelling)).code == "four_eyes"


def test_another_spelling_of_a_name_has_none_of_its_roles(scene: Scene) -> None:
    person(scene, "ann", "manager")
    gated = scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))

    for spelling in ("Ann", "ann ", "\uff41nn"):
        assert (scene.decide(gated, approver=spelling)).code == "not_permitted"


async def test_of_one_persons_votes_at_once_one_counts(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=TWO)

    verdicts = await asyncio.gather(
        *(
            asyncio.to_thread(scene.decide, gated, approver="ann", reason=str(number))
            for number in range(6)
        )
    )

    assert sorted(verdict.code for verdict in verdicts) == ["accepted", *["already_voted"] * 5]
    assert (scene.row(approvals))["state"] == "pending"


async def test_of_two_peoples_votes_at_once_both_count_and_approve_once(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=TWO)

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


async def test_a_role_revoked_at_the_moment_of_the_claim_is_before_it_or_after_it(
    scene: Scene,
) -> None:
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


def test_a_vote_whose_role_was_revoked_before_the_last_vote_does_not_make_the_quorum(
    scene: Scene,
) -> None:
    for name in ("ann", "bob"):
        person(scene, name, "manager")
    gated = scene.ask_approval(scene.call(), requirement=TWO_MANAGERS)
    scene.decide(gated, approver="ann")
    revoked(scene, "ann", "role", "manager")

    verdict = scene.decide(gated, approver="bob")

    assert (verdict.code, verdict.state) == ("accepted", "pending")
    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_votes_for_one_request_count_for_no_other_of_the_same_step(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(first, approver="ann")
    scene.close(first, "void")
    second = scene.ask_approval(scene.call(), requirement=TWO, number=2)

    assert (scene.decide(second, approver="bob")).state == "pending"


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


async def test_a_signature_that_was_refused_is_worth_nothing_once_the_role_is_given(
    scene: Scene,
) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    boss = Requirement(roles=("boss",))
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED, requirement=boss)
    yes = await signed(scene, key, "ann", gated.params_hash)
    assert scene.decide(gated, **yes).code == "not_permitted"
    with administration(scene) as tx:
        principals.grant(tx, "ann", "role", "boss", ADMINISTRATOR)

    assert scene.decide(gated, **yes).code == "used_signature"
    again = await signed(scene, key, "ann", gated.params_hash)
    assert scene.decide(gated, **again).state == "approved"


async def test_a_signature_is_not_used_again_after_its_request_is_asked_anew(scene: Scene) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    gated = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED, requirement=TWO)
    yes = await signed(scene, key, "ann", gated.params_hash)
    assert (scene.decide(gated, **yes)).code == "accepted"

    assert (scene.decide(gated, **yes)).code == "used_signature"
    again = scene.ask_approval(scene.call(), assurance=Assurance.SIGNED, number=2)
    stolen = {**yes, "approval_id": again.approval_id}
    assert (scene.decide(again, **stolen)).code == "bad_signature"


@pytest.mark.parametrize("change", ["approver", "outcome", "params", "tenant"])
async def test_a_signature_is_worth_nothing_with_anything_else_than_was_signed(
    scene: Scene, change: str
) -> None:
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
async def test_params_that_nobody_can_sign_are_refused_and_not_tried_for_ever(
    scene: Scene, amount: float
) -> None:
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


async def test_a_key_revoked_after_the_vote_takes_it_away_also_where_signatures_are_not_asked_for(
    scene: Scene,
) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    gated = scene.ask_approval(scene.call())
    yes = await signed(scene, key, "ann", gated.params_hash)
    assert (scene.decide(gated, **yes)).state == "approved"
    kid = (scene.row(decisions))["kid"]

    with administration(scene) as tx:
        assert principals.revoke_key(tx, "ann", kid, ADMINISTRATOR)

    assert isinstance(scene.claim(gated), ApprovalRefused)


async def test_a_key_that_was_revoked_signs_nothing_any_more(scene: Scene) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    with administration(scene) as tx:
        [kid] = (principals.find(tx, ["ann"]))["ann"].keys
        assert principals.revoke_key(tx, "ann", kid, ADMINISTRATOR)
    gated = scene.ask_approval(scene.call())

    verdict = scene.decide(gated, **await signed(scene, key, "ann", gated.params_hash))

    assert (verdict.code, verdict.state, verdict.verified) == ("bad_signature", "pending", False)


async def test_a_lax_workers_vote_is_no_half_of_a_strict_workers_quorum(scene: Scene) -> None:
    person(scene, "bob")
    key = key_of(scene, "bob")
    gated = scene.ask_approval(scene.call(), requirement=TWO)
    scene.decide(gated, approver="ann")
    strict = replace(gated, assurance=Assurance.SIGNED)

    yes = await signed(scene, key, "bob", gated.params_hash)
    verdict = scene.decide(gated, assurance=Assurance.SIGNED, **yes)

    assert (verdict.code, verdict.state) == ("accepted", "pending")
    assert isinstance(scene.claim(strict), ApprovalRefused)
