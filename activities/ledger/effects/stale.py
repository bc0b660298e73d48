"""Entries that nobody is settling: what the reaper looks at."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, and_, or_

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import WITHOUT_OUTCOME, effects, interventions
from surehand.activities.ledger.effects.claim_entry import doubt_again
from surehand.activities.ledger.effects.clock_jumps import lease_left
from surehand.activities.ledger.effects.epochs import current
from surehand.activities.ledger.effects.in_doubt import doubt
from surehand.activities.ledger.effects.interventions import newest_intervention
from surehand.activities.ledger.steps.entries import Entry, milliseconds


def stale_entries(
    tx: Transaction, quiet: timedelta, limit: int, after: str | None = None
) -> list[Entry]:
    """Return entries without an outcome that nobody has touched for a while, oldest first.

    Left out are those about which a human is asked, or has given up. Times that only a clock which
    was set back explains are no reason to wait: whoever judges them cuts them.

    Args:
        tx: The transaction.
        quiet: How long after the end of its lease, or of its call, an entry is left to the run's
            own attempts.
        limit: Most entries to return.
        after: The place of the last entry of the page before (``place``).
    """
    before = tx.now_ms - milliseconds(quiet)
    asked = (
        rows_of(interventions, entry_id=effects.c.entry_id)
        .where(or_(interventions.c.state == "open", interventions.c.outcome == "give_up"))
        .exists()
    )
    rows = tx.all(
        rows_of(effects)
        .where(
            WITHOUT_OUTCOME,
            or_(
                and_(effects.c.state == "claimed", _over(tx, before, "lease_until_ms", "lease_ms")),
                and_(
                    effects.c.state.in_(("in_doubt", "partial")),
                    _over(tx, before, "deadline_ms", "timeout_ms"),
                ),
            ),
            ~asked,
            *_behind(after),
        )
        .order_by(effects.c.claimed_ms, effects.c.entry_id)
        .limit(limit)
    )
    return [Entry.from_row(row) for row in rows]


def _over(tx: Transaction, before: int, until: str, lasts: str) -> ColumnElement[bool]:
    return or_(effects.c[until] < before, effects.c[until] > tx.now_ms + effects.c[lasts])


def place(seen: Entry) -> str:
    """Return where an entry stands among those that are stale."""
    return f"{seen.claimed_ms}:{seen.entry_id}"


def _behind(after: str | None) -> list[ColumnElement[bool]]:
    if after is None:
        return []
    claimed_ms, _, entry_id = after.partition(":")
    here = and_(effects.c.claimed_ms == int(claimed_ms), effects.c.entry_id > entry_id)
    return [or_(effects.c.claimed_ms > int(claimed_ms), here)]


def take_over(tx: Transaction, seen: Entry) -> Entry | None:
    """Put a stale entry in doubt under our fencing token; ``None`` if somebody was quicker."""
    tx.lock_key(seen.tool, seen.key)
    row = tx.one(
        rows_of(
            effects, entry_id=seen.entry_id, fencing_token=seen.fencing_token, state=seen.state
        ).with_for_update()
    )
    if row is None:
        return None
    tx.tick()  # it may have waited for the locks
    entry = Entry.from_row(row)
    # A call that is alive after all has renewed its lease meanwhile.
    if entry.state == "claimed" and lease_left(tx, entry) > 0:
        return None
    # A round takes its time: meanwhile its own run may have asked a human, who settles it.
    question = newest_intervention(tx, seen.entry_id)
    if question is not None and (question["state"] == "open" or question["outcome"] == "give_up"):
        return None
    epoch = current(tx)
    if epoch is not None and epoch.doubts(entry):
        entry = doubt_again(tx, entry, epoch)
    reason = "its lease ran out and nobody took it over" if seen.state == "claimed" else None
    return doubt(tx, entry, reason, rule="stale")
