"""Signatures of people: when the claims of a compact JWS (RFC 7515) are believed.

No SQL and no clock. joserfc verifies the signature; what is around it is stricter than JOSE asks
for, so that a signature has one spelling, and nothing in it chooses its algorithm or its key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from pydantic import ValidationError

from surehand.activities.ledger.people.public_keys import (
    BadKey,
    checked,
    decoded,
    is_kid,
    kid_of,
    unique_names,
)
from surehand.process.ciphers import signature_registry
from surehand.workflows.contracts.approvals import (
    ALGORITHM,
    LONGEST_SIGNATURE,
    Claims,
    Decision,
    DecisionClaims,
    Signed,
    audience,
)

C = TypeVar("C", bound=Claims)
S = TypeVar("S", bound=Signed)

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
        header, _, _ = (decoded(part) for part in parts)
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


def verify(token: str, public_jwk: Mapping[str, Any], claims_of: type[C], *, now_s: int) -> C:
    """Return the claims of a signature that this key has made and that is still valid.

    Whether they are those of what carries the signature says the caller (:func:`matches` for
    decisions); whose key it is, and whether the nonce is fresh, knows the ledger. Expiry is judged
    by ``now_s``, seconds since 1970.
    """
    claims = authentic(token, public_jwk, claims_of)
    require_in_time(claims, now_s)
    return claims


def require_in_time(claims: Claims, now_s: int) -> None:
    """Make sure that a signature is still valid, and made for no longer than one may be."""
    if claims.exp <= now_s:
        raise BadSignature("the signature has expired")
    longest = int(LONGEST_SIGNATURE.total_seconds())
    if not 0 < claims.exp - claims.iat <= longest:
        raise BadSignature(f"the signature is not made for 1 to {longest} s")
    if claims.iat > now_s + CLOCKS_APART.total_seconds():
        raise BadSignature("the signature is made in the future: the signer's clock is ahead")


def authentic(token: str, public_jwk: Mapping[str, Any], claims_of: type[S]) -> S:
    """Return the claims of a signature that this key has made, whenever that was."""
    kid = header_kid(token, claims_of.typ)
    try:
        key = checked(public_jwk)
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
    return claims_in(signed.payload, claims_of)


def claimed(token: str, claims_of: type[S]) -> S:
    """Return what a signature claims, whoever has made it: to be shown, and trusted for no more."""
    header_kid(token, claims_of.typ)
    return claims_in(decoded(token.split(".")[1]), claims_of)


def matches(claims: DecisionClaims, decision: Decision, run_id: str, tenant: str) -> str | None:
    """Return why the claims are not those of this decision, as one clause; ``None``: they are.

    The digest of an edit's new params, ``claims.edited``, is compared by whoever has them.
    """
    bound = {
        "another tenant": (claims.aud, audience(tenant)),
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


def claims_in(payload: bytes, claims_of: type[S]) -> S:
    """Return the claims that are signed."""
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
