"""``surehand-verify``: whether a receipt is right, judged by a stranger, without ledger or server.

This file stands alone: it needs Python's standard library and ``cryptography``, so it can be copied
to whoever is to check a receipt. Worker and ``audit`` judge by the same functions. What a receipt
has, and what is signed, is written down in ``docs/reference/receipts.md``.

Signatures are compact JWS (RFC 7515) by Ed25519 keys, or gestures of passkeys (WebAuthn's
assertions, ``docs/guarantees/passkeys.md``). What is around them is stricter than JOSE asks for, so
that a signature has one spelling, and nothing in it chooses its algorithm or its key. Keys are
known by their thumbprint (RFC 7638).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import signal
import sys
import unicodedata
from argparse import ArgumentParser
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple

Event = Mapping[str, Any]
Claims = dict[str, Any]


class Invalid(ValueError):
    """Something is not taken; the message is one clause for people."""


class BadKey(Invalid):
    """A public key cannot be used."""


class BadSignature(Invalid):
    """A signature is not taken."""


# JSON: one spelling for each value (RFC 8785), so that whatever was changed shows. The worker has
# ``rfc8785`` for that, which is not here.

#: Lists and objects inside one another.
DEEPEST: Final = 100


def canonical(value: Any, depth: int = 0) -> str:
    """Return the RFC 8785 form of a JSON value."""
    if depth > DEEPEST:
        raise Invalid("lists and objects are nested too deeply")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Invalid("a text has half of a character") from error
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        if abs(value) >= 2**53:
            raise Invalid("numbers from 2^53 lose digits")
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(canonical(one, depth + 1) for one in value)}]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: str(name).encode("utf-16-be", "surrogatepass"))
        pairs = (f"{canonical(name)}:{canonical(value[name], depth + 1)}" for name in names)
        return f"{{{','.join(pairs)}}}"
    raise Invalid(f"JSON has no {type(value).__name__}")


def _number(value: float) -> str:
    """Return a number as ECMAScript writes it."""
    if not math.isfinite(value):
        raise Invalid("a number is infinite, or none")
    if value == 0:
        return "0"
    sign, found, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, found)).rstrip("0")
    point = len(found) + exponent
    if 0 < point <= 21:
        whole = digits[:point].ljust(point, "0")
        text = f"{whole}.{digits[point:]}" if len(digits) > point else whole
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        more = f".{digits[1:]}" if len(digits) > 1 else ""
        text = f"{digits[0]}{more}e{point - 1:+d}"
    return f"-{text}" if sign else text


def digest_of(value: Any) -> str:
    """Return ``sha256:<hex>`` over the canonical JSON of a value."""
    return f"sha256:{hashlib.sha256(canonical(value).encode()).hexdigest()}"


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON text's members; a hook of ``json.loads``."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands there twice")
    return members


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


def decode_base64url(part: str) -> bytes:
    """Return the bytes of base64url without padding, in the one spelling that they have."""
    raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if encode_base64url(raw) != part:
        raise ValueError("not canonical base64url")
    return raw


def encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode_member(value: Any) -> bytes:
    """Return the bytes of a text in base64url; none if it is no such text."""
    try:
        return decode_base64url(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


# Keys. One that signs JWS is an Ed25519 key. A passkey's is one, too, or one of the curve P-256, or
# of RSA, and has its credential beside it: neither counts in the place of the other.

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
        if not 1 <= len(_decode_member(id_)) <= _LONGEST_CREDENTIAL_ID:
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
    return check_jwk(
        {"crv": "Ed25519", "kty": "OKP", "x": encode_base64url(key.public_bytes_raw())}
    )


def _read_members(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise BadKey("it is not JSON, or has a name twice") from error
    return value if isinstance(value, dict) else {}


def check_jwk(jwk: Mapping[str, Any]) -> dict[str, str]:
    """Return a JWK's ``crv``, ``kty`` and ``x``; other members, such as ``kid``, are left out."""
    if "d" in jwk:
        raise BadKey("it is a private key: leave that with its owner, and give the public one")
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
        raise BadKey("it is not an Ed25519 key")
    point = _decode_member(jwk.get("x"))
    if len(point) != 32:
        raise BadKey("its x is not 32 bytes in base64url")
    y = int.from_bytes(point, "little") % 2**255  # the highest bit is the sign of the other one
    if y >= _P or y in _SMALL_ORDER:
        raise BadKey("it is a key that anybody can sign for, or not written as RFC 8032 has it")
    return {"crv": "Ed25519", "kty": "OKP", "x": str(jwk["x"])}


def check_passkey_jwk(jwk: Mapping[str, Any]) -> dict[str, str]:
    """Return what counts of the JWK of a passkey's public key."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicNumbers

    if jwk.get("kty") == "OKP":
        return check_jwk(jwk)
    if "d" in jwk:
        raise BadKey("it is a private key: leave that with its owner, and give the public one")
    if jwk.get("kty") == "RSA":
        n = _decode_member(jwk.get("n"))
        if jwk.get("e") != "AQAB" or not 256 <= len(n) <= 512 or n[0] < 128 or not n[-1] % 2:
            raise BadKey("it is no RSA key of 2,048 to 4,096 bits with the exponent 65537")
        return {"e": "AQAB", "kty": "RSA", "n": str(jwk["n"])}
    if jwk.get("kty") != "EC" or jwk.get("crv") != "P-256":
        raise BadKey("it is no P-256, Ed25519 or RSA key")
    x, y = (_decode_member(jwk.get(name)) for name in ("x", "y"))
    if len(x) != 32 or len(y) != 32:
        raise BadKey("its x or y is not 32 bytes in base64url")
    try:
        EllipticCurvePublicNumbers(int.from_bytes(x), int.from_bytes(y), SECP256R1()).public_key()
    except ValueError as error:
        raise BadKey("it is no point of the curve P-256") from error
    return {"crv": "P-256", "kty": "EC", "x": str(jwk["x"]), "y": str(jwk["y"])}


def kid_of(jwk: Mapping[str, Any]) -> str:
    """Return the key id of a public key: its RFC 7638 thumbprint."""
    found = canonical(check_passkey_jwk(jwk))
    return encode_base64url(hashlib.sha256(found.encode()).digest())


def is_kid(value: Any) -> bool:
    """Return whether a value has the form of :func:`kid_of`."""
    return isinstance(value, str) and _KID.fullmatch(value) is not None


def _fits(jwk: Mapping[str, str], signature: bytes, signed: bytes) -> bool:
    """Return whether a key has made this signature."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256

    raw = [decode_base64url(jwk[name]) for name in ("n", "x", "y") if name in jwk]
    numbers = [int.from_bytes(one) for one in raw]
    try:
        if jwk["kty"] == "OKP":
            ed25519.Ed25519PublicKey.from_public_bytes(*raw).verify(signature, signed)
        elif jwk["kty"] == "RSA":
            key = rsa.RSAPublicNumbers(65537, *numbers).public_key()
            key.verify(signature, signed, padding.PKCS1v15(), SHA256())
        else:
            # OpenSSL takes the two numbers in the one spelling that DER has of them.
            x, y = numbers
            point = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
            point.verify(signature, signed, ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


# Signatures of keys.

#: The one algorithm, with keys on the curve Ed25519: what a header says never chooses another.
ALGORITHM: Final = "EdDSA"
#: Characters; some five times what the longest ids make of one.
LONGEST_TOKEN: Final = 4096
#: Seconds from signing to expiry at most, and those that the signer's clock may be ahead.
LONGEST_SIGNATURE: Final = 600
CLOCKS_APART: Final = 60
#: All that the protected header has; ``crit``, ``jwk``, ``jku``, ``x5u``, ``x5c``, ``b64`` are not
#: looked at, but refused.
_HEADER: Final = {"alg", "typ", "kid"}


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
    if members.get("alg") != ALGORITHM:
        raise BadSignature(f"the signature's algorithm is not {ALGORITHM}")
    if members.get("typ") != typ:
        raise BadSignature(f"the signature's type is not {typ}")
    if members.keys() != _HEADER:
        raise BadSignature("the signature's header has not exactly alg, kid and typ")
    kid = members["kid"]
    # It is looked up in a database: no text of the sender's own making goes there.
    if not is_kid(kid):
        raise BadSignature("the signature's key id is not the thumbprint of a key")
    return str(kid)


def read_payload(token: str, public_jwk: Mapping[str, Any], typ: str) -> bytes:
    """Return what a compact JWS of this type signs, which this key has made."""
    kid = header_kid(token, typ)
    try:
        key = check_jwk(public_jwk)
    except BadKey as error:
        raise BadSignature(f"the signature's key on record cannot be used: {error}") from error
    if kid_of(key) != kid:
        raise BadSignature("the signature is made with another key")
    signed, _, mark = token.rpartition(".")
    if not _fits(key, decode_base64url(mark), signed.encode()):
        raise BadSignature("the signature does not fit what it signs")
    return decode_base64url(signed.partition(".")[2])


def require_in_time(claims: Mapping[str, Any], now_s: int) -> None:
    """Make sure that a signature is still valid, and made for no longer than one may be."""
    if claims["exp"] <= now_s:
        raise BadSignature("the signature has expired")
    if not 0 < claims["exp"] - claims["iat"] <= LONGEST_SIGNATURE:
        raise BadSignature(f"the signature is not made for 1 to {LONGEST_SIGNATURE} s")
    if claims["iat"] > now_s + CLOCKS_APART:
        raise BadSignature("the signature is made in the future: the signer's clock is ahead")


# Gestures of passkeys. The challenge is computed here, from the claims: what a page has shown or
# sent beside them counts for nothing.

#: Of a passkey's proof, as ``typ`` is of a JWS; its challenge begins with it.
PASSKEY_TYP: Final = "surehand-decision+webauthn"
#: What the challenge begins with that is made of several decisions.
PASSKEY_LIST: Final = "surehand-decision+webauthn-list"
#: Decisions that one gesture may be over.
MOST_DECISIONS: Final = 50
#: Characters; some three times what a gesture over the most decisions makes of one.
LONGEST_PROOF: Final = 16_384
_LONGEST_AUTHENTICATOR_DATA: Final = 1024
_LONGEST_CLIENT_DATA: Final = 2048
_GESTURE: Final = {"alg", "kid", "typ", "authenticator_data", "client_data", "credential_id"}
_ALGORITHMS: Final = {"EC": "ES256", "OKP": "EdDSA", "RSA": "RS256"}
#: As browsers write the origin of a page that can have passkeys.
_ORIGIN: Final = re.compile(
    r"(?:https://(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)*)"
    r"|http://(?P<local>(?:[a-z0-9-]+\.)*localhost))(?::(?!443$)[1-9][0-9]{0,4})?"
)
#: Flags of authenticator data: somebody was there, and was recognised; the passkey may be, and is,
#: on other devices; what a registration and extensions add.
_UP, _UV, _BE, _BS, _AT, _ED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80
#: Hash of the relying party's id, flags, counter.
_SHORTEST_AUTHENTICATOR_DATA: Final = 32 + 1 + 4
#: Levels of what extensions add: a map in a map.
_DEEPEST_CBOR: Final = 8


def host_of(origin: str) -> str | None:
    """Return the host of a page that can have passkeys, by its origin; ``None``: it is none."""
    found = _ORIGIN.fullmatch(origin)
    return None if found is None else found["host"] or found["local"]


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


def is_gesture(proof: str, typ: str = PASSKEY_TYP) -> bool:
    """Return whether a text says of itself that it is a passkey's proof of this type."""
    if len(proof) > LONGEST_PROOF:
        return False
    try:
        header = json_object(decode_base64url(proof.split(".", 1)[0]), "the header")
    except ValueError:
        return False
    return header.get("typ") == typ


def read_gesture(proof: str, typ: str = PASSKEY_TYP) -> Gesture:
    """Return the parts of a proof."""
    if len(proof) > LONGEST_PROOF:
        raise BadSignature(f"the passkey's proof is longer than {LONGEST_PROOF} characters")
    parts = proof.split(".")
    if len(parts) != 3:
        raise BadSignature("the passkey's proof has not three parts")
    raw, _, signature = (_decode_bytes(part, "a part of the passkey's proof") for part in parts)
    header = json_object(raw, "the header of the passkey's proof")
    if header.keys() - {"digests"} != _GESTURE:
        raise BadSignature("the header of the passkey's proof has not exactly the members it needs")
    if header["typ"] != typ:
        raise BadSignature(f"the type of the passkey's proof is not {typ}")
    if "digests" in header and typ != PASSKEY_TYP:
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


def _read_digests(value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else []
    if not 2 <= len(listed) <= MOST_DECISIONS:
        raise BadSignature(f"a passkey's gesture over a list is over 2 to {MOST_DECISIONS} digests")
    # A digest has the form of a key id: 32 bytes in base64url.
    if not all(map(is_kid, listed)) or len(set(listed)) != len(listed):
        raise BadSignature("the passkey's list has what is no digest, or one of them twice")
    return tuple(listed)


def _decode_bytes(text: Any, what: str, most: int = LONGEST_PROOF) -> bytes:
    raw = _decode_member(text)
    if not raw and text != "":
        raise BadSignature(f"{what}: it is not base64url")
    if len(raw) > most:
        raise BadSignature(f"{what}: more than {most} bytes")
    return raw


def verify_gesture(
    gesture: Gesture,
    public_jwk: Mapping[str, Any],
    passkey: Passkey,
    *,
    origins: Collection[str] | None,
) -> bytes:
    """Return the claims that this passkey has signed, whenever that was.

    Gestures are made on pages of these origins; ``None``: that was looked at before.
    """
    try:
        jwk = check_passkey_jwk(public_jwk)
    except BadKey as error:
        raise BadSignature(f"the passkey's key on record cannot be used: {error}") from error
    if kid_of(jwk) != gesture.kid or passkey.credential_id != gesture.credential_id:
        raise BadSignature("the passkey's proof is made with another passkey")
    if _ALGORITHMS[jwk["kty"]] != gesture.algorithm:
        raise BadSignature("the algorithm of the passkey's proof is not that of its key")
    _judge_client_data(gesture, passkey.rp_id, origins)
    _judge_authenticator_data(gesture.authenticator_data, passkey)
    signed = gesture.authenticator_data + hashlib.sha256(gesture.client_data).digest()
    if not _fits(jwk, gesture.signature, signed):
        raise BadSignature("the passkey's signature does not fit what it signs")
    return decode_base64url(gesture.claims)


def challenge_of(gesture: Gesture) -> bytes:
    """Return the challenge of the gesture that decides this: it is made of its claims alone."""
    own = hashlib.sha256(f"{gesture.typ}\n{gesture.claims}".encode()).digest()
    if gesture.digests is None:
        return own
    if encode_base64url(own) not in gesture.digests:
        raise BadSignature("the passkey's gesture is over a list without this decision")
    listed = "\n".join((PASSKEY_LIST, *gesture.digests))
    return hashlib.sha256(listed.encode()).digest()


def _judge_client_data(gesture: Gesture, rp_id: str, origins: Collection[str] | None) -> None:
    said = json_object(gesture.client_data, "the client data of the passkey's proof")
    if said.get("type") != "webauthn.get":
        raise BadSignature("the passkey's gesture is not webauthn.get")
    if said.get("challenge") != encode_base64url(challenge_of(gesture)):
        raise BadSignature("the passkey's gesture is for something else: another challenge")
    if said.get("crossOrigin", False) is not False or "topOrigin" in said:
        raise BadSignature("the passkey's gesture was made in a page inside another one")
    origin = said.get("origin")
    host = host_of(origin) if isinstance(origin, str) else None
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


# The chain of events, and what they say about each effect.

#: The head of a run that has no event yet.
GENESIS: Final = "sha256:" + "0" * 64
#: What an event's hash covers, beside the hash before it.
HASHED: Final = ("run_id", "seq", "type", "step_id", "body", "at_ms")
#: How much proves a decision, from nothing to a passkey that cannot leave its device.
PROOFS: Final = ("open", "chat", "signed", "passkey", "device_passkey")
#: The end of a step's id that stands for one item of a list.
_ITERATION: Final = re.compile(r"\[[0-9]+\]$")


class SignedHead(NamedTuple):
    """The newest event of a chain, as a signature has it."""

    seq: int
    hash: str


@dataclass(frozen=True)
class Break:
    """Something that does not hold."""

    seq: int
    """The event where it shows; 0 for the chain as a whole."""
    reason: str

    def __str__(self) -> str:
        return f"event {self.seq}: {self.reason}" if self.seq else self.reason


def verify_chain(events: Sequence[Event], heads: Iterable[Any] = ()) -> Break | None:
    """Return the first break of a run's chain, or ``None`` if it holds.

    It must pass through each head that was recorded elsewhere (the ledger's run row, Temporal's
    history), so that a rewritten or shortened one shows.
    """
    previous, hashes = GENESIS, {0: GENESIS}
    for seq, event in enumerate(events, start=1):
        if event["seq"] != seq:
            return Break(seq, f"missing: the next one that is there is {event['seq']}")
        if event["previous"] != previous:
            return Break(seq, "does not follow the event before it")
        try:
            hashed = canonical({name: event[name] for name in HASHED})
        except Invalid as error:
            return Break(seq, f"has no canonical JSON form: {error}")
        linked = f"{previous}\n{hashed}".encode()
        computed = f"sha256:{hashlib.sha256(linked).hexdigest()}"
        if event["hash"] != computed:
            return Break(seq, "was changed: its hash does not fit its content")
        previous = hashes[seq] = computed
    for head in sorted(heads, key=lambda head: head.seq):
        if head.seq not in hashes:
            return Break(0, f"the chain ends at {len(events)}, but event {head.seq} was recorded")
        if hashes[head.seq] != head.hash:
            return Break(head.seq, "is not the one that was recorded when it was written")
    return None


@dataclass
class _Story:
    """What the events have said so far."""

    gated: set[str] = field(default_factory=set)
    asked: dict[str, Event] = field(default_factory=dict)
    """The request by approval id."""
    votes: dict[str, set[str]] = field(default_factory=dict)
    """Who has said yes, in a way that counts for the request, by approval id."""
    approved: set[str] = field(default_factory=set)
    waived: set[tuple[str | None, str]] = field(default_factory=set)
    """Steps and params hashes that no policy asks a human about."""
    consumed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Entry and params hash by approval id."""
    claimed: dict[str, Event] = field(default_factory=dict)
    """The newest claim of each entry."""
    committed: set[str] = field(default_factory=set)
    """Entries that are committed and not compensated."""


def verify_story(events: Sequence[Event]) -> Break | None:
    """Return the first event that should not be where it is, or ``None``.

    Checked are: each approval was asked for and given by as many people as were asked for, signed
    where that was asked for, before it was used;
    it was used in time, by one entry, for the params that were asked about; each claim of a step
    that needed an approval had one; no entry was committed twice.
    """
    story = _Story()
    for event in events:
        reason = _take_event(story, event)
        if reason is not None:
            return Break(event["seq"], reason)
    return None


def find_committed(events: Sequence[Event]) -> set[str]:
    """Return the entries that stand committed by what the events say."""
    story = _Story()
    for event in events:
        _take_event(story, event)
    return story.committed


def _take_event(story: _Story, event: Event) -> str | None:
    body = event["body"]
    match event["type"]:
        case "run.opened":
            story.gated = set(body.get("gated", []))
        case "run.amended":
            story.gated |= set(body.get("gated", []))
        case "approval.requested":
            story.asked[body["approval_id"]] = body
            # What was waived before somebody was asked is not waived any more.
            story.waived = {waived for waived in story.waived if waived[0] != event["step_id"]}
        case "decision.accepted":
            _take_vote(story, body, body.get("outcome"))
        case "approval.standing_used":
            _take_vote(story, body, "approve")
        case "approval.approved":
            return _take_approval(story, body["approval_id"])
        case "approval.waived":
            story.waived.add((event["step_id"], body["params_hash"]))
        case "approval.expired" | "approval.void" | "approval.standing_returned":
            story.approved.discard(body["approval_id"])
        case "approval.consumed":
            return _take_use(story, body, event["at_ms"])
        case "effect.claimed":
            return _take_claim(story, event["step_id"], body)
        case "effect.in_doubt" if body.get("rule") == _RESTORED:
            # It may have been claimed: of that, and its approval, the ledger has forgotten all.
            story.claimed.setdefault(body["entry_id"], body)
        case "effect.committed":
            return _take_commit(story, body)
        case "intervention.settled" if body.get("action") == "committed":
            story.committed.add(body["entry_id"])
        case "effect.compensated":
            story.committed.discard(body["entry_id"])
    return None


def _take_vote(story: _Story, body: Event, outcome: str | None) -> None:
    asked = story.asked.get(body["approval_id"], {})
    if outcome == "approve" and _level(_proof_of_vote(body)) >= _level(asked.get("assurance")):
        votes = story.votes.setdefault(body["approval_id"], set())
        votes.add(fold_name(body.get("approver") or ""))


def fold_name(name: str) -> str:
    """Return what the spellings of a name have in common.

    Case, width, blanks, how accents are made and characters that nobody sees make no other person.
    Only to tell people apart: nobody has a role, a permission or a key but by the exact name.
    """
    seen = "".join(c for c in name if unicodedata.category(c) != "Cf")
    alike = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return " ".join(alike.split())


def _level(proof: Any) -> int:
    """Return how much a proof is; one that is not known needs all there is."""
    if proof is None:
        return 0
    return PROOFS.index(proof) if proof in PROOFS else len(PROOFS) - 1


def _proof_of_vote(body: Event) -> str:
    """Return what proves a vote, as its event says."""
    proof = body.get("proof")
    return "open" if not body.get("verified") else str(proof) if proof in PROOFS else "signed"


def _take_approval(story: _Story, approval_id: str) -> str | None:
    story.approved.add(approval_id)
    asked = story.asked.get(approval_id)
    wanted = asked.get("quorum", 1) if asked else 0
    found = len(story.votes.get(approval_id, ()))
    if found >= wanted:
        return None
    return f"approval {approval_id} was given by {found} of {wanted} people who were asked for"


def _take_use(story: _Story, body: Event, at_ms: int) -> str | None:
    approval_id, entry = body["approval_id"], body["entry_id"]
    if approval_id not in story.asked:
        return f"approval {approval_id} was used, but never asked for"
    if approval_id not in story.approved:
        return f"approval {approval_id} was used, but no decision approved it"
    # Its time stood still while calls were halted; who has used it says for how long.
    if story.asked[approval_id]["expires_ms"] <= at_ms - body.get("halted_ms", 0):
        return f"approval {approval_id} was used after it had expired"
    if body["params_hash"] != story.asked[approval_id]["params_hash"]:
        return f"approval {approval_id} was used for other params than were asked about"
    if approval_id in story.consumed and story.consumed[approval_id][0] != entry:
        return f"approval {approval_id} was used by two entries"
    story.consumed[approval_id] = (entry, body["params_hash"])
    return None


def _take_claim(story: _Story, step_id: str | None, body: Event) -> str | None:
    entry, approval_id = body["entry_id"], body.get("approval_id")
    if entry in story.committed:
        return f"entry {entry} was claimed again although it stands committed"
    if _ITERATION.sub("", step_id or "") in story.gated and not body.get("undoes"):
        if approval_id is None and (step_id, body["params_hash"]) in story.waived:
            story.claimed[entry] = body
            return None
        used = story.consumed.get(approval_id) if approval_id else None
        if used is None or used[0] != entry:
            return f"entry {entry} of step {step_id} was claimed without its approval"
        if used[1] != body["params_hash"]:
            return f"entry {entry} of step {step_id} was claimed with other params than approved"
    story.claimed[entry] = body
    return None


def _take_commit(story: _Story, body: Event) -> str | None:
    entry = body["entry_id"]
    if entry not in story.claimed:
        return f"entry {entry} was committed without a claim"
    if entry in story.committed:
        return f"entry {entry} was committed twice"
    story.committed.add(entry)
    return None


#: The rule of an outcome in doubt that the ledger has forgotten, because it was restored.
_RESTORED: Final = "restored"
#: Ends of a run after which an effect that remains should have been undone.
_UNDOES: Final = frozenset({"run.failed", "run.cancelled", "run.stopped"})
#: What an entry is whose question was opened by a rule; in doubt by any other.
_ASKED: Final = {
    "partial": "partial",
    "compensation_failed": "compensating",
    "undo_changed": "compensating",
    "undo_refused": "compensating",
}


@dataclass
class EffectsPast:
    """What a run's events have said of its effects, from the first event to one of them."""

    states: dict[str, str] = field(default_factory=dict)
    """Of the entries, by entry."""
    names: dict[str, str] = field(default_factory=dict)
    undos: dict[str, str] = field(default_factory=dict)
    """The entry that is undone, by entry of the undo."""
    questions: dict[str, str] = field(default_factory=dict)
    """Entry by open intervention."""
    ended: str | None = None


@dataclass(frozen=True)
class OpenItems:
    """Entries by what is open about them, as ``tool (step STEP, entry ENTRY)``."""

    uncompensated: list[str]
    """Committed in a run that has failed or was cancelled, and not undone."""
    in_doubt: list[str]
    """Nobody knows whether it happened."""
    partial: list[str]
    interventions: list[str]
    """Ids of questions that no human has answered."""


def find_open_items(events: Sequence[Event]) -> OpenItems:
    """Return what all of a run's events leave open."""
    past = EffectsPast()
    for event in events:
        take_effect(past, event)
    if past.ended is not None:
        # A call that was under way when its run ended has no recorded outcome.
        past.states = {k: "in_doubt" if v == "claimed" else v for k, v in past.states.items()}

    def named(*states: str) -> list[str]:
        return [
            past.names.get(entry, entry)
            for entry, state in past.states.items()
            # That an undo remains is as it should be.
            if state in states and not (state == "committed" and entry in past.undos)
        ]

    return OpenItems(
        uncompensated=named("committed", "compensating") if past.ended in _UNDOES else [],
        in_doubt=named("in_doubt"),
        partial=named("partial"),
        interventions=list(past.questions),
    )


def take_effect(past: EffectsPast, event: Event) -> None:
    """Take in what an event says of effects, of questions about them, and of the run's end."""
    body = event["body"]
    entry = str(body.get("entry_id", ""))
    restored = body.get("rule") == _RESTORED
    match event["type"]:
        case "effect.claimed" | "effect.in_doubt" as type_ if type_ == "effect.claimed" or restored:
            past.names[entry] = f"{body.get('tool')} (step {event['step_id']}, entry {entry})"
            past.states[entry] = "claimed" if type_ == "effect.claimed" else "in_doubt"
            if body.get("undoes"):
                past.undos[entry] = str(body["undoes"])
                past.states[str(body["undoes"])] = "compensating"
        case "effect.in_doubt":
            if past.states.get(entry) != "partial":
                past.states[entry] = "in_doubt"
        case "effect.committed":
            past.states[entry] = "committed"
        case "effect.compensated":
            past.states[entry] = "compensated"
        case "effect.answered_no":
            past.states[entry] = "failed"
        case "effect.failed":
            # Its newest call is proven not applied; an earlier one may still have been.
            past.states[entry] = "in_doubt" if body.get("action") == "reconcile" else "failed"
        case "effect.reconciled" if body.get("action") in ("bar", "fail"):
            past.states[entry] = "failed"
        case "intervention.opened":
            past.questions[str(body["intervention_id"])] = entry
            # A question about another run's effect, which that run has undone, is only a question.
            if entry in past.states:
                past.states[entry] = _ASKED.get(str(body.get("rule")), "in_doubt")
        case "intervention.settled":
            past.questions.pop(str(body["intervention_id"]), None)
            if entry in past.states:
                past.states[entry] = str(body["action"])
        case "run.completed" | "run.failed" | "run.cancelled" | "run.stopped":
            past.ended = event["type"]
        case "run.reopened":
            past.ended = None


def find_erasure(events: Sequence[Event]) -> str | None:
    """Return when a run was erased, by whom, and why; ``None``: it was not."""
    for event in events:
        if event["type"] == "run.erased":
            at, body = shown_time(event["at_ms"] // 1000), event["body"]
            why = f": {body['because']}" if body.get("because") else ""
            return f"on {at} by {body['actor']}{why}"
    return None


def shown_time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


# A receipt: the chain, the decisions as they were signed, and the keys that they verify against.

FORMAT: Final = "surehand-receipt/1"
RECEIPT_TYP: Final = "surehand-receipt+jws"
#: Bytes of a receipt at most.
LARGEST_RECEIPT_FILE: Final = 128 * 1024 * 1024
#: Of the year 9999: what follows is no date.
_LAST_SECOND: Final = 253_402_300_799
_TEXT, _NUMBER, _MAYBE = (str,), (int,), (str, NoneType)
#: What each part of a receipt has: exactly these members, of these types.
SHAPES: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "receipt": {
        **{"format": _TEXT, "tenant": _TEXT, "run_id": _TEXT, "start": (dict,), "events": (list,)},
        **{"decisions": (list,), "standing": (list,), "keys": (list,)},
        **{"signer": (dict,), "signature": _TEXT},
    },
    "start": {
        **{"user": _TEXT, "started_by": _TEXT, "at_ms": _NUMBER},
        **{"kid": _MAYBE, "nonce": _MAYBE, "signature": _MAYBE},
    },
    "events": {
        **{"run_id": _TEXT, "seq": _NUMBER, "type": _TEXT, "step_id": _MAYBE, "body": (dict,)},
        **{"at_ms": _NUMBER, "previous": _TEXT, "hash": _TEXT},
    },
    "decisions": {
        **{"decision_id": _TEXT, "approval_id": _TEXT, "approver": _TEXT, "outcome": _TEXT},
        **{"params_hash": _TEXT, "verified": (bool,), "assurance": _MAYBE, "at_ms": _NUMBER},
        **{"deputy_for": _MAYBE, "standing_id": _MAYBE},
        **{"kid": _MAYBE, "nonce": _MAYBE, "signature": _MAYBE},
    },
    "standing": {
        **{"standing_id": _TEXT, "granter": _TEXT, "scope": (dict,), "granted_ms": _NUMBER},
        **{"kid": _MAYBE, "nonce": _TEXT, "signature": _MAYBE},
    },
    "keys": {
        **{"kid": _TEXT, "principal": _TEXT, "public_key": (dict,)},
        **{"passkey": (dict, NoneType), "revoked_ms": (int, NoneType)},
    },
}
#: A decision that its approver has signed; one by a button in a chat, which the principal ``chat``
#: signs for them.
_DECISION, _BY_BUTTON = "surehand-decision+jws", "surehand-decision+chat"
NO_PRESS: Final = "keys of chat sign presses in a chat, and nothing else"
_SIGNED: Final[Mapping[str, tuple[type, ...]]] = {"aud": _TEXT, "sub": _TEXT, "iat": _NUMBER}
_ONCE: Final[Mapping[str, tuple[type, ...]]] = {**_SIGNED, "exp": _NUMBER, "jti": _TEXT}
_DECIDED: Final[Mapping[str, tuple[type, ...]]] = {
    **{**_ONCE, "run_id": _TEXT, "approval_id": _TEXT, "params_hash": _TEXT},
    **{"outcome": _TEXT, "edited": _MAYBE, "reason": _MAYBE},
}
#: The claims of each kind of signature; what may be absent is ``None`` then.
CLAIMS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    RECEIPT_TYP: {**_SIGNED, "run_id": _TEXT, "seq": _NUMBER, "head": _TEXT, "content": _TEXT},
    "surehand-start+jws": {**_ONCE, "run_id": _TEXT, "user": _TEXT, "content": _TEXT},
    "surehand-standing+jws": {**_ONCE, "scope": (dict,)},
    _DECISION: _DECIDED,
    _BY_BUTTON: {**_DECIDED, "account": _TEXT},
}


def parse_receipt(raw: bytes) -> dict[str, Any]:
    """Return a receipt, of which only the form was looked at."""
    if len(raw) > LARGEST_RECEIPT_FILE:
        raise Invalid(f"it is larger than {LARGEST_RECEIPT_FILE} bytes, which no receipt is")
    try:
        text = raw.decode("utf-8").removesuffix("\n")
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise Invalid("lists and objects are nested too deeply") from error
    except ValueError as error:
        raise Invalid("it is not JSON") from error
    if canonical(value) != text:
        raise Invalid(
            "it is not written as receipts are (RFC 8785): it was changed, has a name twice, or a"
            " number in another form"
        )
    receipt = _require_shape(value, SHAPES["receipt"], "it")
    if receipt["format"] != FORMAT:
        raise Invalid(f"its format is not {FORMAT}")
    _require_shape(receipt["start"], SHAPES["start"], "its start")
    for part in ("events", "decisions", "standing", "keys"):
        for number, one in enumerate(receipt[part], start=1):
            _require_shape(one, SHAPES[part], f"number {number} of its {part}")
    return receipt


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def _require_shape(value: Any, shape: Mapping[str, tuple[type, ...]], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != shape.keys():
        raise Invalid(f"{what} has not exactly the members {', '.join(shape)}")
    for name, types in shape.items():
        if type(value[name]) not in types:
            raise Invalid(f"{what}: {name} is of another type than it should be")
    return value


def read_claims(payload: bytes, typ: str) -> Claims:
    """Return what a signature claims."""
    shape = CLAIMS[typ]
    optional = {name: None for name, types in shape.items() if NoneType in types}
    try:
        return _require_shape(optional | json_object(payload, "what is signed"), shape, "it")
    except BadSignature:
        raise
    except Invalid as error:
        raise BadSignature("what is signed is not what this kind of signature is over") from error


@dataclass(frozen=True)
class Proven:
    """A signature that holds."""

    key: Mapping[str, Any]
    claims: Claims

    @property
    def proof(self) -> str:
        """How much it proves."""
        passkey = self.key["passkey"]
        if passkey is not None:
            return "device_passkey" if passkey.get("device_bound") is True else "passkey"
        return "chat" if "account" in self.claims else "signed"


def _prove(
    kept: Mapping[str, Any], signer: str, typ: str, receipt: Mapping[str, Any], taken_ms: int
) -> Proven:
    """Verify a signature on record, with a key of its signer's that counted when it was taken."""
    token = kept["signature"]
    if token is None:
        raise BadSignature("it is not signed")
    gesture = read_gesture(token) if typ == _DECISION and is_gesture(token) else None
    # A gesture's header has more than that of a JWS, but says its type in the same way.
    by_button = typ == _DECISION and is_gesture(token, _BY_BUTTON)
    typ, owner = (_BY_BUTTON, "chat") if by_button else (typ, signer)
    if owner == "chat" and not by_button:
        raise BadSignature(NO_PRESS)
    kid = header_kid(token, typ) if gesture is None else gesture.kid
    key = next((one for one in receipt["keys"] if one["kid"] == kid), None)
    if key is None or key["principal"] != owner:
        raise BadSignature(f"{owner} has no key {kid}")
    if key["revoked_ms"] is not None and key["revoked_ms"] < taken_ms:
        raise BadSignature(f"key {kid} was revoked")
    if gesture is None:
        if key["passkey"] is not None:
            raise BadSignature(f"key {kid} is a passkey's, which makes no compact JWS")
        payload = read_payload(token, key["public_key"], typ)
    elif key["passkey"] is None:
        raise BadSignature(f"key {kid} is no passkey's")
    else:
        passkey = Passkey.of(key["passkey"])
        payload = verify_gesture(gesture, key["public_key"], passkey, origins=None)
    claims = read_claims(payload, typ)
    require_in_time(claims, taken_ms // 1000)
    nonce = claims["jti"] if kept["nonce"] is None else kept["nonce"]
    named = (f"surehand:{receipt['tenant']}", signer, nonce, kept["kid"])
    if (claims["aud"], claims["sub"], claims["jti"], kid) != named:
        raise BadSignature("its signature is for something else")
    return Proven(key, claims)


def find_unproven(receipt: Mapping[str, Any]) -> Iterator[Break]:
    """Yield what counts as proven although nothing proves it.

    A key that was revoked later proves what it has signed before.
    """
    yield from _judge_start(receipt)
    votes = {_vote_name(e["body"]): e for e in receipt["events"] if e["type"] in _TOLD_BY}
    kept = {_vote_name(row) for row in receipt["decisions"]}
    for name, told in votes.items():
        if told["body"].get("verified") and name not in kept:
            yield Break(told["seq"], f"the signature of decision {name[0]} is missing")
    asked = {e["body"]["approval_id"]: e for e in receipt["events"] if e["type"] == _REQUESTED}
    for row in receipt["decisions"]:
        what = f"decision {row['decision_id']} of {row['approver']}"
        event = votes.get(_vote_name(row))
        if event is None:
            yield Break(0, f"{what} counts in the ledger, but no event tells of it")
            continue
        body, request = event["body"], asked.get(row["approval_id"])
        told_of = {"outcome": "approve", "deputy_for": None, **body}
        told_of["verified"] = bool(body.get("verified"))
        if any(told_of.get(name) != row[name] for name in _TOLD):
            yield Break(event["seq"], f"{what} is another in the ledger's row")
            continue
        why = why_unproven(receipt, row, {} if request is None else request["body"])
        if why is not None:
            yield Break(event["seq"], f"nothing proves {what}: {why}")


_REQUESTED: Final = "approval.requested"
_TOLD_BY: Final = ("decision.accepted", "approval.standing_used")
#: What an event says of a decision as its row does.
_TOLD: Final = ("approval_id", "approver", "outcome", "verified", "deputy_for")


def _vote_name(told: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what an event and its row have in common."""
    if told.get("standing_id") is not None:
        return told["approval_id"], told["standing_id"]
    return told["decision_id"], None


def _judge_start(receipt: Mapping[str, Any]) -> Iterator[Break]:
    opened = next((e for e in receipt["events"] if e["type"] == "run.opened"), None)
    start, run_id = receipt["start"], receipt["run_id"]
    if opened is None:
        return  # the chain says so
    body = opened["body"]
    said = (body.get("user"), body.get("started_by"), body.get("kid"))
    if said != (start["user"], start["started_by"], start["kid"]):
        yield Break(opened["seq"], "tells of another start of the run than the ledger's row")
        return
    if not body.get("verified") and start["signature"] is None:
        return
    try:
        taken = (start, start["started_by"], "surehand-start+jws", receipt, start["at_ms"])
        claims = _prove(*taken).claims
        mine = run_id == claims["run_id"] or run_id.startswith(f"{claims['run_id']}~")
        if not mine or claims["user"] != start["user"]:
            raise BadSignature("its signature is for something else")
    except Invalid as error:
        yield Break(opened["seq"], f"nothing proves who started it: {error}")


def why_unproven(receipt: Mapping[str, Any], row: Mapping[str, Any], request: Event) -> str | None:
    """Return why nothing proves a decision on record; ``None``: it is proven, or need not be."""
    wanted = max(_level(row["assurance"]), _level(request.get("assurance")))
    if wanted == 0 and not row["verified"] and row["signature"] is row["kid"] is None:
        return None
    try:
        if row["standing_id"] is not None:
            proof = _prove_standing(receipt, row, request)
        else:
            proof = _prove_decision(receipt, row, request)
    except Invalid as error:
        return str(error)
    return None if _level(proof) >= wanted else f"decisions {_NEEDS[wanted]}"


_NEEDS: Final = (
    "need no signature",
    "have to be signed, or made by a button in the chat",
    "have to be signed",
    "have to be signed by a passkey",
    "have to be signed by a passkey that is bound to its device",
)


def _prove_decision(receipt: Mapping[str, Any], row: Mapping[str, Any], request: Event) -> str:
    if row["nonce"] is None:  # It is what is on record once.
        raise BadSignature("it is not signed")
    proven = _prove(row, row["approver"], _DECISION, receipt, row["at_ms"])
    bound = {
        "another run": receipt["run_id"],
        "another approval": row["approval_id"],
        "other params": row["params_hash"],
        "another outcome": row["outcome"],
    }
    names = ("run_id", "approval_id", "params_hash", "outcome")
    for name, (what, said) in zip(names, bound.items(), strict=True):
        if proven.claims[name] != said:
            raise BadSignature(f"the signature is for {what}")
    if row["outcome"] == "approve" and request.get("params_hash") != row["params_hash"]:
        raise BadSignature("the signature is for other params than were asked about")
    return proven.proof


def _prove_standing(receipt: Mapping[str, Any], row: Mapping[str, Any], request: Event) -> str:
    """Return what proves the vote of a standing approval; how much was used of it is not judged."""
    named = (one for one in receipt["standing"] if one["standing_id"] == row["standing_id"])
    found = next(named, None)
    votes = ("approver", "kid", "signature")
    if found is None or [row[name] for name in votes] != [
        found[name] for name in ("granter", "kid", "signature")
    ]:
        raise BadSignature("there is no such standing approval")
    if found["signature"] is not None or row["verified"]:
        taken = (found["granter"], "surehand-standing+jws", receipt, found["granted_ms"])
        if _plain_scope(_prove(found, *taken).claims["scope"]) != _plain_scope(found["scope"]):
            raise BadSignature("its signature is for something else")
    scope = {"tool": request.get("tool"), "version": request.get("version")}
    if {name: found["scope"].get(name) for name in scope} != scope:
        raise BadSignature("its standing approval is for another tool")
    return "open" if found["signature"] is None else "signed"


def _plain_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    return {"foreign": False} | {name: one for name, one in scope.items() if one is not None}


#: What a record raises that is not what it should be: whoever has signed it may have lied.
_NO_FORM: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
FORMLESS: Final = "an event or a record has not the form that it should have"


def find_problems(receipt: Mapping[str, Any], trusted: Collection[str] = ()) -> list[Break]:
    """Return what is not right with a receipt.

    ``trusted``: ids of keys, of which one has to have signed it; none: any may have.
    """
    found: list[Break] = []
    judge_signature = partial(_judge_signature, trusted)
    for check in (_judge_chain, judge_signature, find_unproven, _judge_story):
        try:
            found += check(receipt)
        except Invalid as error:
            found.append(Break(0, str(error)))
        except _NO_FORM:
            found.append(Break(0, FORMLESS))
    return list(dict.fromkeys(found))  # The signature's head is looked for in the same chain.


def _judge_chain(receipt: Mapping[str, Any]) -> Iterator[Break]:
    events = receipt["events"]
    if not events:
        yield Break(0, "it has no events")
    yield from filter(None, [verify_chain(events)])
    others = (event for event in events if event["run_id"] != receipt["run_id"])
    yield from (Break(event["seq"], "is of another run") for event in others)


def _judge_story(receipt: Mapping[str, Any]) -> Iterable[Break]:
    return filter(None, [verify_story(receipt["events"])])


def _judge_signature(trusted: Collection[str], receipt: Mapping[str, Any]) -> Iterator[Break]:
    claims = read_signature(receipt, trusted)
    if claims["run_id"] != receipt["run_id"]:
        yield Break(0, f"the signature is over the receipt of another run, {claims['run_id']}")
    if claims["aud"] != f"surehand:{receipt['tenant']}":
        yield Break(0, "the signature is for another tenant")
    if claims["seq"] < len(receipt["events"]):
        yield Break(claims["seq"] + 1, "was added after the receipt was signed")
    else:
        head = SignedHead(claims["seq"], claims["head"])
        yield from filter(None, [verify_chain(receipt["events"], [head])])
    if claims["content"] != digest_of(without_signature(receipt)):
        yield Break(0, "it is not what was signed: something was changed")


def read_signature(receipt: Mapping[str, Any], trusted: Collection[str]) -> Claims:
    """Return the claims of a receipt's signature, made by a trusted key if there are any."""
    jwk = receipt["signer"]
    claims = read_claims(read_payload(receipt["signature"], jwk, RECEIPT_TYP), RECEIPT_TYP)
    if trusted and kid_of(jwk) not in trusted:
        raise BadSignature(f"it is signed with key {kid_of(jwk)}, which you have not named")
    if not 0 <= claims["iat"] <= _LAST_SECOND:
        raise BadSignature("the signature is made at no time that there is")
    return claims


def without_signature(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a receipt its signature is over, by its digest."""
    return {name: value for name, value in receipt.items() if name != "signature"}


def describe_receipt(receipt: Mapping[str, Any], trusted: Collection[str]) -> Iterator[str]:
    """Yield what a receipt that is right says, what was checked, and what cannot be."""
    events, kid = receipt["events"], kid_of(receipt["signer"])
    claims = read_signature(receipt, ())
    yield f"Receipt of run {receipt['run_id']}, tenant {receipt['tenant']}: RIGHT."
    yield f"Signed on {shown_time(claims['iat'])} with key {kid}."
    yield ""
    yield "Checked:"
    yield f"  {len(events)} events: none was changed, added, moved or taken away."
    yield f"  The newest one's hash: {claims['head']}."
    yield from _describe_start(receipt)
    keys = {key["kid"]: key for key in receipt["keys"]}
    yield from (_describe_decision(row, keys.get(row["kid"])) for row in receipt["decisions"])
    yield from _describe_effects(events)
    erased = find_erasure(events)
    if erased is not None:
        yield f"  The run was erased {erased}: nobody reads what it sent and kept. The proofs stay."
    yield ""
    yield "Trusted:"
    used = {row["kid"] for part in ("decisions", "standing") for row in receipt[part]}
    used |= {receipt["start"]["kid"]}
    owners = {one: key["principal"] for one, key in keys.items() if one in used}
    for one, owner in ({kid: claims["sub"]} | owners).items():
        why = "you have named it" if one in trusted else "the receipt's signature vouches for it"
        if one == kid and one not in trusted:
            why = "NOT PROVEN, name the key that you expect (--key FILE)"
        yield f"  Key {one}: {why}; the receipt calls its owner {owner}."
    yield ""
    yield "A receipt cannot show:"
    yield from (f"  {line}" for line in _UNKNOWN)


_UNKNOWN: Final = (
    "what happened after its newest event, and in the run's child runs: they have their own",
    "which params a hash is of, unless you have them",
    "whether those who decided were allowed to: who has which role is not in it",
    "whether an outside system did what it answered",
)


def _describe_start(receipt: Mapping[str, Any]) -> Iterator[str]:
    start = receipt["start"]
    how = "NOT signed" if start["signature"] is None else f"signed with key {start['kid']}"
    yield f"  Started by {start['started_by']} for {start['user']}, {how}."


def _describe_decision(row: Mapping[str, Any], key: Mapping[str, Any] | None) -> str:
    how = "NOT signed: the name is only claimed"
    if key is not None:
        how = f"signed with {'key' if key['passkey'] is None else 'passkey'} {key['kid']}"
        if key["principal"] == "chat":
            how = f"by a button in a chat, for which key {key['kid']} vouches"
    who = row["approver"]
    if row["standing_id"] is not None:
        who = f"{who}'s standing approval {row['standing_id']}"
    if row["deputy_for"] is not None:
        who = f"{who} for {row['deputy_for']}"
    return (
        f"  {who} said {row['outcome']} to {row['approval_id']} on"
        f" {shown_time(row['at_ms'] // 1000)}, over params {row['params_hash']}, {how}."
    )


def _describe_effects(events: Sequence[Event]) -> Iterator[str]:
    past, claims, commits, undone = EffectsPast(), dict[str, Event](), list[str](), list[str]()
    for event in events:
        take_effect(past, event)
        entry = str(event["body"].get("entry_id"))
        if event["type"] == "effect.claimed":
            claims[entry] = event["body"]
        elif event["type"] == "effect.committed":
            commits.append(entry)
        elif event["type"] == "effect.compensated":
            undone.append(entry)
    for entry, body in claims.items():
        approval = body.get("approval_id")
        rests = f"rests on approval {approval}" if approval else "needed no approval"
        if body.get("undoes"):
            rests = f"undoes entry {body['undoes']}"
        state = past.states[entry].replace("compensated", "committed, then undone")
        yield f"  {past.names[entry]}, params {body['params_hash']}, {rests}: {state}."
    if claims:
        yield "  Each was claimed for exactly these params before it was called, and committed at"
        yield "  most once. Each approval was used once, in time."
    order = [commits.index(entry) for entry in undone if entry in commits]
    if len(order) > 1:
        how = "in the" if order == sorted(order, reverse=True) else "NOT in the"
        yield f"  Undone {how} reverse order of their commits."


# The command.

RIGHT, WRONG_USE, BROKEN = 0, 2, 3


def judge_file(file: Path, trusted: Collection[str]) -> tuple[int, list[str]]:
    """Return the exit code for a file, and what people are told of it."""
    try:
        with file.open("rb") as read:
            raw = read.read(LARGEST_RECEIPT_FILE + 1)
    except OSError as error:
        return WRONG_USE, [f"{file}: {error.strerror or 'cannot be read'}"]
    try:
        receipt = parse_receipt(raw)
        problems = find_problems(receipt, trusted)
        if not problems:
            return RIGHT, list(describe_receipt(receipt, trusted))
    except Invalid as error:
        return BROKEN, [f"{file}: BROKEN: {error}"]
    except _NO_FORM:
        return BROKEN, [f"{file}: BROKEN: {FORMLESS}"]
    return BROKEN, [f"{file}: BROKEN: {problem}" for problem in problems]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a receipt, and say what was checked; or write the page that does so in a browser."""
    parser = ArgumentParser(
        "surehand-verify",
        description="Check a receipt of a Surehand run, without ledger, server or network.",
        epilog="Exit codes: 0 right; 2 wrong use; 3 broken.",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="A receipt.")
    key = "A public key that may have signed it (PEM, JWK or passkey); may be repeated."
    parser.add_argument("--key", action="append", type=Path, default=[], metavar="FILE", help=key)
    page = "Print a page that does the same in a browser, offline."
    parser.add_argument("--page", action="store_true", help=page)
    asked = parser.parse_args(arguments)
    if arguments is None and hasattr(signal, "SIGPIPE"):  # `| head` ends it quietly, with 141.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if asked.page is (asked.file is not None):
        parser.error("name a FILE, or --page")
    try:
        if asked.page:
            print(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"), end="")
            return RIGHT
        trusted = {read_key_file(one.read_text("utf-8", "replace")).kid for one in asked.key}
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        parser.error(f"--key: {error}")
    code, lines = judge_file(asked.file, trusted)
    for line in lines:
        # What is in a receipt shall not act on a terminal.
        shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in line)
        print(shown, file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
