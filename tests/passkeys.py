"""A software authenticator, and the browser before it: passkeys' proofs made by hand.

By ``docs/guarantees/passkeys.md`` and the bare primitives; nothing of what verifies them is used.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

TYP: Final = "surehand-decision+webauthn"
RP_ID: Final = "example.com"
ORIGIN: Final = "https://approvals.example.com"
UP, UV, BE, BS, AT, ED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def digest_of(claims: bytes) -> bytes:
    return hashlib.sha256(f"{TYP}\n{b64(claims)}".encode()).digest()


def challenge_over(digests: list[str]) -> bytes:
    """The challenge of a gesture over several decisions."""
    return hashlib.sha256("\n".join([f"{TYP}-list", *digests]).encode()).digest()


@dataclass(frozen=True)
class Assertion:
    """What ``navigator.credentials.get`` returns."""

    authenticator_data: bytes
    client_data: bytes
    signature: bytes


@dataclass(frozen=True)
class Authenticator:
    """One passkey."""

    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    credential_id: bytes = b"credential-1"
    rp_id: str = RP_ID
    device_bound: bool = False

    @property
    def algorithm(self) -> str:
        return {"EC": "ES256", "OKP": "EdDSA", "RSA": "RS256"}[self.jwk["kty"]]

    @property
    def jwk(self) -> dict[str, str]:
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            raw = self.key.public_key().public_bytes_raw()
            return {"crv": "Ed25519", "kty": "OKP", "x": b64(raw)}
        if isinstance(self.key, rsa.RSAPrivateKey):
            n = self.key.public_key().public_numbers().n
            return {"e": "AQAB", "kty": "RSA", "n": b64(n.to_bytes(self.key.key_size // 8))}
        point = self.key.public_key().public_numbers()
        x, y = (b64(number.to_bytes(32)) for number in (point.x, point.y))
        return {"crv": "P-256", "kty": "EC", "x": x, "y": y}

    @property
    def kid(self) -> str:
        return b64(hashlib.sha256(as_json(self.jwk)).digest())

    @property
    def file(self) -> dict[str, Any]:
        """What the page offers for download."""
        return {
            "kind": "webauthn",
            "credential_id": b64(self.credential_id),
            "rp_id": self.rp_id,
            "public_key": {**self.jwk, "ext": True, "key_ops": ["verify"]},
            "device_bound": self.device_bound,
        }

    @property
    def flags(self) -> int:
        return UP | UV | (0 if self.device_bound else BE | BS)

    def sign(self, signed: bytes) -> bytes:
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(signed)
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(signed, padding.PKCS1v15(), SHA256())
        return self.key.sign(signed, ec.ECDSA(SHA256()))

    def get(
        self,
        challenge: bytes,
        *,
        origin: str = ORIGIN,
        rp_id: str | None = None,
        flags: int | None = None,
        counter: int = 0,
        added: bytes = b"",
        client: dict[str, Any] | bytes | None = None,
        **members: Any,
    ) -> Assertion:
        """Return an assertion; what is named is otherwise than a browser and a device have it.

        Args:
            challenge: What the page asks to have signed.
            origin: Of the page.
            rp_id: Whose authenticator data are made.
            flags: Of the authenticator data.
            counter: Of the signatures.
            added: What follows in the authenticator data.
            client: All of the client data.
            members: Of the client data.
        """
        said: dict[str, Any] = {
            "type": "webauthn.get", "challenge": b64(challenge), "origin": origin,
            "crossOrigin": False, **members,
        }  # fmt: skip
        told = client if isinstance(client, bytes) else as_json(client or said)
        data = hashlib.sha256((rp_id or self.rp_id).encode()).digest()
        data += bytes([self.flags if flags is None else flags]) + counter.to_bytes(4) + added
        return Assertion(data, told, self.sign(data + hashlib.sha256(told).digest()))

    def header(self, found: Assertion, digests: list[str] | None = None) -> dict[str, Any]:
        listed = {} if digests is None else {"digests": digests}
        return {
            "alg": self.algorithm,
            "kid": self.kid,
            "typ": TYP,
            "authenticator_data": b64(found.authenticator_data),
            "client_data": b64(found.client_data),
            "credential_id": b64(self.credential_id),
            **listed,
        }

    def proof(self, claims: Any, **how: Any) -> str:
        """Return the proof of one decision by its own gesture."""
        raw = claims if isinstance(claims, bytes) else as_json(claims)
        found = self.get(digest_of(raw), **how)
        return put_together(self.header(found), raw, found.signature)

    def proofs(self, *claims: Any) -> list[str]:
        raw = [as_json(one) for one in claims]
        digests = [b64(digest_of(one)) for one in raw]
        found = self.get(challenge_over(digests))
        header = self.header(found, digests)
        return [put_together(header, one, found.signature) for one in raw]


def put_together(header: Any, claims: bytes, signature: bytes) -> str:
    head = header if isinstance(header, bytes) else as_json(header)
    return ".".join(map(b64, (head, claims, signature)))


def taken_apart(proof: str) -> tuple[dict[str, Any], bytes, bytes]:
    head, claims, signature = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in proof.split(".")
    )
    return json.loads(head), claims, signature
