"""The quota of requests for approvals that wait at a time."""

from __future__ import annotations

from typing import Final

from sqlalchemy import func

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals
from surehand.activities.ledger.quotas.limits import (
    OverQuota,
    QuotaUsedUp,
    limits_of,
    take_turn,
)
from surehand.workflows.contracts.values import LONGEST_LOOK, Quota, QuotaWait

_PENDING: Final = rows_of(approvals, func.count(), state="pending")


def pending_requests(tx: Transaction) -> int:
    """Return how many requests of the tenant wait."""
    return tx.count(_PENDING)


def require_place(tx: Transaction) -> None:
    """Make sure that a request which was just written may wait beside the others.

    Of several at once the last one to get the tenant's turn sees all others.

    Raises:
        QuotaUsedUp: It may not; nothing of the request is to be left.
    """
    limits = limits_of(tx)
    limit = limits.pending_approvals
    if limit is None:
        return
    take_turn(tx, Quota.APPROVALS)
    others = pending_requests(tx) - 1
    if others < limit:
        return
    wait = QuotaWait(quota=Quota.APPROVALS, used=str(others), limit=str(limit), pause=LONGEST_LOOK)
    raise QuotaUsedUp(OverQuota(wait, limits.over))
