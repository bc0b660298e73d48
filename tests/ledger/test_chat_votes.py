"""G3: a button in a chat is a vote only where policies say so, and while it may be one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from surehand.activities.ledger.approvals.requests import ApprovalRefused
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.proofs import verify_proof
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest
from surehand.client.messages import fresh_claims, sign
from surehand.verify import BadSignature
from surehand.workflows.contracts.approvals import (
    CHAT,
    Assurance,
    ChatClaims,
    Claims,
    DecisionClaims,
    DecisionOutcome,
    Scope,
    StandingClaims,
    StartClaims,
    SteeringClaims,
)
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import ADMINISTRATOR, administration, key_of, person, revoked
from tests.ledger.scene import RUN, Scene

FINANCE = Requirement(roles=("finance",))


@pytest.fixture
def key(scene: Scene) -> Ed25519PrivateKey:
    """The approvers' pages' own; ann is of finance."""
    person(scene, "ann", "finance")
    return key_of(scene, person(scene, CHAT))


def press(scene: Scene, key: Ed25519PrivateKey, gated: ClaimRequest, **changes: Any) -> str:
    claims: dict[str, Any] = {
        **fresh_claims("ann", scene.tenant, int(time.time())),
        "run_id": RUN,
        "approval_id": gated.approval_id,
        "params_hash": gated.params_hash,
        "outcome": DecisionOutcome.APPROVE,
        "account": "slack:T1:U1",
        **changes,
    }
    signature = sign(key, ChatClaims(**claims))
    return scene.decide(gated, approver=claims["sub"], signature=signature).code


def asked(scene: Scene, proof: Any = "chat", requirement: Requirement = FINANCE) -> ClaimRequest:
    return scene.ask_approval(scene.call(), proof=proof, requirement=requirement)


@pytest.mark.in_turns
@pytest.mark.parametrize("since", ["nothing", "role", "key", "policy", "worker"])
async def test_a_vote_by_a_button_is_judged_again_at_the_call(
    scene: Scene, key: Ed25519PrivateKey, since: str
) -> None:
    gated = asked(scene)
    assert press(scene, key, gated) == "accepted"
    assert await scene.broken() is None
    changes: dict[str, Any] = {"gated": True, "approval_id": gated.approval_id}
    match since:
        case "role":
            revoked(scene, "ann", "role", "finance")
        case "key":
            with administration(scene) as tx:
                [kid] = principals.find_principal(tx, CHAT).keys
                assert principals.revoke_key(tx, CHAT, kid, ADMINISTRATOR)
        case "policy":
            changes["proof"] = Assurance.SIGNED
        case "worker":
            changes["assurance"] = Assurance.SIGNED

    found = scene.claim(scene.call(**changes, requirements=(FINANCE,)))

    assert isinstance(found, Claimed if since == "nothing" else ApprovalRefused)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("proof", "code"),
    [("open", "not_permitted"), ("signed", "unsigned"), ("passkey", "passkey_needed")],
)
def test_without_the_policys_word_a_button_is_no_vote(
    scene: Scene, key: Ed25519PrivateKey, proof: str, code: str
) -> None:
    assert press(scene, key, asked(scene, proof)) == code


def test_only_the_pages_key_vouches_and_only_as_a_chat(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    gated, anns = asked(scene), key_of(scene, "ann")
    claims = {"jti": "a-nonce-that-is-known"}
    assert press(scene, anns, gated) == "bad_signature"
    assert press(scene, key, gated, run_id="run-2") == "bad_signature"
    assert press(scene, key, gated, params_hash="sha256:other") == "bad_signature"
    assert scene.decide(gated, approver="ann").code == "unsigned"
    person(scene, "eve")
    assert press(scene, key, gated, sub="eve") == "not_permitted"
    assert press(scene, key, gated, **claims) == "accepted"


DECIDED = {"approval_id": "x", "run_id": RUN, "params_hash": "x", "outcome": "approve"}
SCOPE = Scope(tool="payments.refund", version="1", schema_hash="x", until=2**40)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("claims_of", "about"),
    [
        (DecisionClaims, DECIDED),
        (SteeringClaims, {"run_id": RUN, "verb": "pause", "content": "x"}),
        (StartClaims, {"run_id": RUN, "user": "uma", "content": "x"}),
        (StandingClaims, {"scope": SCOPE}),
    ],
)
def test_the_pages_key_signs_nothing_but_presses(
    scene: Scene, key: Ed25519PrivateKey, claims_of: type[Claims], about: dict[str, Any]
) -> None:
    claims = claims_of(**fresh_claims(CHAT, scene.tenant, int(time.time())), **about)
    with (
        scene.ledger.transaction(scene.tenant) as tx,
        pytest.raises(BadSignature, match="keys of chat sign presses in a chat, and nothing else"),
    ):
        verify_proof(tx, sign(key, claims), CHAT, claims_of)


def test_four_eyes_hold_and_a_press_counts_once(scene: Scene, key: Ed25519PrivateKey) -> None:
    two = Requirement(roles=("finance",), quorum=2)
    gated, nonce = asked(scene, requirement=two), "a-nonce-that-is-known"
    assert press(scene, key, gated, jti=nonce) == "accepted"
    assert press(scene, key, gated, jti=nonce) == "used_signature"
    assert press(scene, key, gated) == "already_voted"
    eyes = Requirement(roles=("finance",), four_eyes=True)
    # Nothing proves who has started it.
    other = scene.ask_approval(scene.call(), number=2, proof="chat", requirement=eyes)
    assert press(scene, key, other) == "four_eyes"
