"""Bars: what late attempts of a run may not do any more."""

from __future__ import annotations

from typing import Final

from sqlalchemy.dialects import postgresql, sqlite

from activities.ledger.store import Transaction
from activities.ledger.tables import bars

#: Bars every step of a run, also those that nobody has heard of yet: items, steps made by code.
EVERY_STEP: Final = "*"


async def bar_name(tx: Transaction, run_id: str, name: str) -> bool:
    """Bar a step or a stretch of a run, whose lock is held; return whether it was not yet."""
    dialect = postgresql if tx.connection.dialect.name == "postgresql" else sqlite
    inserted = await tx.execute(
        dialect.insert(bars)
        .values(tenant_id=tx.tenant, run_id=run_id, step_id=name, barred_ms=tx.now_ms)
        .on_conflict_do_nothing()
    )
    return inserted == 1
