"""Entries that nobody is settling: what the sweep looks at."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import and_, exists, or_, select

from activities.ledger.doubts import doubt
from activities.ledger.entries import Entry, milliseconds
from activities.ledger.questions import newest_question
from activities.ledger.store import Transaction
from activities.ledger.tables import effects, interventions


async def overdue(tx: Transaction, quiet: timedelta, limit: int) -> list[Entry]:
    """Return entries without an outcome that nobody has touched for a while, oldest first.

    Left out are those about which a human is asked, or has given up.

    Args:
        tx: The transaction.
        quiet: How long after the end of its lease, or of its call, an entry is left to the run's
            own attempts.
        limit: Most entries to return.
    """
    before = tx.now_ms - milliseconds(quiet)
    asked = exists().where(
        interventions.c.tenant_id == effects.c.tenant_id,
        interventions.c.entry_id == effects.c.entry_id,
        or_(interventions.c.state == "open", interventions.c.outcome == "give_up"),
    )
    rows = await tx.all(
        select(effects)
        .where(
            effects.c.tenant_id == tx.tenant,
            or_(
                and_(effects.c.state == "claimed", effects.c.lease_until_ms < before),
                and_(effects.c.state.in_(("in_doubt", "partial")), effects.c.deadline_ms < before),
            ),
            ~asked,
        )
        .order_by(effects.c.claimed_ms)
        .limit(limit)
    )
    return [Entry.from_row(row) for row in rows]


async def take_over(tx: Transaction, seen: Entry) -> Entry | None:
    """Put an overdue entry in doubt under our fencing token; ``None`` if somebody was quicker."""
    await tx.lock_key(seen.tool, seen.key)
    row = await tx.one(
        select(effects)
        .where(
            effects.c.tenant_id == tx.tenant,
            effects.c.entry_id == seen.entry_id,
            effects.c.fencing_token == seen.fencing_token,
            effects.c.state == seen.state,
            # A call that is alive after all has renewed its lease meanwhile.
            or_(effects.c.lease_until_ms.is_(None), effects.c.lease_until_ms <= tx.now_ms),
        )
        .with_for_update()
    )
    if row is None:
        return None
    # A round takes its time: meanwhile its own run may have asked a human, who settles it.
    question = await newest_question(tx, seen.entry_id)
    if question is not None and (question["state"] == "open" or question["outcome"] == "give_up"):
        return None
    reason = "its lease ran out and nobody took it over" if seen.state == "claimed" else None
    return await doubt(tx, Entry.from_row(row), reason, rule="swept")
