"""G3 with passkeys: a vote counts by the gesture that was made for it, and for nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import approvals, decisions, effects
from surehand.activities.ledger.history.audit import first_unproven
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, ClaimRequest
from surehand.client.messages import claims_for
from surehand.verify import verify_story
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Assurance, Decision, DecisionOutcome, Verdict
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import (
    ADMINISTRATOR,
    administration,
    key_of,
    passkey_of,
    person,
    signature,
)
from tests.ledger.scene import OTHER_RUN, RUN, Scene
from tests.ledger.standing import ask, granted
from tests.ledger.test_forged_votes import forge, may_read
from tests.ledger.test_standing import state_of
from tests.ledger.test_standing_attacks import smuggle
from tests.passkeys import ORIGIN, Authenticator, as_json, digest_of, put_together

FINANCE: Final = Requirement(roles=("finance",))
EDIT: Final = Edited({"order": "1001", "amount": "1.00"}, "sha256:edited", "refund:order-1001")


@pytest.fixture(autouse=True)
def pages(ledger: Ledger) -> Iterator[None]:
    """The worker's setting."""
    ledger.passkey_origins = (ORIGIN,)
    yield
    ledger.passkey_origins = ()


@pytest.fixture
def passkey(scene: Scene) -> Authenticator:
    person(scene, "ann", "finance")
    return passkey_of(scene, "ann")


def asked(scene: Scene, proof: Any = "passkey", **changes: Any) -> ClaimRequest:
    """Ask for an approval that a passkey has to give."""
    call = scene.call(**changes)
    return scene.ask_approval(call, requirement=FINANCE, proof=proof)


def claims(
    scene: Scene, gated: ClaimRequest, *, run_id: str = RUN, edited: str | None = None, **of: Any
) -> dict[str, Any]:
    values = {
        "approval_id": gated.approval_id,
        "params_hash": gated.params_hash,
        "outcome": DecisionOutcome.APPROVE,
        "approver": "ann",
        **of,
    }
    made = claims_for(Decision(**values), scene.tenant, run_id, int(time.time()), edited=edited)
    return made.model_dump(mode="json", exclude_none=True)


def by(scene: Scene, gated: ClaimRequest, proof: str, **how: Any) -> Verdict:
    return scene.decide(gated, **{"approver": "ann", "signature": proof, **how})


def refused(scene: Scene, gated: ClaimRequest, proof: str, **how: Any) -> str:
    """Deliver it, see that it changes nothing, and return the verdict in one line."""
    verdict = by(scene, gated, proof, **how)

    assert verdict.code != "accepted" and not verdict.verified
    state = scene.row(approvals, approval_id=gated.approval_id)["state"]
    assert (state, scene.row(decisions, decision_id=verdict.decision_id)["kid"]) == (
        "pending", None
    )  # fmt: skip
    assert not isinstance(scene.claim(gated), Claimed)
    assert scene.rows(effects) == []
    assert "\n" not in verdict.message
    return f"{verdict.code}: {verdict.message}"


async def story(scene: Scene) -> str | None:
    events, _, _ = await scene.ledger.transact(scene.tenant, chain_of, RUN)
    found = verify_story(events)
    return None if found is None else str(found)


# A vote by passkey


MADE: Final = {
    "ES256": Authenticator(),
    "EdDSA": Authenticator(Ed25519PrivateKey.generate()),
    "RS256": Authenticator(rsa.generate_private_key(65537, 2048)),
}


@pytest.mark.parametrize("kind", MADE)
async def test_a_gesture_made_for_this_call_has_it_made_once(scene: Scene, kind: str) -> None:
    person(scene, "ann", "finance")
    passkey = passkey_of(scene, "ann", MADE[kind])
    gated = asked(scene)

    verdict = by(scene, gated, proof := passkey.proof(claims(scene, gated)))

    assert (verdict.code, verdict.state, verdict.verified) == ("accepted", "approved", True)
    row = scene.row(decisions)
    assert (row["kid"], row["signature"], row["verified"]) == (passkey.kid, proof, True)
    [told] = scene.events(type_="decision.accepted")
    assert (told["body"]["proof"], told["body"]["kid"]) == ("passkey", passkey.kid)
    assert scene.row(approvals)["assurance"] == "passkey"
    assert isinstance(scene.claim(gated), Claimed) and may_read(scene, gated)
    assert await scene.broken() is None and await story(scene) is None
    assert len(scene.rows(effects)) == 1


def test_one_gesture_decides_each_call_of_its_list(scene: Scene, passkey: Authenticator) -> None:
    scene.open_run(OTHER_RUN)
    first = asked(scene)
    second = asked(scene, run_id=OTHER_RUN, key="refund:order-1002")
    proofs = passkey.proofs(
        claims(scene, first),
        claims(scene, second, run_id=OTHER_RUN, outcome=DecisionOutcome.REJECT),
    )

    assert by(scene, first, proofs[0]).state == "approved"
    assert by(scene, second, proofs[1], outcome="reject").state == "rejected"

    assert isinstance(scene.claim(first), Claimed)
    assert not isinstance(scene.claim(second), Claimed)


def test_a_gesture_counts_where_less_is_asked_for(scene: Scene, passkey: Authenticator) -> None:
    for number, assurance in enumerate((Assurance.OPEN, Assurance.SIGNED)):
        call = scene.call(step_id=f"s{number}", key=f"k{number}")
        gated = scene.ask_approval(call, requirement=FINANCE, assurance=assurance)
        assert by(scene, gated, passkey.proof(claims(scene, gated))).state == "approved"
        assert isinstance(scene.claim(gated), Claimed)


def test_an_edit_by_passkey_asks_anew(scene: Scene, passkey: Authenticator) -> None:
    gated = asked(scene)
    of = claims(scene, gated, outcome=DecisionOutcome.EDIT, edited=digest(EDIT.params))

    verdict = by(scene, gated, passkey.proof(of), outcome="edit", params=EDIT.params, edited=EDIT)

    assert verdict.state == "superseded"


# What is less than a passkey's gesture


@pytest.mark.parametrize("outcome", ["approve", "reject"])
def test_where_a_passkey_is_asked_for_no_other_signature_counts(scene: Scene, outcome: str) -> None:
    person(scene, "ann", "finance")
    key, gated = key_of(scene, "ann"), asked(scene)
    token = signature(scene, key, gated, outcome=DecisionOutcome(outcome))

    verdict = by(scene, gated, token, outcome=outcome)
    unsigned = scene.decide(gated, outcome, approver="ann")

    said = "decisions have to be signed by a passkey here"
    for one in (verdict, unsigned):
        assert (one.code, one.message, one.state) == ("passkey_needed", said, "pending")
    assert not isinstance(scene.claim(gated), Claimed)


def test_a_shared_passkey_is_no_device_passkey(scene: Scene, passkey: Authenticator) -> None:
    person(scene, "bob", "finance")
    bobs = passkey_of(scene, "bob", Authenticator(device_bound=True))
    gated = asked(scene, "device_passkey")
    anns = by(scene, gated, passkey.proof(claims(scene, gated)))
    assert (anns.code, anns.state) == ("passkey_needed", "pending")
    assert "bound to its device" in anns.message

    proof = bobs.proof(claims(scene, gated, approver="bob"))

    assert by(scene, gated, proof, approver="bob").state == "approved"
    assert isinstance(scene.claim(gated), Claimed)


def test_a_stricter_policy_takes_signatures_away(scene: Scene, passkey: Authenticator) -> None:
    key, gated = key_of(scene, "ann"), asked(scene, "signed")
    assert by(scene, gated, signature(scene, key, gated)).state == "approved"
    now = replace(gated, proof=Assurance.PASSKEY)

    assert isinstance(scene.claim(now), ApprovalRefused)
    assert not may_read(scene, now)
    assert isinstance(scene.claim(gated), Claimed)


def test_each_vote_of_a_quorum_has_to_be_a_passkey_s(scene: Scene, passkey: Authenticator) -> None:
    for name in ("bob", "cleo"):
        person(scene, name, "finance")
    bobs, cleos = key_of(scene, "bob"), passkey_of(scene, "cleo")
    two = Requirement(roles=("finance",), quorum=2)
    gated = scene.ask_approval(scene.call(), requirement=two, proof="passkey")
    assert by(scene, gated, passkey.proof(claims(scene, gated))).state == "pending"

    verdict = by(scene, gated, signature(scene, bobs, gated, approver="bob"), approver="bob")
    assert (verdict.code, verdict.state) == ("passkey_needed", "pending")

    proof = cleos.proof(claims(scene, gated, approver="cleo"))
    assert by(scene, gated, proof, approver="cleo").state == "approved"
    assert isinstance(scene.claim(gated), Claimed)


def test_four_eyes_and_a_passkey_need_a_proven_start(scene: Scene, passkey: Authenticator) -> None:
    eyes = Requirement(roles=("finance",), four_eyes=True)
    gated = scene.ask_approval(scene.call(), requirement=eyes, proof="passkey")

    verdict = by(scene, gated, passkey.proof(claims(scene, gated)))

    assert (verdict.code, verdict.state) == ("four_eyes", "pending")
    assert "nothing proves who has started run" in verdict.message
    assert isinstance(scene.claim(gated), ApprovalRefused)


@pytest.mark.parametrize("asks", ["the request", "the policy now"])
def test_a_standing_approval_is_no_passkey_s_gesture(scene: Scene, asks: str) -> None:
    person(scene, "ann")
    granted(scene, "ann", key_of(scene, "ann"))
    call = ask(scene, assurance=Assurance.PASSKEY if asks == "the request" else Assurance.SIGNED)
    assert state_of(scene, call) == ("pending" if asks == "the request" else "approved")

    assert isinstance(scene.claim(replace(call, proof=Assurance.PASSKEY)), ApprovalRefused)
    assert scene.rows(effects) == []


# Attacks: a gesture that was made for something else


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("made_for", "why"),
    [
        ({"approval_id": f"{RUN}/other/1"}, "another approval"),
        ({"params_hash": "sha256:other"}, "other params"),
        ({"outcome": DecisionOutcome.REJECT}, "another outcome"),
    ],
)
def test_a_gesture_made_for_something_else_is_refused(
    scene: Scene, passkey: Authenticator, made_for: dict[str, Any], why: str
) -> None:
    gated = asked(scene)
    assert why in refused(scene, gated, passkey.proof(claims(scene, gated, **made_for)))


def test_a_gesture_over_the_same_nonce_counts_once(scene: Scene, passkey: Authenticator) -> None:
    first = asked(scene)
    second = asked(scene, step_id="other", key="refund:order-2")
    before = claims(scene, first)
    assert by(scene, first, passkey.proof(before)).state == "approved"

    proof = passkey.proof({**claims(scene, second), "jti": before["jti"]})

    assert by(scene, second, proof).code == "used_signature"


def test_a_gesture_for_another_reason_is_refused(scene: Scene, passkey: Authenticator) -> None:
    gated = asked(scene)
    proof = passkey.proof(claims(scene, gated, outcome=DecisionOutcome.REJECT, reason="too much"))

    for reason in ("pay account 7", ""):
        told = refused(scene, gated, proof, outcome="reject", reason=reason)
        assert told == "bad_signature: it is for another reason"
    assert by(scene, gated, proof, outcome="reject", reason="too much").state == "rejected"


def test_a_refused_gesture_stays_worthless(scene: Scene, passkey: Authenticator) -> None:
    boss = Requirement(roles=("boss",))
    gated = scene.ask_approval(scene.call(), requirement=boss, proof="passkey")
    proof = passkey.proof(claims(scene, gated))
    assert by(scene, gated, proof).code == "not_permitted"
    with administration(scene) as tx:
        principals.give_grant(tx, "ann", "role", "boss", ADMINISTRATOR)

    assert by(scene, gated, proof).code == "used_signature"
    assert by(scene, gated, passkey.proof(claims(scene, gated))).state == "approved"


def test_another_person_s_passkey_is_refused(scene: Scene, passkey: Authenticator) -> None:
    person(scene, "bob", "finance")
    bobs, gated = passkey_of(scene, "bob"), asked(scene)
    assert "ann has no key" in refused(scene, gated, bobs.proof(claims(scene, gated)))

    # Bob's gesture, under the name of ann's passkey.
    found = bobs.get(digest_of(raw := as_json(claims(scene, gated))))
    forged = put_together(passkey.header(found), raw, found.signature)
    assert "does not fit" in refused(scene, gated, forged)


def test_a_revoked_passkey_loses_its_votes(scene: Scene, passkey: Authenticator) -> None:
    gated = asked(scene)
    assert by(scene, gated, passkey.proof(claims(scene, gated))).state == "approved"
    other = asked(scene, step_id="other", key="refund:order-2")
    with administration(scene) as tx:
        assert principals.revoke_key(tx, "ann", passkey.kid, ADMINISTRATOR)

    assert by(scene, other, passkey.proof(claims(scene, other))).code == "bad_signature"
    assert isinstance(scene.claim(gated), ApprovalRefused)
    assert not may_read(scene, gated)
    assert scene.rows(effects) == []


def test_a_worker_without_pages_takes_no_passkey(scene: Scene, passkey: Authenticator) -> None:
    scene.ledger.passkey_origins = ()
    gated = asked(scene)
    said = refused(scene, gated, passkey.proof(claims(scene, gated)))
    assert said == "bad_signature: no passkey counts here: SUREHAND_PASSKEY_ORIGINS is not set"


def test_a_page_set_no_more_loses_its_votes(scene: Scene, passkey: Authenticator) -> None:
    gated = asked(scene)
    assert by(scene, gated, passkey.proof(claims(scene, gated))).state == "approved"
    scene.ledger.passkey_origins = ("https://new.example.com",)

    assert isinstance(scene.claim(gated), ApprovalRefused)


# Attacks: one kind of key in the place of the other


def test_a_passkey_s_key_makes_no_compact_jws(scene: Scene) -> None:
    person(scene, "ann", "finance")
    private = Ed25519PrivateKey.generate()
    passkey_of(scene, "ann", Authenticator(private))
    for proof in ("open", "signed", "passkey"):
        gated = asked(scene, proof, step_id=proof, key=proof)
        said = refused(scene, gated, signature(scene, private, gated))
        assert "is a passkey's, which makes no compact JWS" in said


def test_a_key_for_jws_makes_no_passkey_s_proof(scene: Scene) -> None:
    person(scene, "ann", "finance")
    private, gated = key_of(scene, "ann"), asked(scene)
    proof = Authenticator(private).proof(claims(scene, gated))
    assert "is no passkey's" in refused(scene, gated, proof)


def test_a_key_is_registered_as_one_kind_only(scene: Scene, passkey: Authenticator) -> None:
    okp = passkey_of(scene, "ann", Authenticator(Ed25519PrivateKey.generate()))
    for changed in (replace(okp, device_bound=True), replace(okp, rp_id="evil.test")):
        with pytest.raises(PrincipalError, match="another kind of key"):
            passkey_of(scene, "ann", changed)
    with pytest.raises(PrincipalError, match="another kind of key"), administration(scene) as tx:
        principals.add_key(tx, "ann", okp.kid, okp.jwk, ADMINISTRATOR)

    with scene.tx() as tx:
        found = principals.find_principal(tx, "ann")
    assert set(found.passkeys) == {passkey.kid, okp.kid} == set(found.keys)


# Attacks: rows that no worker has written


FORGERIES: Final = ("a plain signature", "another page", "another call", "altered", "of nobody")


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", FORGERIES)
async def test_a_forged_gesture_is_no_vote(scene: Scene, passkey: Authenticator, kind: str) -> None:
    key, gated = key_of(scene, "ann"), asked(scene)
    made = claims(scene, gated)
    token, kid = {
        "a plain signature": (signature(scene, key, gated), Authenticator(key).kid),
        "another page": (passkey.proof(made, origin="https://evil.test"), passkey.kid),
        "another call": (passkey.proof({**made, "params_hash": "sha256:other"}), passkey.kid),
        "altered": (passkey.proof(made)[:-8] + "AAAAAAAA", passkey.kid),
        "of nobody": (passkey.proof(made, flags=0), passkey.kid),
    }[kind]

    forge(scene, gated, signature=token, nonce=made["jti"], kid=kid, verified=True)
    with scene.tx() as tx:
        body = {"decision_id": "forged", "approval_id": gated.approval_id, "outcome": "approve"}
        told = {"verified": True, "proof": "passkey", "kid": kid}
        tx.event(RUN, "decision.accepted", approver="ann", **body, **told)

    assert isinstance(scene.claim(gated), ApprovalRefused)
    assert not may_read(scene, gated)
    assert scene.rows(effects) == []
    assert "nothing proves decision forged of ann" in str(await scene.broken())


async def test_a_lesser_proof_is_no_vote_of_an_export(scene: Scene, passkey: Authenticator) -> None:
    gated = asked(scene)
    with scene.tx() as tx:
        body = {"decision_id": "d", "approval_id": gated.approval_id, "outcome": "approve"}
        tx.event(RUN, "decision.accepted", approver="ann", verified=True, proof="signed", **body)
        tx.event(RUN, "approval.approved", approval_id=gated.approval_id)

    assert "was given by 0 of 1 people" in str(await story(scene))


async def test_a_used_passkey_stays_proven_afterwards(scene: Scene, passkey: Authenticator) -> None:
    gated = asked(scene)
    by(scene, gated, passkey.proof(claims(scene, gated)))
    assert isinstance(scene.claim(gated), Claimed)

    with administration(scene) as tx:
        assert principals.revoke_key(tx, "ann", passkey.kid, ADMINISTRATOR)
    scene.ledger.passkey_origins = ()

    assert await scene.broken() is None
    assert not may_read(scene, gated)


async def test_a_standing_approval_is_no_passkey_for_an_audit(scene: Scene) -> None:
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"))
    call = ask(scene, assurance=Assurance.PASSKEY)
    gated = smuggle(scene, standing, call)
    with scene.tx() as tx:
        of = {"approval_id": call.approval_id, "standing_id": standing.standing_id}
        tx.event(RUN, "approval.standing_used", approver="ann", verified=True, **of)

    assert isinstance(scene.claim(gated), ApprovalRefused)
    assert "decisions have to be signed by a passkey" in str(await scene.broken())


async def test_a_raised_request_voids_signed_votes(scene: Scene, passkey: Authenticator) -> None:
    key, gated = key_of(scene, "ann"), asked(scene, "signed")
    by(scene, gated, signature(scene, key, gated))
    events, _, _ = await scene.ledger.transact(scene.tenant, chain_of, RUN)
    raised = [
        {**event, "body": {**event["body"], "assurance": "passkey"}}
        if event["type"] == "approval.requested"
        else event
        for event in events
    ]

    found = await scene.ledger.transact(scene.tenant, first_unproven, RUN, raised)

    assert "have to be signed by a passkey" in str(found)
