"""What steers a run, signed by a passkey: each gesture but the right one is an attack."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import steerings
from surehand.activities.ledger.people import principals
from surehand.client.messages import fresh_claims
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.steering import AnswerInterrupts, CancelRun, Steering, Verb
from tests.ledger.people import ADMINISTRATOR, administration, passkey_of, person
from tests.ledger.scene import OTHER_RUN, RUN, Scene
from tests.ledger.test_passkeys import asked, refused
from tests.ledger.test_passkeys import claims as decision_claims
from tests.ledger.test_steering import judge, sent
from tests.passkeys import ORIGIN, TYP, UP, Authenticator, as_json, b64, put_together

STEERS: Final = "surehand-steering+webauthn"
ANN: Final = "ann"


@pytest.fixture(autouse=True)
def pages(ledger: Ledger) -> Iterator[None]:
    """The worker's setting."""
    ledger.passkey_origins = (ORIGIN,)
    yield
    ledger.passkey_origins = ()


@pytest.fixture
def passkey(scene: Scene) -> Authenticator:
    """The only key of ann, who may steer."""
    person(scene, ANN, "finance", permissions=("steer",))
    return passkey_of(scene, ANN)


def claims(scene: Scene, message: Steering, sent_as: Verb, **changes: Any) -> dict[str, Any]:
    return {
        **fresh_claims(message.actor, scene.tenant, int(time.time())),
        "run_id": RUN,
        "verb": sent_as.value,
        "content": digest(message.content()),
        **changes,
    }


def proof(
    passkey: Authenticator,
    claimed: dict[str, Any],
    *,
    typ: str = STEERS,
    signed_as: str = STEERS,
    header: dict[str, Any] | None = None,
    **how: Any,
) -> str:
    """Return a gesture's proof; ``signed_as`` is what its challenge was made for."""
    raw = as_json(claimed)
    challenge = hashlib.sha256(f"{signed_as}\n{b64(raw)}".encode()).digest()
    found = passkey.get(challenge, **how)
    return put_together(
        {**passkey.header(found), "typ": typ, **(header or {})}, raw, found.signature
    )


def told(scene: Scene, message: Steering, verb: Verb, signature: str, **more: Any) -> str:
    """Deliver a message to a worker that asks for signatures; returns what becomes of it."""
    signed = message.model_copy(update={"signature": signature})
    judged = judge(scene, sent(scene, signed, verb, **more), Assurance.SIGNED)
    assert judged.verified is (judged.code == "accepted")
    return f"{judged.code}: {judged.message}"


CANCEL: Final = CancelRun(actor=ANN)


def test_a_passkey_alone_answers_settles_and_steers(scene: Scene, passkey: Authenticator) -> None:
    settles = Resolution(actor=ANN, intervention_id="iv-1", outcome=ResolutionOutcome.HAPPENED)
    answers = AnswerInterrupts(actor=ANN, answers={"ask.1": "yes"})
    for message, verb in ((answers, Verb.ANSWER), (settles, Verb.RESOLVE), (CANCEL, Verb.CANCEL)):
        made = proof(passkey, claims(scene, message, verb))
        assert told(scene, message, verb, made) == "accepted: accepted"

    rows = scene.rows(steerings)
    assert {(row["kid"], row["verified"]) for row in rows} == {(passkey.kid, True)}
    assert [row["signature"].count(".") for row in rows] == [2, 2, 2]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": OTHER_RUN},
        {"verb": "pause"},
        {"sub": "eve"},
        {"aud": "surehand:acme"},
        {"content": "sha256:0"},
        {"outcome": "approve"},
        {"exp": int(time.time()) - 1},
        {"exp": int(time.time()) + 4000},
        {"jti": "short"},
    ],
)
def test_a_gesture_over_other_claims_steers_nothing(
    scene: Scene, passkey: Authenticator, changes: dict[str, Any]
) -> None:
    made = proof(passkey, claims(scene, CANCEL, Verb.CANCEL, **changes))
    assert told(scene, CANCEL, Verb.CANCEL, made).startswith("bad_signature")


def test_a_gesture_answers_one_question_only(scene: Scene, passkey: Authenticator) -> None:
    asked_for = AnswerInterrupts(actor=ANN, id="m", answers={"ask.1": "yes"})
    made = proof(passkey, claims(scene, asked_for, Verb.ANSWER))

    for other in ({"ask.2": "yes"}, {"ask.1": "no"}, {"ask.1": "yes", "ask.2": "yes"}):
        swapped = AnswerInterrupts(actor=ANN, id="m", answers=other)
        assert told(scene, swapped, Verb.ANSWER, made).startswith("bad_signature")
    assert told(scene, asked_for, Verb.CANCEL, made).startswith("bad_signature")
    assert told(scene, asked_for, Verb.ANSWER, made).startswith("accepted")


def test_a_gesture_for_happened_says_nothing_else(scene: Scene, passkey: Authenticator) -> None:
    happened = Resolution(
        actor=ANN, id="m", intervention_id="iv-1", outcome=ResolutionOutcome.HAPPENED
    )
    made = proof(passkey, claims(scene, happened, Verb.RESOLVE))

    for swapped in (
        happened.model_copy(update={"outcome": ResolutionOutcome.NOT_HAPPENED}),
        happened.model_copy(update={"intervention_id": "iv-2"}),
        happened.model_copy(update={"evidence": "I say so"}),
    ):
        assert told(scene, swapped, Verb.RESOLVE, made).startswith("bad_signature")
    assert told(scene, happened, Verb.RESOLVE, made).startswith("accepted")


@pytest.mark.in_turns
@pytest.mark.parametrize(("typ", "signed_as"), [(STEERS, TYP), (TYP, STEERS), (TYP, TYP)])
def test_a_gesture_made_as_a_decision_steers_nothing_whatever_it_is_called(
    scene: Scene, passkey: Authenticator, typ: str, signed_as: str
) -> None:
    made = proof(passkey, claims(scene, CANCEL, Verb.CANCEL), typ=typ, signed_as=signed_as)
    assert told(scene, CANCEL, Verb.CANCEL, made).startswith("bad_signature")


@pytest.mark.in_turns
@pytest.mark.parametrize(("typ", "signed_as"), [(STEERS, STEERS), (TYP, STEERS), (STEERS, TYP)])
def test_a_gesture_made_to_steer_decides_nothing_whatever_it_is_called(
    scene: Scene, passkey: Authenticator, typ: str, signed_as: str
) -> None:
    gated = asked(scene)
    made = proof(passkey, decision_claims(scene, gated), typ=typ, signed_as=signed_as)
    assert refused(scene, gated, made).startswith("bad_signature")


def test_one_gesture_over_several_steers_nothing(scene: Scene, passkey: Authenticator) -> None:
    wanted = claims(scene, CANCEL, Verb.CANCEL)
    own = b64(hashlib.sha256(f"{STEERS}\n{b64(as_json(wanted))}".encode()).digest())
    digests = [own, b64(b"x" * 32)]
    listed = "\n".join([f"{TYP}-list", *digests])
    raw, found = as_json(wanted), passkey.get(hashlib.sha256(listed.encode()).digest())
    header = {**passkey.header(found, digests), "typ": STEERS}
    made = put_together(header, raw, found.signature)

    assert "several at a time" in told(scene, CANCEL, Verb.CANCEL, made)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "how",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://other.example.com"},
        {"flags": UP},
        {"crossOrigin": True},
        {"type": "webauthn.create"},
        {"header": {"alg": "EdDSA"}},
        {"header": {"credential_id": b64(b"another")}},
    ],
)
def test_a_gesture_of_another_page_or_without_its_person_steers_nothing(
    scene: Scene, passkey: Authenticator, how: dict[str, Any]
) -> None:
    made = proof(passkey, claims(scene, CANCEL, Verb.CANCEL), **how)
    assert told(scene, CANCEL, Verb.CANCEL, made).startswith("bad_signature")


def test_foreign_and_revoked_passkeys_steer_nothing(scene: Scene, passkey: Authenticator) -> None:
    person(scene, "eve")
    eves = passkey_of(scene, "eve", Authenticator(credential_id=b"eves"))
    made = proof(eves, claims(scene, CANCEL, Verb.CANCEL))
    assert told(scene, CANCEL, Verb.CANCEL, made).startswith("bad_signature")
    made = proof(passkey, claims(scene, CANCEL, Verb.CANCEL))
    with administration(scene) as tx:
        assert principals.revoke_key(tx, ANN, passkey.kid, ADMINISTRATOR)
    assert "was revoked" in told(scene, CANCEL, Verb.CANCEL, made)
    assert {row["verified"] for row in scene.rows(steerings)} == {False}
