"""Interventions: questions that only a human can settle (guarantee G2).

One kind follows when an effect is undone (G4): each run that has replayed it is asked, or told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import func, or_

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
from surehand.activities.ledger.outbox import notification_rows
from surehand.activities.ledger.outbox.notification import Facts, Kind
from surehand.activities.ledger.steps.entries import Asked, Entry
from surehand.workflows.contracts.effects import ResolutionOutcome, UndoSpec
from surehand.workflows.identity import root_run_id
from surehand.workflows.plain_text import plain_line

#: Asked of a run that has taken over the receipt of an effect which its owner has undone.
UNDONE: Final = "undone"
#: Asked before an undo that is not the one which people have approved with its step.
UNDO_CHANGED: Final = "undo_changed"
#: Asked when something stands in an undo's way.
UNDO_REFUSED: Final = "undo_refused"
#: Runs that the owner's event names; each of them has an event of its own.
_MOST_NAMED: Final = 100


def open_intervention(
    tx: Transaction,
    entry: Entry,
    question: str,
    *,
    rule: str,
    asked_in: tuple[str, str] | None = None,
    undo: UndoSpec | None = None,
) -> str:
    """Open the one question about an entry and return its id; joins an open one.

    ``rule`` is ``unknown``, ``partial``, ``compensation_failed``, ``undo_changed``,
    ``undo_refused`` or ``undone``.
    The run and step of ``asked_in`` wait for the answer, by default those that own the entry. The
    answer ``undo`` agrees to undo the effect as ``undo`` says.
    """
    run_id, step_id = asked_in or (entry.run_id, entry.step_id)
    asked, of_entry = interventions.c, {"entry_id": entry.entry_id}
    opened: str | None = tx.value(
        rows_of(interventions, asked.intervention_id, **of_entry, run_id=run_id, state="open")
    )
    if opened is not None:
        return opened
    number = tx.count(rows_of(interventions, func.count(), **of_entry)) + 1
    intervention_id = f"iv-{entry.entry_id[3:]}-{number}"
    tx.insert_row(
        interventions,
        **of_entry,
        intervention_id=intervention_id,
        run_id=run_id,
        step_id=step_id,
        number=number,
        rule=rule,
        question=question,
        undo=undo and undo.model_dump(mode="json"),
        state="open",
        opened_ms=tx.now_ms,
    )
    tx.event(
        run_id,
        "intervention.opened",
        step_id=step_id,
        entry_id=entry.entry_id,
        tool=entry.tool,
        intervention_id=intervention_id,
        rule=rule,
        action="ask_human",
    )
    notification_rows.write_notification(
        tx,
        Kind.INTERVENTION,
        Facts(what=plain_line(question), tool=entry.tool),
        run_id=run_id,
        step_id=step_id,
        subject=intervention_id,
    )
    return intervention_id


def newest_intervention(tx: Transaction, entry_id: str) -> dict[str, Any] | None:
    """Return the newest intervention about an entry, open or settled."""
    return tx.one(
        rows_of(interventions, entry_id=entry_id)
        .order_by((interventions.c.state == "open").desc(), interventions.c.number.desc())
        .limit(1)
    )


def last_answer_ms(tx: Transaction, *entry_ids: str) -> int:
    """Return when a human has settled a question about one of these entries last; 0: never."""
    newest = func.max(interventions.c.settled_ms)
    about = interventions.c.entry_id.in_(entry_ids)
    return tx.value(rows_of(interventions, newest, state="settled").where(about)) or 0


def human_decides(tx: Transaction, entry_id: str) -> bool:
    """Return whether a human is asked about an entry, or has decided to leave it as it is."""
    newest = newest_intervention(tx, entry_id)
    return newest is not None and (newest["state"] == "open" or newest["outcome"] == "give_up")


def who_called_off(tx: Transaction, run_id: str, step_id: str) -> str | None:
    """Return who has said that a step's effect is not to be tried again, if anybody has."""
    said = {"run_id": run_id, "step_id": step_id, "outcome": ResolutionOutcome.CALL_OFF.value}
    actor: str | None = tx.value(rows_of(interventions, interventions.c.actor, **said))
    return actor


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
    body = {"entry_id": undo.undoes, "tool": undo.tool, "by": undo.entry_id}
    tx.event(undo.run_id, "effect.compensated", step_id=undo.step_id, **body)
    if touched:
        tell_replayers(tx, undo.undoes)


def tell_replayers(tx: Transaction, entry_id: str) -> None:
    """Tell each run that relies on an effect now undone: those under way, and those completed.

    A run under way makes no further effect before a human has settled its intervention. For one
    that has completed an intervention is open until somebody has looked at what that means.
    """
    found = find_replayers(tx, entry_id)
    if not found:
        return
    entry = Entry.find(tx, rows_of(effects, entry_id=entry_id))
    assert entry is not None, "entries are never deleted"
    undone = f"{entry.tool} {entry.key}: run {entry.run_id} has undone the effect that this run"
    for replay in found:
        run_id, step_id = replay["run_id"], replay["step_id"]
        completed = replay["closed_ms"] is not None
        tx.event(
            run_id,
            "effect.withdrawn",
            step_id=step_id,
            entry_id=entry_id,
            tool=entry.tool,
            undone_by=entry.run_id,
            action="ask_human",
        )
        question = (
            f"{undone} has completed on. Settle it as compensated once that is dealt with."
            if completed
            else f"{undone} relies on. Settle it as compensated to go on without it, or cancel the"
            " run."
        )
        open_intervention(tx, entry, question, rule=UNDONE, asked_in=(run_id, step_id))
    told = sorted({replay["run_id"] for replay in found})
    entry.tell(tx, "effect.withdrawn", told=told[:_MOST_NAMED], runs=len(told), action="told")


def find_replayers(tx: Transaction, entry_id: str) -> list[dict[str, Any]]:
    """Return the steps of other runs that rely on an effect, under way or completed."""
    columns = (replays.c.run_id, replays.c.step_id, runs.c.closed_ms)
    found = tx.all(
        rows_of(replays, *columns, entry_id=entry_id)
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
    gone = set(tx.read_column(erased))
    return [row for row in found if root_run_id(row["run_id"]) not in gone]


def find_withdrawn(tx: Transaction, run_id: str) -> list[Mapping[str, Any]]:
    """Return the open questions of a run about effects that were undone under it."""
    asked = rows_of(interventions, run_id=run_id, rule=UNDONE, state=OPEN)
    return list(tx.all(asked.order_by(interventions.c.opened_ms, interventions.c.intervention_id)))


def asked_about(entry: Entry, question: Mapping[str, Any]) -> Asked:
    return Asked(entry, question["intervention_id"], question["question"], question["rule"])


def waits_to_be_told(run_id: Any) -> Any:
    """Return the condition that a human has to take note of something in this run."""
    return rows_of(interventions, run_id=run_id, rule=UNDONE, state=OPEN).exists()


def must_be_told(tx: Transaction, run_id: str) -> Asked | None:
    """Return what a human has to take note of before this run makes another effect."""
    waiting = find_withdrawn(tx, run_id)
    if not waiting:
        return None
    first = waiting[0]
    # The run that has undone it may have been erased since.
    effect = rows_of(effects, entry_id=first["entry_id"])
    entry = Entry.find(tx, effect.execution_options(sealed="shown"))
    assert entry is not None, "entries are never deleted"
    return asked_about(entry, first)
