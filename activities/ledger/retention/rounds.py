"""When a tenant's rounds of retention were, for whoever watches that they come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import retention_rounds


@dataclass(frozen=True)
class LastRound:
    """What is known of a tenant's rounds."""

    age: timedelta | None
    """Since a round has done all that was to be done; ``None``: none has."""
    failed: bool
    """Whether the newest one has failed in part."""


def record(tx: Transaction, *, failed: bool) -> None:
    """Record that a round has come to its end, and whether something of it has failed."""
    ended = {"failed_ms" if failed else "whole_ms": tx.now_ms}
    if not tx.insert_new(retention_rounds, ended):
        tx.execute(update_rows(retention_rounds).values(ended))


def last(tx: Transaction) -> LastRound | None:
    """Return what is known of the tenant's rounds; ``None``: there was none."""
    row = tx.one(rows_of(retention_rounds))
    if row is None:
        return None
    whole_ms, failed_ms = row["whole_ms"], row["failed_ms"]
    return LastRound(
        age=None if whole_ms is None else timedelta(milliseconds=tx.now_ms - whole_ms),
        failed=failed_ms is not None and (whole_ms is None or failed_ms > whole_ms),
    )
