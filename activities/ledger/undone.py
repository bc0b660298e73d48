"""What follows when an effect is undone: its entry, and the runs that have replayed it (G4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import exists, select, update
from sqlalchemy.dialects import postgresql, sqlite

from activities.ledger.entries import Asked, Entry
from activities.ledger.questions import UNDONE, open_intervention
from activities.ledger.store import Transaction
from activities.ledger.tables import effects, interventions, replays, runs


async def note_replay(tx: Transaction, run_id: str, step_id: str, entry: Entry) -> None:
    """Note that a run goes on with the receipt of an effect that another one owns."""
    if entry.run_id == run_id:
        return
    dialect = postgresql if tx.connection.dialect.name == "postgresql" else sqlite
    await tx.execute(
        dialect.insert(replays)
        .values(
            tenant_id=tx.tenant,
            entry_id=entry.entry_id,
            run_id=run_id,
            step_id=step_id,
            replayed_ms=tx.now_ms,
        )
        .on_conflict_do_nothing()
    )


async def mark_compensated(tx: Transaction, undo: Entry) -> None:
    """Mark the original of an undo that is committed; for any other effect nothing is to do."""
    if undo.undoes is None:
        return
    await tx.execute(
        update(effects)
        .where(
            effects.c.tenant_id == tx.tenant,
            effects.c.entry_id == undo.undoes,
            effects.c.state == "compensating",
        )
        .values(state="compensated", settled_ms=tx.now_ms)
    )
    tx.event(
        undo.run_id,
        "effect.compensated",
        step_id=undo.step_id,
        entry_id=undo.undoes,
        tool=undo.tool,
        by=undo.entry_id,
    )
    await tell_replayers(tx, undo.undoes)


async def tell_replayers(tx: Transaction, entry_id: str) -> None:
    """Open an intervention in each run that is under way and relies on an effect now undone."""
    found = await _replayers(tx, entry_id)
    if not found:
        return
    row = await tx.one(
        select(effects).where(effects.c.tenant_id == tx.tenant, effects.c.entry_id == entry_id)
    )
    assert row is not None, "entries are never deleted"
    entry = Entry.from_row(row)
    question = (
        f"{entry.tool} {entry.key}: run {entry.run_id} has undone the effect that this run relies"
        " on. Settle it as compensated to go on without it, or cancel the run."
    )
    for replay in found:
        asked_in = (replay["run_id"], replay["step_id"])
        await open_intervention(tx, entry, question, rule=UNDONE, asked_in=asked_in)


async def _replayers(tx: Transaction, entry_id: str) -> list[dict[str, Any]]:
    return await tx.all(
        select(replays.c.run_id, replays.c.step_id)
        .join(
            runs,
            (runs.c.tenant_id == replays.c.tenant_id) & (runs.c.run_id == replays.c.run_id),
        )
        .where(
            replays.c.tenant_id == tx.tenant,
            replays.c.entry_id == entry_id,
            runs.c.closed_ms.is_(None),
        )
        .order_by(replays.c.run_id, replays.c.step_id)
    )


async def undone_under(tx: Transaction, run_id: str) -> list[Mapping[str, Any]]:
    """Return the open questions of a run about effects that were undone under it."""
    return list(
        await tx.all(
            select(interventions)
            .where(
                interventions.c.tenant_id == tx.tenant,
                interventions.c.run_id == run_id,
                interventions.c.rule == UNDONE,
                interventions.c.state == "open",
            )
            .order_by(interventions.c.opened_ms, interventions.c.intervention_id)
        )
    )


def waits_to_be_told(tenant: Any, run_id: Any) -> Any:
    """Return the condition that a human has to take note of something in this run."""
    return exists().where(
        interventions.c.tenant_id == tenant,
        interventions.c.run_id == run_id,
        interventions.c.rule == UNDONE,
        interventions.c.state == "open",
    )


async def must_be_told(tx: Transaction, run_id: str) -> Asked | None:
    """Return what a human has to take note of before this run makes another effect."""
    waiting = await undone_under(tx, run_id)
    if not waiting:
        return None
    first = waiting[0]
    row = await tx.one(
        select(effects).where(
            effects.c.tenant_id == tx.tenant, effects.c.entry_id == first["entry_id"]
        )
    )
    assert row is not None, "entries are never deleted"
    return Asked(Entry.from_row(row), first["intervention_id"], first["question"])
