"""Putting an entry in doubt, so that no earlier attempt can write it any more."""

from __future__ import annotations

from sqlalchemy import update

from activities.ledger.entries import Entry
from activities.ledger.store import Transaction
from activities.ledger.tables import effects


async def doubt(tx: Transaction, entry: Entry, reason: str | None) -> Entry:
    """Put an entry in doubt under a new fencing token, so that no earlier attempt can write it."""
    row = await tx.one(
        update(effects)
        .where(
            effects.c.tenant_id == tx.tenant,
            effects.c.entry_id == entry.entry_id,
            effects.c.fencing_token == entry.fencing_token,
        )
        .values(
            state="partial" if entry.state == "partial" else "in_doubt",
            fencing_token=entry.fencing_token + 1,
            lease_until_ms=None,
            holder=None,
        )
        .returning(effects)
    )
    assert row is not None, "the entry's row is locked by this transaction"
    if reason:
        tx.event(
            entry.run_id,
            "effect.in_doubt",
            step_id=entry.step_id,
            entry_id=entry.entry_id,
            rule="lease_over",
            evidence=reason,
            action="reconcile",
        )
    return Entry.from_row(row)
