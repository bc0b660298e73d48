"""What follows when an effect is undone: its entry, and the runs that have replayed it (G4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import or_

from surehand.activities.ledger.core.statements import ours, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    effects,
    interventions,
    replays,
    run_keys,
    runs,
)
from surehand.activities.ledger.effects.interventions import (
    UNDONE,
    open_intervention,
)
from surehand.activities.ledger.outbox import notification_rows
from surehand.activities.ledger.outbox.notification import Facts, Kind
from surehand.activities.ledger.steps.entries import Asked, ClaimRequest, Entry
from surehand.workflows.identity import root_run_id
from surehand.workflows.plain_text import plain_line

#: Runs that the owner's event names; each of them has an event of its own.
_MOST_NAMED: Final = 100


def note_replay(tx: Transaction, request: ClaimRequest, entry: Entry) -> None:
    """Note that a run goes on with the receipt of an effect that another one owns."""
    if entry.run_id == request.run_id:
        return
    row = {
        "entry_id": entry.entry_id,
        "run_id": request.run_id,
        "step_id": request.step_id,
        "replayed_ms": tx.now_ms,
        "told_by": request.withdrawn,
    }
    tx.insert_new(replays, row)


def mark_compensated(tx: Transaction, undo: Entry) -> None:
    """Mark the original of an undo that is committed; for any other effect nothing is to do."""
    if undo.undoes is None:
        return
    touched = tx.execute(
        update_rows(effects, entry_id=undo.undoes)
        # A human may have left it as it is while its undoing was in doubt.
        .where(effects.c.state.in_(("committed", "compensating")))
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
    if touched:
        tell_replayers(tx, undo.undoes)


def tell_replayers(tx: Transaction, entry_id: str) -> None:
    """Tell each run that relies on an effect now undone: those under way, and those completed.

    A run under way makes no further effect before a human has settled its intervention. For one
    that has completed an intervention is open until somebody has looked at what that means, or
    people are only notified, where its tool said so.
    """
    found = _replayers(tx, entry_id)
    if not found:
        return
    row = tx.one(rows_of(effects, entry_id=entry_id))
    assert row is not None, "entries are never deleted"
    entry = Entry.from_row(row)
    undone = f"{entry.tool} {entry.key}: run {entry.run_id} has undone the effect that this run"
    for replay in found:
        run_id, step_id = replay["run_id"], replay["step_id"]
        completed = replay["closed_ms"] is not None
        notify = completed and replay["told_by"] == "notification"
        tx.event(
            run_id,
            "effect.withdrawn",
            step_id=step_id,
            entry_id=entry_id,
            tool=entry.tool,
            undone_by=entry.run_id,
            action="notify" if notify else "ask_human",
        )
        if notify:
            notification_rows.write_notification(
                tx,
                Kind.WITHDRAWN,
                Facts(what=plain_line(f"{undone} has completed on"), tool=entry.tool),
                run_id=run_id,
                step_id=step_id,
                # A step may rely on several.
                subject=f"{run_id}/{step_id}/{entry_id}",
            )
            continue
        question = (
            f"{undone} has completed on. Settle it as compensated once that is dealt with."
            if completed
            else f"{undone} relies on. Settle it as compensated to go on without it, or cancel the"
            " run."
        )
        open_intervention(tx, entry, question, rule=UNDONE, asked_in=(run_id, step_id))
    told = sorted({replay["run_id"] for replay in found})
    entry.tell(tx, "effect.withdrawn", told=told[:_MOST_NAMED], runs=len(told), action="told")


def _replayers(tx: Transaction, entry_id: str) -> list[dict[str, Any]]:
    found = tx.all(
        rows_of(
            replays,
            replays.c.run_id,
            replays.c.step_id,
            replays.c.told_by,
            runs.c.closed_ms,
            entry_id=entry_id,
        )
        .join(runs, ours(runs, run_id=replays.c.run_id))
        # What a run that failed has relied on, it relies on no more.
        .where(or_(runs.c.closed_ms.is_(None), runs.c.state == "completed"))
        .order_by(replays.c.run_id, replays.c.step_id)
    )
    if not found:
        return found
    roots = {root_run_id(row["run_id"]) for row in found}
    erased = rows_of(run_keys, run_keys.c.run_id).where(
        run_keys.c.run_id.in_(roots), run_keys.c.erased_ms.is_not(None)
    )
    # Nobody can be asked what that means for a run that nobody can read.
    gone = {row["run_id"] for row in tx.all(erased)}
    return [row for row in found if root_run_id(row["run_id"]) not in gone]


def undone_under(tx: Transaction, run_id: str) -> list[Mapping[str, Any]]:
    """Return the open questions of a run about effects that were undone under it."""
    return list(
        tx.all(
            rows_of(interventions, run_id=run_id, rule=UNDONE, state=OPEN).order_by(
                interventions.c.opened_ms, interventions.c.intervention_id
            )
        )
    )


def waits_to_be_told(run_id: Any) -> Any:
    """Return the condition that a human has to take note of something in this run."""
    return rows_of(interventions, run_id=run_id, rule=UNDONE, state=OPEN).exists()


def must_be_told(tx: Transaction, run_id: str) -> Asked | None:
    """Return what a human has to take note of before this run makes another effect."""
    waiting = undone_under(tx, run_id)
    if not waiting:
        return None
    first = waiting[0]
    # The run that has undone it may have been erased since.
    effect = rows_of(effects, entry_id=first["entry_id"])
    row = tx.one(effect.execution_options(sealed="shown"))
    assert row is not None, "entries are never deleted"
    return Asked(Entry.from_row(row), first["intervention_id"], first["question"])
