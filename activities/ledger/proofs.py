"""What proves a decision to be its approver's: a signature, by a key that is theirs now (G3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import select

from activities.ledger import principals
from activities.ledger.store import Transaction
from activities.ledger.tables import decisions
from activities.signatures import BadSignature, header_kid, matches, verify
from workflows.contracts import Decision, VerdictCode
from workflows.contracts.signing import Claims, DecisionClaims
from workflows.identity import NotCanonical, digest

if TYPE_CHECKING:
    from activities.ledger.votes import Refusal

C = TypeVar("C", bound=Claims)


@dataclass(frozen=True)
class Proof:
    """What proves a decision to be its approver's, if anything does."""

    kid: str | None = None
    claims: DecisionClaims | None = None

    @property
    def verified(self) -> bool:
        """Whether anything does."""
        return self.claims is not None


async def prove(tx: Transaction, run_id: str, decision: Decision) -> Proof | Refusal:
    """Verify a decision's signature with a key that is registered for its approver now."""
    if decision.signature is None:
        return Proof()
    try:
        kid, claims = await signed_by(tx, decision.signature, decision.approver, DecisionClaims)
    except BadSignature as error:
        return VerdictCode.BAD_SIGNATURE, str(error)
    differs = matches(claims, decision, run_id, tx.tenant)
    if differs is None and not _signs_edit(claims, decision):
        differs = "it is for other edited params"
    if differs is not None:
        return VerdictCode.BAD_SIGNATURE, differs
    used = await tx.one(
        select(decisions.c.decision_id).where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approver == decision.approver,
            decisions.c.nonce == claims.jti,
            decisions.c.verdict == VerdictCode.ACCEPTED.value,
        )
    )
    if used is not None:
        return VerdictCode.USED_SIGNATURE, "this signature has counted already"
    return Proof(kid, claims)


async def signed_by(
    tx: Transaction, token: str, signer: str, claims_of: type[C], *, arrived_ms: int | None = None
) -> tuple[str, C]:
    """Return the key id and the claims of a signature by a key that is registered for its signer.

    What the claims are bound to, and whether their nonce is fresh, is the caller's to look at.

    Args:
        tx: The transaction.
        token: The compact JWS.
        signer: Whose key it has to be, now.
        claims_of: What it has to be a signature of.
        arrived_ms: When it was taken, where it is looked at again; its expiry is judged by that.

    Raises:
        BadSignature: It is none, or its key is another's, or was revoked.
    """
    kid = header_kid(token, claims_of.typ)
    key = await principals.key(tx, kid)
    if key is None or key.principal != signer:
        raise BadSignature(f"{signer} has no key {kid}")
    if key.revoked:
        raise BadSignature(f"key {kid} was revoked")
    arrived = tx.now_ms if arrived_ms is None else arrived_ms
    return kid, verify(token, key.public_key, claims_of, now_s=arrived // 1000)


def _signs_edit(claims: DecisionClaims, decision: Decision) -> bool:
    """Return whether the claims name an edit's params, by the digest of their canonical JSON."""
    if decision.params is None:
        return claims.edited is None
    try:
        return claims.edited == digest(decision.params)
    except NotCanonical:
        return False  # nobody can have signed them, and no tool takes them
