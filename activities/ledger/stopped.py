"""Runs that were stopped from outside (terminated, timed out): nobody else closes them here."""

from __future__ import annotations

from sqlalchemy import select, update

from activities.ledger.entries import Entry
from activities.ledger.store import RunNotFound, Transaction
from activities.ledger.tables import approvals, effects, runs
from workflows.contracts import EffectView

#: Entries in these states may have happened and are not undone.
_STANDING = ("claimed", "committed", "in_doubt", "partial", "compensating")


async def close(tx: Transaction, run_id: str) -> bool:
    """Record that a run was stopped, and void what it still asks; ``False`` if it is closed.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    row = await tx.one(
        select(runs.c.closed_ms).where(runs.c.tenant_id == tx.tenant, runs.c.run_id == run_id)
    )
    if row is None:
        raise RunNotFound(run_id)
    touched = await tx.execute(
        update(runs)
        .where(runs.c.tenant_id == tx.tenant, runs.c.run_id == run_id, runs.c.closed_ms.is_(None))
        .values(state="failed", error="stopped from outside", closed_ms=tx.now_ms)
    )
    if not touched:
        return False
    await tx.execute(
        update(approvals)
        .where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.run_id == run_id,
            approvals.c.state == "pending",
        )
        .values(state="void")
    )
    tx.event(run_id, "run.stopped", rule="closed_at_the_server", action="offer_compensation")
    return True


async def standing(tx: Transaction, run_id: str) -> list[EffectView]:
    """Return a run's effects that may have happened and are not undone, last commit first."""
    return [entry.view() for entry in await _entries(tx, run_id)]


async def to_undo(tx: Transaction, run_id: str) -> list[str]:
    """Return the steps that made them, in the same order."""
    return list(dict.fromkeys(entry.step_id for entry in await _entries(tx, run_id)))


async def _entries(tx: Transaction, run_id: str) -> list[Entry]:
    rows = await tx.all(
        select(effects).where(
            effects.c.tenant_id == tx.tenant,
            effects.c.run_id == run_id,
            effects.c.undoes.is_(None),
            effects.c.state.in_(_STANDING),
        )
    )
    entries = [Entry.from_row(row) for row in rows]
    # Without a recorded commit: if one of them happened, it happened last.
    newest = max((entry.commit_seq or 0 for entry in entries), default=0) + 1
    return sorted(entries, key=lambda entry: entry.commit_seq or newest, reverse=True)
