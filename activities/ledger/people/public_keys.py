"""Approvers' public keys: Ed25519 only, in one form, known by their thumbprint (RFC 7638)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from joserfc.jwk import OKPKey, thumbprint

#: A SHA-256 digest in base64url.
_KID: Final = re.compile(r"[A-Za-z0-9_-]{43}")

#: The prime of RFC 8032's field, and the y coordinates of its points of order 4, 1, 2, 8 and 8:
#: with one of them as a key, anybody can make signatures that verify.
_P: Final = 2**255 - 19
_ORDER_8: Final = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_SMALL_ORDER: Final = {0, 1, _P - 1, _ORDER_8, _P - _ORDER_8}


class BadKey(ValueError):
    """A public key cannot be used; the message is one clause for people."""


def public_key(pem_or_jwk_text: str) -> dict[str, str]:
    """Return a public key, given as PEM or as JWK in JSON, as a JWK of ``crv``, ``kty`` and ``x``.

    Raises:
        BadKey: It is not one public Ed25519 key.
    """
    text = pem_or_jwk_text.strip()
    if "PRIVATE KEY" in text:
        raise BadKey("it is a private key: leave that with its owner, and give the public one")
    if text.startswith("{"):
        try:
            jwk = json.loads(text, object_pairs_hook=unique_names)
        except (ValueError, RecursionError) as error:
            raise BadKey("it is not JSON, or has a name twice") from error
        return checked(jwk)
    if text.count("-----BEGIN ") != 1:
        raise BadKey("it is neither one public key in PEM nor a JWK")
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey("it is not a public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey("it is not an Ed25519 key")
    return checked(OKPKey.import_key(key).as_dict())


def checked(jwk: Mapping[str, Any]) -> dict[str, str]:
    """Return a JWK's ``crv``, ``kty`` and ``x``; other members, such as ``kid``, are left out.

    Raises:
        BadKey: It is not a public Ed25519 key, or one that anybody can sign for.
    """
    if "d" in jwk:
        raise BadKey("it is a private key: leave that with its owner, and give the public one")
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
        raise BadKey("it is not an Ed25519 key")
    x = jwk.get("x")
    try:
        point = decoded(x) if isinstance(x, str) else b""
    except ValueError:
        point = b""
    if len(point) != 32:
        raise BadKey("its x is not 32 bytes in base64url")
    y = int.from_bytes(point, "little") % 2**255  # the highest bit is the sign of the other one
    if y >= _P or y in _SMALL_ORDER:
        raise BadKey("it is a key that anybody can sign for, or not written as RFC 8032 has it")
    return {"crv": "Ed25519", "kty": "OKP", "x": str(x)}


def kid_of(jwk: Mapping[str, Any]) -> str:
    """Return the key id of a public key: its RFC 7638 thumbprint.

    Raises:
        BadKey: It is not a public Ed25519 key.
    """
    return thumbprint(dict(checked(jwk)))


def is_kid(value: Any) -> bool:
    """Return whether a value has the form of :func:`kid_of`."""
    return isinstance(value, str) and _KID.fullmatch(value) is not None


def decoded(part: str) -> bytes:
    """Return the bytes of base64url without padding, in the one spelling that they have.

    Raises:
        ValueError: It has another spelling: padding, other characters, bits that do not count.
    """
    raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != part:
        raise ValueError("not canonical base64url")
    return raw


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON text's members; a hook of ``json.loads``.

    Raises:
        ValueError: A name stands there twice.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands there twice")
    return members
