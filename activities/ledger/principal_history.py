"""What was changed about principals, by whom and when. Every query is of one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import case, select

from activities.ledger.principal_tables import principal_changes
from activities.ledger.store import Transaction


@dataclass(frozen=True)
class Change:
    """One change of a principal; the rows are never rewritten."""

    principal: str
    change: str
    """``added``, ``role_granted``, ``permission_revoked``, ``key_added``, ..."""
    what: str
    """The role, permission or key id."""
    actor: str
    """Who made it, as they named themselves."""
    at: datetime


async def changes(tx: Transaction, name: str | None = None) -> list[Change]:
    """Return the changes of everybody, or of one principal, oldest first."""
    columns = principal_changes.c
    query = select(principal_changes).where(columns.tenant_id == tx.tenant)
    if name is not None:
        query = query.where(columns.principal == name)
    # Changes of one millisecond may be told in any order, only nobody is given anything before
    # being added.
    added_first = case((columns.change == "added", 0), else_=1)
    order = (columns.at_ms, added_first, columns.principal, columns.change, columns.what)
    return [
        Change(
            row["principal"],
            row["change"],
            row["what"],
            row["actor"],
            datetime.fromtimestamp(row["at_ms"] / 1000, UTC),
        )
        for row in await tx.all(query.order_by(*order))
    ]
