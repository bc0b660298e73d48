"""What is believed of a gesture is what two independent WebAuthn libraries believe of it.

Each case is made by the same authenticator and judged three times. Where a library does not look at
something, the case says so; ours looks at all of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
import webauthn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fido2 import cbor
from fido2.cose import CoseKey
from fido2.server import Fido2Server
from fido2.webauthn import Aaguid, AttestedCredentialData, PublicKeyCredentialRpEntity
from webauthn.helpers.exceptions import WebAuthnException

from surehand.activities.ledger.people.passkeys import authentic, challenge_of, read
from surehand.activities.ledger.people.public_keys import decoded, registered
from surehand.activities.ledger.people.signatures import BadSignature
from surehand.workflows.contracts.approvals import DecisionClaims
from tests.passkeys import (
    AT,
    BE,
    BS,
    ED,
    ORIGIN,
    RP_ID,
    UP,
    UV,
    Assertion,
    Authenticator,
    as_json,
    b64,
    digest_of,
    put_together,
)
from tests.unit.tokens import CLAIMS

RAW: Final = as_json(CLAIMS)
KEYS: Final = {
    "ES256": Authenticator(),
    "EdDSA": Authenticator(Ed25519PrivateKey.generate()),
    "device-bound": Authenticator(device_bound=True),
}


def ours(key: Authenticator, found: Assertion) -> bool:
    known = registered(json.dumps(key.file))
    assert known.passkey is not None
    proof = put_together(key.header(found), RAW, found.signature)
    try:
        authentic(read(proof), known.jwk, known.passkey, DecisionClaims, origins=(ORIGIN,))
    except BadSignature:
        return False
    return True


def cose(key: Authenticator) -> dict[int, Any]:
    """The public key as registrations have it (RFC 9052)."""
    jwk = key.jwk
    if key.algorithm == "EdDSA":
        return {1: 1, 3: -8, -1: 6, -2: decoded(jwk["x"])}
    return {1: 2, 3: -7, -1: 1, -2: decoded(jwk["x"]), -3: decoded(jwk["y"])}


def credential(key: Authenticator, found: Assertion) -> dict[str, Any]:
    """The assertion as browsers write it in JSON."""
    return {
        "id": b64(key.credential_id),
        "rawId": b64(key.credential_id),
        "type": "public-key",
        "clientExtensionResults": {},
        "response": {
            "clientDataJSON": b64(found.client_data),
            "authenticatorData": b64(found.authenticator_data),
            "signature": b64(found.signature),
        },
    }


def py_webauthn(key: Authenticator, found: Assertion) -> bool:
    try:
        webauthn.verify_authentication_response(
            credential=credential(key, found),
            expected_challenge=digest_of(RAW),
            expected_rp_id=RP_ID,
            expected_origin=ORIGIN,
            credential_public_key=cbor.encode(cose(key)),
            credential_current_sign_count=0,
            require_user_verification=True,
        )
    except WebAuthnException:
        return False
    return True


def python_fido2(key: Authenticator, found: Assertion) -> bool:
    server = Fido2Server(
        PublicKeyCredentialRpEntity(name="us", id=RP_ID), verify_origin=lambda one: one == ORIGIN
    )
    known = AttestedCredentialData.create(Aaguid.NONE, key.credential_id, CoseKey.parse(cose(key)))
    state = {"challenge": b64(digest_of(RAW)), "user_verification": "required"}
    try:
        server.authenticate_complete(state, [known], credential(key, found))
    except (ValueError, IndexError):  # the latter where extensions are missing
        return False
    return True


LIBRARIES: Final = {"webauthn": py_webauthn, "fido2": python_fido2}


@dataclass(frozen=True)
class Broken:
    """How a gesture is made otherwise than it should be."""

    how: dict[str, Any] = field(default_factory=dict)
    challenge: bytes = digest_of(RAW)
    spoilt: bool = False
    """Whether its signature is."""
    not_seen_by: tuple[str, ...] = ()


NEITHER: Final = ("webauthn", "fido2")
BROKEN: Final = {
    "another origin": Broken({"origin": "https://evil.test"}),
    "another page of the site": Broken({"origin": "https://chat.example.com"}),
    "another relying party": Broken({"rp_id": "evil.test"}),
    "nobody present": Broken({"flags": UV | BE | BS}),
    "nobody recognised": Broken({"flags": UP | BE | BS}),
    "a registration": Broken({"type": "webauthn.create"}),
    "another challenge": Broken(challenge=digest_of(RAW + b" ")),
    "no challenge of 32 bytes": Broken(challenge=b""),
    "bytes behind the data": Broken({"added": b"\0"}),
    "bytes behind the extensions": Broken({"flags": UP | UV | ED, "added": b"\xa0\0"}),
    "extensions missing": Broken({"flags": UP | UV | ED}),
    "data of a registration cut off": Broken({"flags": UP | UV | AT, "added": b"\0"}),
    "another signature": Broken(spoilt=True),
    "in a frame": Broken({"crossOrigin": True}, not_seen_by=NEITHER),
    "in a frame of a page": Broken({"topOrigin": ORIGIN}, not_seen_by=NEITHER),
    "backed up, but not eligible": Broken({"flags": UP | UV | BS}, not_seen_by=("fido2",)),
}


@pytest.mark.parametrize("name", KEYS)
def test_what_both_libraries_take_is_taken(name: str) -> None:
    key = KEYS[name]
    extended = {"flags": key.flags | ED, "added": cbor.encode({"uvm": [[2, 4, 2]]})}
    for how in ({}, {"counter": 7}, extended):
        found = key.get(digest_of(RAW), **how)
        assert ours(key, found)
        assert all(takes(key, found) for takes in LIBRARIES.values())


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("what", BROKEN)
def test_what_a_library_refuses_is_refused(name: str, what: str) -> None:
    key, broken = KEYS[name], BROKEN[what]
    found = key.get(broken.challenge, **broken.how)
    if broken.spoilt:
        found = replace(found, signature=key.sign(b"something else"))

    assert not ours(key, found)
    for library, takes in LIBRARIES.items():
        assert takes(key, found) == (library in broken.not_seen_by), library


def test_the_challenge_that_is_recomputed_is_the_one_that_is_written_down() -> None:
    key = KEYS["ES256"]
    found = key.get(digest_of(RAW))

    gesture = read(put_together(key.header(found), RAW, found.signature))

    assert challenge_of(gesture) == digest_of(RAW)
