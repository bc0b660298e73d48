"""A database clock that was set back must not keep dead attempts alive.

Leases and deadlines are points in time by the database's clock. Set back by an hour, it would hold
a dead attempt's lease for an hour more. A live attempt renews its lease every second, so one that
lies implausibly far ahead is cut to what it can be: whoever is alive extends it again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import update

from activities.ledger.entries import Entry, milliseconds
from activities.ledger.store import Transaction
from activities.ledger.tables import effects

#: Other workers may have a longer lease than this one; no lease is that much longer.
SLACK: Final = timedelta(minutes=1)


async def lease_left(tx: Transaction, entry: Entry, lease: timedelta) -> int:
    """Return how long a claimed entry's lease lasts, in milliseconds; 0 or less: it is over."""
    left = (entry.lease_until_ms or 0) - tx.now_ms
    if left <= milliseconds(lease + SLACK):
        return left
    await _cut(tx, entry, lease_until_ms=tx.now_ms + milliseconds(lease))
    return milliseconds(lease)


async def call_left(tx: Transaction, entry: Entry, timeout: timedelta) -> int:
    """Return how long the newest call of an entry may last, in milliseconds."""
    left = (entry.deadline_ms or 0) - tx.now_ms
    if left <= milliseconds(timeout + SLACK):
        return left
    await _cut(tx, entry, deadline_ms=tx.now_ms + milliseconds(timeout))
    return milliseconds(timeout)


async def _cut(tx: Transaction, entry: Entry, **until: int) -> None:
    await tx.execute(
        update(effects)
        .where(
            effects.c.tenant_id == tx.tenant,
            effects.c.entry_id == entry.entry_id,
            effects.c.fencing_token == entry.fencing_token,
        )
        .values(until)
    )
    tx.event(
        entry.run_id,
        "clock.set_back",
        step_id=entry.step_id,
        entry_id=entry.entry_id,
        evidence=", ".join(until),
        action="cut_to_what_it_can_be",
    )
