"""Whose figures are asked for, and the SQL that all figures share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from activities.ledger.store import Transaction
from activities.ledger.tables import events


@dataclass(frozen=True)
class Scope:
    """Whose figures, and since when."""

    tenant: str
    since: datetime
    run_id: str | None = None

    @property
    def since_ms(self) -> int:
        """The beginning, by the database's clock."""
        return int(self.since.timestamp() * 1000)

    def of(self, table: Any, moment: Any = None) -> Any:
        """Return the condition for a table's rows of this scope."""
        found = table.c.tenant_id == self.tenant
        if moment is not None:
            found &= moment >= self.since_ms
        return found if self.run_id is None else found & (table.c.run_id == self.run_id)


async def count_of(tx: Transaction, table: Any, *conditions: Any) -> int:
    """Return how many rows meet the conditions."""
    row = await tx.one(select(func.count().label("n")).select_from(table).where(*conditions))
    return int(row["n"]) if row else 0


def text_of(name: str) -> Any:
    """Return a field of an event's body, as text."""
    return events.c.body[name].as_string()


def number_of(name: str) -> Any:
    """Return a field of an event's body, as a number."""
    return events.c.body[name].as_integer()
