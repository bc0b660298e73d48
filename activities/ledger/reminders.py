"""Reminders of approval requests that wait: one when it is time, however long nobody was there."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select, update

from activities.ledger.entries import milliseconds
from activities.ledger.notifications import write_approval
from activities.ledger.store import Transaction
from activities.ledger.tables import approvals, notifications
from activities.ledger.votes import needs_of
from activities.notifications import Kind

#: Requests that people are reminded of in one transaction.
_BATCH: Final = 100


async def remind(tx: Transaction, now_ms: int) -> int:
    """Write the reminders that are due, one for each request, and return how many.

    Their number is the count of intervals since the request, so that what nobody was there to send
    is skipped. An older one that is not sent yet is dropped: the newer one tells it.
    """
    rows = await tx.all(
        select(approvals)
        .where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.state == "pending",
            approvals.c.remind_ms <= now_ms,
            approvals.c.expires_ms > now_ms,
        )
        .order_by(approvals.c.remind_ms, approvals.c.approval_id)
        .limit(_BATCH)
        # Somebody is deciding it, or reminding of it, just now.
        .with_for_update(skip_locked=True)
    )
    for row in rows:
        every = needs_of(row).remind_every
        assert every is not None, "only such a request has a next reminder"
        number = (now_ms - row["requested_ms"]) // milliseconds(every)
        await tx.execute(
            update(notifications)
            .where(
                notifications.c.tenant_id == tx.tenant,
                notifications.c.kind == Kind.REMINDER.value,
                notifications.c.subject == row["approval_id"],
                notifications.c.number < number,
                notifications.c.state == "pending",
            )
            .values(state="void")
        )
        await write_approval(tx, row, Kind.REMINDER, number)
        following = row["requested_ms"] + (number + 1) * milliseconds(every)
        await tx.execute(
            update(approvals)
            .where(
                approvals.c.tenant_id == tx.tenant, approvals.c.approval_id == row["approval_id"]
            )
            .values(remind_ms=following)
        )
    return len(rows)
