"""Signed decisions made by hand: bytes, base64 and the bare primitive, no JOSE library."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from surehand.activities.ledger.people.signatures import verify_in_time
from surehand.verify import BadSignature
from surehand.workflows.contracts.approvals import DecisionClaims

NOW: Final = 1_800_000_000
KEY: Final = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
OTHER_KEY: Final = Ed25519PrivateKey.from_private_bytes(b"b" * 32)

CLAIMS: Final[dict[str, Any]] = {
    "aud": "surehand:acme",
    "sub": "ada",
    "approval_id": "acme/refund-1/refund/1",
    "run_id": "acme/refund-1",
    "params_hash": "sha256:" + "0" * 64,
    "outcome": "approve",
    "iat": NOW,
    "exp": NOW + 300,
    "jti": "a-nonce-of-thirty-two-characters",
}


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def raw_public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def jwk(key: Ed25519PrivateKey) -> dict[str, str]:
    return {"crv": "Ed25519", "kty": "OKP", "x": b64(raw_public(key))}


def kid(key: Ed25519PrivateKey) -> str:
    """The thumbprint as RFC 7638 has it: members sorted, no spaces, SHA-256."""
    return b64(hashlib.sha256(as_json(dict(sorted(jwk(key).items())))).digest())


def header(key: Ed25519PrivateKey = KEY, **members: Any) -> dict[str, Any]:
    return {"alg": "EdDSA", "kid": kid(key), "typ": "surehand-decision+jws", **members}


def raw_token(head: bytes, payload: bytes, key: Ed25519PrivateKey = KEY) -> str:
    signed = f"{b64(head)}.{b64(payload)}"
    return f"{signed}.{b64(key.sign(signed.encode()))}"


def token(
    claims: dict[str, Any] | None = None,
    *,
    head: dict[str, Any] | None = None,
    key: Ed25519PrivateKey = KEY,
) -> str:
    return raw_token(as_json(head or header(key)), as_json(claims or CLAIMS), key)


def with_claims(**changed: Any) -> str:
    """A token of the right key; a claim that is ``...`` is left out."""
    claims = {**CLAIMS, **changed}
    return token({name: value for name, value in claims.items() if value is not ...})


def unpadded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def refused(text: str, public: dict[str, Any] | None = None, now: int = NOW) -> str:
    """Return why a token is refused; it must be, and in no other way."""
    with pytest.raises(BadSignature) as why:
        verify_in_time(text, jwk(KEY) if public is None else public, DecisionClaims, now_s=now)
    return str(why.value)
