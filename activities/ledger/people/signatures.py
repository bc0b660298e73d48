"""Signatures of people: when the claims of a compact JWS (RFC 7515) or of a gesture count.

No SQL and no clock. ``surehand/verify.py`` verifies the signature; here its claims are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from surehand import verify
from surehand.verify import BadSignature
from surehand.workflows.canonical_json import NotCanonical, digest
from surehand.workflows.contracts import approvals

C = TypeVar("C", bound=approvals.Claims)
S = TypeVar("S", bound=approvals.Signed)


def verify_in_time(
    token: str, public_jwk: Mapping[str, Any], claims_of: type[C], *, now_s: int
) -> C:
    """Return the claims of a signature that this key has made and that is still valid.

    Whether they are those of what carries the signature says the caller (:func:`find_mismatch` for
    decisions); whose key it is, and whether the nonce is fresh, knows the ledger. Expiry is judged
    by ``now_s``, seconds since 1970.
    """
    claims = parse_claims(verify.read_payload(token, public_jwk, claims_of.typ), claims_of)
    verify.require_in_time(vars(claims), now_s)
    return claims


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
    differs = find_difference(bound)
    if differs is None and claims.edited is not None and claims.outcome.value != "edit":
        return f"the signature is for new params, which {claims.outcome.value} has not"
    return differs


def find_difference(bound: Mapping[str, tuple[object, object]]) -> str | None:
    """Return why a signature does not fit; ``bound``: what is signed and what is so, by reason."""
    differs = (what for what, (signed, sent) in bound.items() if signed != sent)
    return next((f"the signature is for {what}" for what in differs), None)


def digest_signed(content: Any) -> str | None:
    """Return the digest that a signature has of this; ``None``: nobody can have signed it."""
    try:
        return digest(content)
    except NotCanonical:
        return None


def parse_claims(payload: bytes, claims_of: type[S]) -> S:
    members = verify.json_object(payload, "what is signed")
    try:
        return claims_of.model_validate(members)
    except ValidationError as error:
        claim = str(error.errors()[0]["loc"][0])
        raise BadSignature(
            f"the signed claim {claim[:40]!r} is missing, unknown or wrong"
        ) from error
