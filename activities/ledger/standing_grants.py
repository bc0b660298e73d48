"""Granting, revoking and listing standing approvals: an administrator's, except for the list."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import insert, select, update

from activities.ledger.engine import lock_name
from activities.ledger.principals import PrincipalError
from activities.ledger.standing import Standing, worthless
from activities.ledger.standing_tables import standing_approvals
from activities.ledger.standing_uses import used
from activities.ledger.store import Transaction
from activities.signatures import BadSignature, header_kid
from workflows.contracts.standing import (
    LONGEST_STANDING,
    StandingClaims,
    StandingGrant,
    standing_id_of,
)


class StandingError(PrincipalError):
    """A standing approval that cannot be granted or revoked; the message says why."""


@dataclass(frozen=True)
class Listed:
    """A standing approval, and what is left of it."""

    standing: Standing
    uses: int
    total: Decimal
    """What its uses come to, where a total limits them."""
    over: bool
    worthless: str | None
    """Why it does not count now."""


async def grant(tx: Transaction, given: StandingGrant) -> Standing:
    """Write a standing approval; a signature has to be its granter's own, and just made.

    Raises:
        StandingError: It would count for nothing, or it was granted before.
    """
    scope, signature = given.scope, given.signature
    try:
        kid = None if signature is None else header_kid(signature, StandingClaims.typ)
    except BadSignature as error:
        raise StandingError(f"the standing approval would count for nothing: {error}") from error
    standing = Standing(
        standing_id=standing_id_of(given.nonce),
        granter=given.granter,
        scope=scope,
        reason=given.reason,
        nonce=given.nonce,
        signature=signature,
        kid=kid,
        granted_ms=tx.now_ms,
    )
    await lock_name(tx.connection, f"standing:{tx.tenant}:{standing.standing_id}")
    if scope.until * 1000 > tx.now_ms + LONGEST_STANDING.total_seconds() * 1000:
        raise StandingError(f"it would last longer than {LONGEST_STANDING.days} d")
    why = await worthless(tx, standing)
    if why is not None:
        raise StandingError(f"the standing approval would count for nothing: {why}")
    if await _row(tx, standing.standing_id) is not None:
        raise StandingError("this signature has counted already")
    await tx.execute(
        insert(standing_approvals).values(
            tenant_id=tx.tenant,
            standing_id=standing.standing_id,
            granter=given.granter,
            tool=scope.tool,
            tool_version=scope.version,
            schema_hash=scope.schema_hash,
            condition=scope.when,
            most_uses=scope.count,
            total_of=scope.total_of,
            most_total=scope.total,
            until_ms=scope.until * 1000,
            reason=given.reason,
            nonce=given.nonce,
            signature=signature,
            kid=kid,
            granted_ms=standing.granted_ms,
        )
    )
    return standing


async def revoke(tx: Transaction, standing_id: str, actor: str) -> bool:
    """Revoke a standing approval for good; returns whether that changed anything.

    It counts from then on, also for approvals it has given and that no effect has used.

    Raises:
        StandingError: There is none of that id.
    """
    touched = await tx.execute(
        update(standing_approvals)
        .where(
            standing_approvals.c.tenant_id == tx.tenant,
            standing_approvals.c.standing_id == standing_id,
            standing_approvals.c.revoked_ms.is_(None),
        )
        .values(revoked_ms=tx.now_ms, revoked_by=actor)
    )
    if not touched and await _row(tx, standing_id) is None:
        raise StandingError(f"there is no standing approval {standing_id!r}")
    return bool(touched)


async def all_standing(tx: Transaction) -> list[Listed]:
    """Return all that was ever granted, oldest first."""
    rows = await tx.all(
        select(standing_approvals)
        .where(standing_approvals.c.tenant_id == tx.tenant)
        .order_by(standing_approvals.c.granted_ms, standing_approvals.c.standing_id)
    )
    found = [one for one in map(Standing.from_row, rows) if one is not None]
    return [await _listed(tx, one) for one in found]


async def listed(tx: Transaction, standing_id: str) -> Listed | None:
    """Return one of them, and what is left of it."""
    row = await _row(tx, standing_id)
    found = None if row is None else Standing.from_row(row)
    return None if found is None else await _listed(tx, found)


async def _listed(tx: Transaction, one: Standing) -> Listed:
    uses, total = await used(tx, one)
    over = one.scope.until * 1000 <= tx.now_ms
    return Listed(one, uses, total, over, await worthless(tx, one))


async def _row(tx: Transaction, standing_id: str) -> dict[str, Any] | None:
    return await tx.one(
        select(standing_approvals).where(
            standing_approvals.c.tenant_id == tx.tenant,
            standing_approvals.c.standing_id == standing_id,
        )
    )
