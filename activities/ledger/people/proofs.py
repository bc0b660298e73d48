"""What proves who has decided, granted or started: a signature, by a key that is theirs (G3).

What arrives is judged by :func:`signed_by`. What is on record is judged by :func:`still_signed`,
wherever it counts: a row that somebody has written without the key, or changed, counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import decisions
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.signatures import (
    BadSignature,
    header_kid,
    matches,
    verify,
)
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome, VerdictCode
from surehand.workflows.contracts.signing import Claims, DecisionClaims, audience
from surehand.workflows.identity import NotCanonical, digest

C = TypeVar("C", bound=Claims)
#: Why a decision does not count.
Refusal = tuple[VerdictCode, str]


@dataclass(frozen=True)
class Proof:
    """What proves a decision to be its approver's, if anything does."""

    kid: str | None = None
    claims: DecisionClaims | None = None

    @property
    def verified(self) -> bool:
        """Whether anything does."""
        return self.claims is not None


def prove(tx: Transaction, run_id: str, decision: Decision) -> Proof | Refusal:
    """Verify a decision's signature with a key that is registered for its approver now."""
    if decision.signature is None:
        return Proof()
    try:
        kid, claims = signed_by(tx, decision.signature, decision.approver, DecisionClaims)
    except BadSignature as error:
        return VerdictCode.BAD_SIGNATURE, str(error)
    differs = matches(claims, decision, run_id, tx.tenant)
    if differs is None and not _signs_edit(claims, decision):
        differs = "it is for other edited params"
    if differs is not None:
        return VerdictCode.BAD_SIGNATURE, differs
    used = tx.one(
        rows_of(
            decisions,
            decisions.c.decision_id,
            approver=decision.approver,
            nonce=claims.jti,
            verdict=VerdictCode.ACCEPTED.value,
        )
    )
    if used is not None:
        return VerdictCode.USED_SIGNATURE, "this signature has counted already"
    return Proof(kid, claims)


def signed_by(
    tx: Transaction,
    token: str,
    signer: str,
    claims_of: type[C],
    *,
    arrived_ms: int | None = None,
    in_force: bool = True,
) -> tuple[str, C]:
    """Return the key id and the claims of a signature by a key that is registered for its signer.

    What the claims are bound to, and whether their nonce is fresh, is the caller's to look at.

    Args:
        tx: The transaction.
        token: The compact JWS.
        signer: Whose key it has to be.
        claims_of: What it has to be a signature of.
        arrived_ms: When it was taken, where it is looked at again; its expiry is judged by that.
        in_force: Whether the key has to count now; otherwise it had to when the signature arrived.

    Raises:
        BadSignature: It is none, or its key is another's, or was revoked.
    """
    kid = header_kid(token, claims_of.typ)
    key = principals.key(tx, kid)
    if key is None or key.principal != signer:
        raise BadSignature(f"{signer} has no key {kid}")
    arrived = tx.now_ms if arrived_ms is None else arrived_ms
    if key.revoked_ms is not None and (in_force or key.revoked_ms < arrived):
        raise BadSignature(f"key {kid} was revoked")
    return kid, verify(token, key.public_key, claims_of, now_s=arrived // 1000)


@dataclass(frozen=True)
class Signed:
    """A signature as it is on record, with what its row says of it."""

    signature: str | None
    signer: str
    kid: str | None
    nonce: str | None
    """``None``: the row is one of several that hang on this signature."""
    taken_ms: int


def still_signed(tx: Transaction, kept: Signed, claims_of: type[C], *, in_force: bool = True) -> C:
    """Return the claims of a signature on record, verified with its key, all of it again.

    Args:
        tx: The transaction.
        kept: What is on record.
        claims_of: What it has to be a signature of.
        in_force: Whether its key has to count now, or had to when it was taken.

    Raises:
        BadSignature: There is none, or it is not what its row says.
    """
    if kept.signature is None:
        raise BadSignature("it is not signed")
    kid, claims = signed_by(
        tx, kept.signature, kept.signer, claims_of, arrived_ms=kept.taken_ms, in_force=in_force
    )
    nonce = claims.jti if kept.nonce is None else kept.nonce
    if (claims.aud, claims.sub, claims.jti, kid) != (
        audience(tx.tenant), kept.signer, nonce, kept.kid
    ):  # fmt: skip
        raise BadSignature("its signature is for something else")
    return claims


def unproven(tx: Transaction, row: Mapping[str, Any], *, in_force: bool = True) -> str | None:
    """Return why nothing proves a decision on record to be its approver's; ``None``: it is proven.

    Not for votes of standing approvals: those are as good as what they were granted by.

    Args:
        tx: The transaction.
        row: Of ``decisions``.
        in_force: Whether its key has to count now, or had to when it was taken.
    """
    kept = Signed(row["signature"], row["approver"], row["kid"], row["nonce"], row["at_ms"])
    try:
        claims = still_signed(tx, kept, DecisionClaims, in_force=in_force)
        decision = Decision(
            approval_id=row["approval_id"],
            params_hash=row["params_hash"],
            outcome=DecisionOutcome(row["outcome"]),
            approver=row["approver"],
        )
    except (BadSignature, ValueError) as error:
        return str(error)
    return matches(claims, decision, row["run_id"], tx.tenant)


def _signs_edit(claims: DecisionClaims, decision: Decision) -> bool:
    """Return whether the claims name an edit's params, by the digest of their canonical JSON."""
    if decision.params is None:
        return claims.edited is None
    try:
        return claims.edited == digest(decision.params)
    except NotCanonical:
        return False  # nobody can have signed them, and no tool takes them
