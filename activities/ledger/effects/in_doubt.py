"""Taking an entry out of an attempt's hands: in doubt after a call, or given back without one."""

from __future__ import annotations

from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import recovery
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.entries import (
    ClaimRequest,
    ClaimResult,
    Entry,
)


def doubt(tx: Transaction, entry: Entry, reason: str | None, *, rule: str = "lease_over") -> Entry:
    """Put an entry in doubt under a new fencing token, so that no earlier attempt can write it."""
    row = tx.one(
        update_rows(effects, entry_id=entry.entry_id, fencing_token=entry.fencing_token)
        .values(
            state="partial" if entry.state == "partial" else "in_doubt",
            fencing_token=entry.fencing_token + 1,
            lease_until_ms=None,
            holder=None,
            recovering_ms=recovery.since(tx),
        )
        .returning(effects)
    )
    assert row is not None, "the entry's row is locked by this transaction"
    if reason:
        entry.tell(
            tx,
            "effect.in_doubt",
            rule=rule,
            evidence=reason,
            action="reconcile",
        )
    return Entry.from_row(row)


def give_back(
    tx: Transaction, request: ClaimRequest, entry: Entry, refused: ClaimResult
) -> ClaimResult:
    """Give back a claim under which nothing was called, and must not be."""
    tx.execute(
        update_rows(effects, entry_id=entry.entry_id).values(
            state="in_doubt" if entry.unproven else "failed",
            lease_until_ms=None,
            recovering_ms=entry.recovering_ms if entry.unproven else None,
            settled_ms=None if entry.unproven else tx.now_ms,
        )
    )
    entry.tell(
        tx,
        "effect.failed",
        rule="not_called",
        action="reconcile" if entry.unproven else None,
    )
    if not entry.unproven:
        recovery.verified(tx, entry, "failed", action="call_again")
    if request.undoes is None:
        step_rows.finish(
            tx, request.step_attempt, "failed", error="not called", error_class="refused"
        )
    return refused
