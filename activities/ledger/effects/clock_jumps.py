"""A database clock that was set back must not keep dead attempts alive.

Leases and deadlines are points in time by the database's clock. Set back by an hour, it would hold
a dead attempt's lease for an hour more. Beside each point in time its entry has how long it was
from the moment at which it was written: one that lies further ahead was written later than now,
which only a clock that was set back can say. It is cut to what it can be; whoever is alive extends
a lease again.
"""

from __future__ import annotations

from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.steps.entries import Entry


def lease_left(tx: Transaction, entry: Entry) -> int:
    """Return how long a claimed entry's lease lasts, in milliseconds; 0 or less: it is over."""
    left = (entry.lease_until_ms or 0) - tx.now_ms
    if left > entry.lease_ms:
        left = entry.lease_ms
        _cut(tx, entry, lease_until_ms=tx.now_ms + left)
    return left


def call_left(tx: Transaction, entry: Entry) -> int:
    """Return how long the calls of an entry may last, in milliseconds."""
    left = (entry.deadline_ms or 0) - tx.now_ms
    if left > entry.timeout_ms:
        left = entry.timeout_ms
        _cut(tx, entry, deadline_ms=tx.now_ms + left)
    return left


def _cut(tx: Transaction, entry: Entry, **until: int) -> None:
    tx.execute(
        update_rows(effects, entry_id=entry.entry_id, fencing_token=entry.fencing_token).values(
            until
        )
    )
    tx.event(
        entry.run_id,
        "clock.set_back",
        step_id=entry.step_id,
        entry_id=entry.entry_id,
        evidence=", ".join(until),
        action="cut_to_what_it_can_be",
    )
