"""Passkeys' proofs: when a gesture (WebAuthn's assertion) is believed to have decided something.

What steers a run is proven in the same way, under a type of its own: neither counts as the other.

No SQL and no clock. The challenge is computed here, from the claims: what a page has shown or sent
beside them counts for nothing. The format is written down in ``docs/guarantees/passkeys.md``.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from surehand.activities.ledger.people.signatures import (
    BadKey,
    BadSignature,
    Passkey,
    check_passkey_jwk,
    decode_base64url,
    is_kid,
    json_object,
    kid_of,
    parse_claims,
)
from surehand.workflows.contracts import approvals

C = TypeVar("C", bound=approvals.Claims)

#: Characters; some three times what a gesture over the most decisions makes of one.
LONGEST_PROOF: Final = 16_384
_LONGEST_AUTHENTICATOR_DATA: Final = 1024
_LONGEST_CLIENT_DATA: Final = 2048
_HEADER: Final = {"alg", "kid", "typ", "authenticator_data", "client_data", "credential_id"}
_ALGORITHMS: Final = {"P-256": "ES256", "Ed25519": "EdDSA"}

#: Flags of authenticator data: somebody was there, and was recognised; the passkey may be, and is,
#: on other devices; what a registration and extensions add.
_UP, _UV, _BE, _BS, _AT, _ED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80
#: Hash of the relying party's id, flags, counter.
_SHORTEST_AUTHENTICATOR_DATA: Final = 32 + 1 + 4
#: Levels of what extensions add: a map in a map.
_DEEPEST_CBOR: Final = 8


@dataclass(frozen=True)
class Gesture:
    """A proof, taken apart; nothing in it is believed."""

    typ: str
    """What it claims to be a proof of: its challenge begins with that."""
    algorithm: str
    kid: str
    credential_id: str
    authenticator_data: bytes
    client_data: bytes
    digests: tuple[str, ...] | None
    """Of all decisions of the gesture; ``None``: it is for one."""
    claims: str
    """As it was sent."""
    signature: bytes


def is_gesture(proof: str, typ: str = approvals.PASSKEY_TYP) -> bool:
    """Return whether a text says of itself that it is a passkey's proof of this type."""
    if len(proof) > LONGEST_PROOF:
        return False
    try:
        header = json_object(decode_base64url(proof.split(".", 1)[0]), "the header")
    except (ValueError, BadSignature):
        return False
    return header.get("typ") == typ


def read_gesture(proof: str, typ: str = approvals.PASSKEY_TYP) -> Gesture:
    """Return the parts of a proof."""
    if len(proof) > LONGEST_PROOF:
        raise BadSignature(f"the passkey's proof is longer than {LONGEST_PROOF} characters")
    parts = proof.split(".")
    if len(parts) != 3:
        raise BadSignature("the passkey's proof has not three parts")
    raw, _, signature = (_decode_bytes(part, "a part of the passkey's proof") for part in parts)
    header = json_object(raw, "the header of the passkey's proof")
    if header.keys() - {"digests"} != _HEADER:
        raise BadSignature("the header of the passkey's proof has not exactly the members it needs")
    if header["typ"] != typ:
        raise BadSignature(f"the type of the passkey's proof is not {typ}")
    if "digests" in header and typ != approvals.PASSKEY_TYP:
        raise BadSignature("only decisions are signed several at a time")
    # It is looked up in a database: no text of the sender's own making goes there.
    if not is_kid(header["kid"]):
        raise BadSignature("the key id of the passkey's proof is not the thumbprint of a key")
    return Gesture(
        typ=typ,
        algorithm=str(header["alg"]),
        kid=header["kid"],
        credential_id=str(header["credential_id"]),
        authenticator_data=_decode_bytes(
            header["authenticator_data"], "the authenticator data", _LONGEST_AUTHENTICATOR_DATA
        ),
        client_data=_decode_bytes(header["client_data"], "the client data", _LONGEST_CLIENT_DATA),
        digests=_read_digests(header["digests"]) if "digests" in header else None,
        claims=parts[1],
        signature=signature,
    )


def verify_gesture(
    gesture: Gesture,
    public_jwk: Mapping[str, Any],
    passkey: Passkey,
    claims_of: type[C],
    *,
    origins: Collection[str] | None,
) -> C:
    """Return the claims that this passkey has signed, whenever that was.

    Gestures are made on pages of these origins; ``None``: that was looked at before.
    """
    try:
        jwk = check_passkey_jwk(public_jwk)
    except BadKey as error:
        raise BadSignature(f"the passkey's key on record cannot be used: {error}") from error
    if kid_of(jwk) != gesture.kid or passkey.credential_id != gesture.credential_id:
        raise BadSignature("the passkey's proof is made with another passkey")
    if _ALGORITHMS[jwk["crv"]] != gesture.algorithm:
        raise BadSignature("the algorithm of the passkey's proof is not that of its key")
    _judge_client_data(gesture, passkey.rp_id, origins)
    _judge_authenticator_data(gesture.authenticator_data, passkey)
    signed = gesture.authenticator_data + hashlib.sha256(gesture.client_data).digest()
    if not _verify_bytes(jwk, gesture.signature, signed):
        raise BadSignature("the passkey's signature does not fit what it signs")
    return parse_claims(decode_base64url(gesture.claims), claims_of)


def challenge_of(gesture: Gesture) -> bytes:
    """Return the challenge of the gesture that decides this: it is made of its claims alone."""
    own = hashlib.sha256(f"{gesture.typ}\n{gesture.claims}".encode()).digest()
    if gesture.digests is None:
        return own
    if _encode_bytes(own) not in gesture.digests:
        raise BadSignature("the passkey's gesture is over a list without this decision")
    listed = "\n".join((approvals.PASSKEY_LIST, *gesture.digests))
    return hashlib.sha256(listed.encode()).digest()


def _judge_client_data(gesture: Gesture, rp_id: str, origins: Collection[str] | None) -> None:
    said = json_object(gesture.client_data, "the client data of the passkey's proof")
    if said.get("type") != "webauthn.get":
        raise BadSignature("the passkey's gesture is not webauthn.get")
    if said.get("challenge") != _encode_bytes(challenge_of(gesture)):
        raise BadSignature("the passkey's gesture is for something else: another challenge")
    if said.get("crossOrigin", False) is not False or "topOrigin" in said:
        raise BadSignature("the passkey's gesture was made in a page inside another one")
    origin = said.get("origin")
    host = approvals.host_of(origin) if isinstance(origin, str) else None
    if host is None or not f".{host}".endswith(f".{rp_id}"):
        raise BadSignature("the passkey's gesture was made on a page of another site")
    if origins is not None and not origins:
        raise BadSignature("no passkey counts here: SUREHAND_PASSKEY_ORIGINS is not set")
    if origins is not None and origin not in origins:
        raise BadSignature(f"the origin {origin} is not among SUREHAND_PASSKEY_ORIGINS")


def _judge_authenticator_data(data: bytes, passkey: Passkey) -> None:
    if len(data) < _SHORTEST_AUTHENTICATOR_DATA:
        raise BadSignature("the passkey's authenticator data are too short")
    if data[:32] != hashlib.sha256(passkey.rp_id.encode()).digest():
        raise BadSignature("the passkey's gesture is for another relying party")
    flags, added = data[32], data[_SHORTEST_AUTHENTICATOR_DATA:]
    if not flags & _UP:
        raise BadSignature("the passkey's authenticator has seen nobody (UP)")
    if not flags & _UV:
        raise BadSignature("the passkey's authenticator has recognised nobody (UV)")
    if flags & _AT:
        raise BadSignature("the passkey's authenticator data are those of a registration (AT)")
    if bool(flags & _BE) is passkey.device_bound or (flags & _BS and not flags & _BE):
        raise BadSignature("the passkey is not bound to its device as it was registered (BE, BS)")
    try:
        whole = _is_map(added) if flags & _ED else not added
    except (ValueError, IndexError):
        whole = False
    if not whole:
        raise BadSignature("the passkey's authenticator data do not end where they should")


def _is_map(data: bytes) -> bool:
    """Return whether these bytes are one CBOR map (RFC 8949) of definite lengths, and no more.

    A library for that would be one more dependency of each worker, for these lines.
    """
    return data[0] >> 5 == 5 and _end_of_item(data, 0, 0) == len(data)


def _end_of_item(data: bytes, at: int, level: int) -> int:
    kind, size = data[at] >> 5, data[at] & 31
    if level > _DEEPEST_CBOR or size > 27:
        raise ValueError("nested too deeply, or of no length that is known before")
    at += 1
    if size >= 24:
        more = 1 << (size - 24)
        size = int.from_bytes(data[at : at + more])
        at += more
    if kind in (2, 3):
        at += size
    elif kind > 3 and kind != 7:
        for _ in range({4: size, 5: 2 * size, 6: 1}[kind]):
            at = _end_of_item(data, at, level + 1)
    if at > len(data):
        raise ValueError("cut off")
    return at


def _verify_bytes(jwk: Mapping[str, str], signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.hashes import SHA256

    x = decode_base64url(jwk["x"])
    try:
        if jwk["crv"] == "Ed25519":
            ed25519.Ed25519PublicKey.from_public_bytes(x).verify(signature, signed)
            return True
        numbers = int.from_bytes(x), int.from_bytes(decode_base64url(jwk["y"]))
        key = ec.EllipticCurvePublicNumbers(*numbers, ec.SECP256R1()).public_key()
        # OpenSSL takes the two numbers in the one spelling that DER has of them.
        key.verify(signature, signed, ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _read_digests(value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else []
    if not 2 <= len(listed) <= approvals.MOST_DECISIONS:
        raise BadSignature(
            f"a passkey's gesture over a list is over 2 to {approvals.MOST_DECISIONS} digests"
        )
    # A digest has the form of a key id: 32 bytes in base64url.
    if not all(map(is_kid, listed)) or len(set(listed)) != len(listed):
        raise BadSignature("the passkey's list has what is no digest, or one of them twice")
    return tuple(listed)


def _decode_bytes(text: Any, what: str, most: int = LONGEST_PROOF) -> bytes:
    try:
        raw = decode_base64url(text) if isinstance(text, str) else None
    except ValueError:
        raw = None
    if raw is None:
        raise BadSignature(f"{what}: it is not base64url")
    if len(raw) > most:
        raise BadSignature(f"{what}: more than {most} bytes")
    return raw


def _encode_bytes(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
