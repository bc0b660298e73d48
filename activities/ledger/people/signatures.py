"""Signatures and public keys of people: when the claims of a compact JWS (RFC 7515) count.

No SQL and no clock. joserfc verifies the signature; what is around it is stricter than JOSE asks
for, so that a signature has one spelling, and nothing in it chooses its algorithm or its key. It
and cryptography are imported when they are used: most verbs need not wait for them.

Keys have one form, and are known by their thumbprint (RFC 7638). A key that signs JWS is an Ed25519
key. A passkey's is one, too, or one of the curve P-256, and has its credential beside it: neither
counts in the place of the other.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from surehand.process.ciphers import signature_registry
from surehand.workflows.contracts import approvals

#: A SHA-256 digest in base64url.
_KID: Final = re.compile(r"[A-Za-z0-9_-]{43}")

#: A domain name in lower case, or localhost: what browsers know a relying party by.
_RP_ID: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,62})(\.[a-z0-9]([a-z0-9-]{0,62}))*")
_LONGEST_RP_ID: Final = 253
_LONGEST_CREDENTIAL_ID: Final = 1023  # bytes, says WebAuthn
_PASSKEY_FILE: Final = {"kind", "credential_id", "rp_id", "public_key", "device_bound"}

#: The prime of RFC 8032's field, and the y coordinates of its points of order 4, 1, 2, 8 and 8:
#: with one of them as a key, anybody can make signatures that verify.
_P: Final = 2**255 - 19
_ORDER_8: Final = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_SMALL_ORDER: Final = {0, 1, _P - 1, _ORDER_8, _P - _ORDER_8}


class BadKey(ValueError):
    """A public key cannot be used; the message is one clause for people."""


@dataclass(frozen=True)
class Passkey:
    """What is known of a passkey beside its public key."""

    credential_id: str
    """In base64url."""
    rp_id: str
    """The site that it is for."""
    device_bound: bool
    """Whether it cannot leave its device, as its authenticator says."""

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Passkey:
        """Return the passkey of a file, or of a key's row."""
        id_, rp_id, bound = (members.get(name) for name in cls.__dataclass_fields__)
        try:
            raw = decode_base64url(id_) if isinstance(id_, str) else b""
        except ValueError:
            raw = b""
        if not 1 <= len(raw) <= _LONGEST_CREDENTIAL_ID:
            most = _LONGEST_CREDENTIAL_ID
            raise BadKey(f"its credential_id is not 1 to {most} bytes in base64url")
        known = isinstance(rp_id, str) and len(rp_id) <= _LONGEST_RP_ID
        if not known or not _RP_ID.fullmatch(str(rp_id)):
            raise BadKey("its rp_id is not a domain name in lower case")
        if not isinstance(bound, bool):
            raise BadKey("its device_bound is neither true nor false")
        return cls(str(id_), str(rp_id), bound)


@dataclass(frozen=True)
class PublicKey:
    """A public key as it is registered."""

    kid: str
    jwk: dict[str, str]
    passkey: Passkey | None = None
    """``None``: it signs JWS."""


def read_key_file(text: str) -> PublicKey:
    """Return the public key in a file: as PEM, as JWK, or as a page gives a passkey's."""
    members = _read_members(text.strip()) if text.strip().startswith("{") else {}
    if "kind" not in members:
        jwk = read_public_key(text)
        return PublicKey(kid_of(jwk), jwk)
    if members["kind"] != "webauthn" or members.keys() != _PASSKEY_FILE:
        raise BadKey(f"a passkey's file has kind webauthn, and {', '.join(sorted(_PASSKEY_FILE))}")
    inner = members["public_key"]
    jwk = check_passkey_jwk(inner if isinstance(inner, dict) else {})
    return PublicKey(kid_of(jwk), jwk, Passkey.of(members))


def read_public_key(pem_or_jwk_text: str) -> dict[str, str]:
    """Return a public key in PEM or JWK as a JWK of ``crv``, ``kty`` and ``x``."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    text = pem_or_jwk_text.strip()
    if "PRIVATE KEY" in text:
        raise BadKey("it is a private key: leave that with its owner, and give the public one")
    if text.startswith("{"):
        return check_jwk(_read_members(text))
    if text.count("-----BEGIN ") != 1:
        raise BadKey("it is neither one public key in PEM nor a JWK")
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey("it is not a public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey("it is not an Ed25519 key")
    from joserfc.jwk import OKPKey

    return check_jwk(OKPKey.import_key(key).as_dict())


def check_jwk(jwk: Mapping[str, Any]) -> dict[str, str]:
    """Return a JWK's ``crv``, ``kty`` and ``x``; other members, such as ``kid``, are left out."""
    if "d" in jwk:
        raise BadKey("it is a private key: leave that with its owner, and give the public one")
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
        raise BadKey("it is not an Ed25519 key")
    x = jwk.get("x")
    try:
        point = decode_base64url(x) if isinstance(x, str) else b""
    except ValueError:
        point = b""
    if len(point) != 32:
        raise BadKey("its x is not 32 bytes in base64url")
    y = int.from_bytes(point, "little") % 2**255  # the highest bit is the sign of the other one
    if y >= _P or y in _SMALL_ORDER:
        raise BadKey("it is a key that anybody can sign for, or not written as RFC 8032 has it")
    return {"crv": "Ed25519", "kty": "OKP", "x": str(x)}


def check_passkey_jwk(jwk: Mapping[str, Any]) -> dict[str, str]:
    """Return what counts of the JWK of a passkey's public key."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicNumbers

    if jwk.get("kty") == "OKP":
        return check_jwk(jwk)
    if "d" in jwk:
        raise BadKey("it is a private key: leave that with its owner, and give the public one")
    if jwk.get("kty") != "EC" or jwk.get("crv") != "P-256":
        raise BadKey("it is neither a P-256 key nor an Ed25519 key")
    point: dict[str, int] = {}
    for name in ("x", "y"):
        try:
            raw = decode_base64url(jwk[name]) if isinstance(jwk.get(name), str) else b""
        except ValueError:
            raw = b""
        if len(raw) != 32:
            raise BadKey(f"its {name} is not 32 bytes in base64url")
        point[name] = int.from_bytes(raw)
    try:
        EllipticCurvePublicNumbers(**point, curve=SECP256R1()).public_key()
    except ValueError as error:
        raise BadKey("it is no point of the curve P-256") from error
    return {"crv": "P-256", "kty": "EC", "x": str(jwk["x"]), "y": str(jwk["y"])}


def kid_of(jwk: Mapping[str, Any]) -> str:
    """Return the key id of a public key: its RFC 7638 thumbprint."""
    from joserfc.jwk import thumbprint

    return thumbprint(dict(check_passkey_jwk(jwk)))


def is_kid(value: Any) -> bool:
    """Return whether a value has the form of :func:`kid_of`."""
    return isinstance(value, str) and _KID.fullmatch(value) is not None


def decode_base64url(part: str) -> bytes:
    """Return the bytes of base64url without padding, in the one spelling that they have."""
    raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != part:
        raise ValueError("not canonical base64url")
    return raw


def _read_members(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise BadKey("it is not JSON, or has a name twice") from error
    return value if isinstance(value, dict) else {}


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON text's members; a hook of ``json.loads``."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands there twice")
    return members


C = TypeVar("C", bound=approvals.Claims)
S = TypeVar("S", bound=approvals.Signed)

#: Characters; some five times what the longest ids make of one.
LONGEST_TOKEN: Final = 4096
#: How far the signer's clock may be ahead of ours.
CLOCKS_APART: Final = timedelta(seconds=60)
#: All that the protected header has; ``crit``, ``jwk``, ``jku``, ``x5u``, ``x5c``, ``b64`` are not
#: looked at, but refused.
_HEADER: Final = {"alg", "typ", "kid"}


class BadSignature(Exception):
    """A signature is not taken; the message is one clause for people."""


def header_kid(token: str, typ: str) -> str:
    """Return the key id that a signature names: to find the key with, and trusted for no more."""
    if len(token) > LONGEST_TOKEN:
        raise BadSignature(f"the signature is longer than {LONGEST_TOKEN} characters")
    parts = token.split(".")
    if len(parts) != 3:
        raise BadSignature("the signature is not a compact JWS, which has three parts")
    try:
        header, _, _ = (decode_base64url(part) for part in parts)
    except ValueError as error:
        raise BadSignature("a part of the signature is not base64url") from error
    members = json_object(header, "the signature's header")
    if members.get("alg") != approvals.ALGORITHM:
        raise BadSignature(f"the signature's algorithm is not {approvals.ALGORITHM}")
    if members.get("typ") != typ:
        raise BadSignature(f"the signature's type is not {typ}")
    if members.keys() != _HEADER:
        raise BadSignature("the signature's header has not exactly alg, kid and typ")
    kid = members["kid"]
    # It is looked up in a database: no text of the sender's own making goes there.
    if not is_kid(kid):
        raise BadSignature("the signature's key id is not the thumbprint of a key")
    return str(kid)


def verify_in_time(
    token: str, public_jwk: Mapping[str, Any], claims_of: type[C], *, now_s: int
) -> C:
    """Return the claims of a signature that this key has made and that is still valid.

    Whether they are those of what carries the signature says the caller (:func:`find_mismatch` for
    decisions); whose key it is, and whether the nonce is fresh, knows the ledger. Expiry is judged
    by ``now_s``, seconds since 1970.
    """
    claims = verify_token(token, public_jwk, claims_of)
    require_in_time(claims, now_s)
    return claims


def require_in_time(claims: approvals.Claims, now_s: int) -> None:
    """Make sure that a signature is still valid, and made for no longer than one may be."""
    if claims.exp <= now_s:
        raise BadSignature("the signature has expired")
    longest = int(approvals.LONGEST_SIGNATURE.total_seconds())
    if not 0 < claims.exp - claims.iat <= longest:
        raise BadSignature(f"the signature is not made for 1 to {longest} s")
    if claims.iat > now_s + CLOCKS_APART.total_seconds():
        raise BadSignature("the signature is made in the future: the signer's clock is ahead")


def verify_token(token: str, public_jwk: Mapping[str, Any], claims_of: type[S]) -> S:
    """Return the claims of a signature that this key has made, whenever that was."""
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import OKPKey

    kid = header_kid(token, claims_of.typ)
    try:
        key = check_jwk(public_jwk)
    except BadKey as error:
        raise BadSignature(f"the signature's key on record cannot be used: {error}") from error
    if kid_of(key) != kid:
        raise BadSignature("the signature is made with another key")
    try:
        signed = jws.deserialize_compact(
            token, OKPKey.import_key({**key}), registry=signature_registry()
        )
    except JoseError as error:
        raise BadSignature("the signature does not fit what it signs") from error
    return parse_claims(signed.payload, claims_of)


def read_claims(token: str, claims_of: type[S]) -> S:
    """Return what a signature claims, whoever has made it: to be shown, and trusted for no more."""
    header_kid(token, claims_of.typ)
    return parse_claims(decode_base64url(token.split(".")[1]), claims_of)


def find_mismatch(
    claims: approvals.DecisionClaims, decision: approvals.Decision, run_id: str, tenant: str
) -> str | None:
    """Return why the claims are not those of this decision, as one clause; ``None``: they are.

    The digest of an edit's new params, ``claims.edited``, is compared by whoever has them.
    """
    bound = {
        "another tenant": (claims.aud, approvals.audience(tenant)),
        "another run": (claims.run_id, run_id),
        "another approval": (claims.approval_id, decision.approval_id),
        "other params": (claims.params_hash, decision.params_hash),
        "another outcome": (claims.outcome, decision.outcome),
        "another approver": (claims.sub, decision.approver),
    }
    for what, (signed, sent) in bound.items():
        if signed != sent:
            return f"the signature is for {what}"
    if claims.edited is not None and claims.outcome.value != "edit":
        return f"the signature is for new params, which {claims.outcome.value} has not"
    return None


def parse_claims(payload: bytes, claims_of: type[S]) -> S:
    members = json_object(payload, "what is signed")
    try:
        return claims_of.model_validate(members)
    except ValidationError as error:
        claim = str(error.errors()[0]["loc"][0])
        raise BadSignature(
            f"the signed claim {claim[:40]!r} is missing, unknown or wrong"
        ) from error


def json_object(raw: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object with each name once: readers disagree about which of two counts."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_names)
        # JSON can escape half a character, which no database takes.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BadSignature(f"{what} is not JSON text, or has a name twice") from error
    if not isinstance(value, dict):
        raise BadSignature(f"{what} is not a JSON object")
    return value
