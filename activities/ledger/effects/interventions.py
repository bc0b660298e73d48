"""Interventions: questions that only a human can settle (guarantee G2)."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import func

from surehand.activities.ledger.core.statements import insert_row, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import interventions
from surehand.activities.ledger.outbox import notification_rows
from surehand.activities.ledger.outbox.notification import Facts, Kind
from surehand.activities.ledger.steps.entries import Entry
from surehand.workflows.contracts.effects import ResolutionOutcome, UndoSpec
from surehand.workflows.plain_text import plain_line

#: Asked of a run that has taken over the receipt of an effect which its owner has undone.
UNDONE: Final = "undone"
#: Asked before an undo that is not the one which people have approved with its step.
UNDO_CHANGED: Final = "undo_changed"


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

    Args:
        entry: The entry in question.
        question: What a human is asked.
        rule: Why: ``unknown``, ``partial``, ``compensation_failed``, ``undo_changed``, ``undone``.
        asked_in: Run and step that wait for the answer; default those that own the entry.
        undo: How the effect would be undone now; the answer ``undo`` agrees to that.
    """
    run_id, step_id = asked_in or (entry.run_id, entry.step_id)
    already = tx.one(
        rows_of(
            interventions,
            interventions.c.intervention_id,
            entry_id=entry.entry_id,
            run_id=run_id,
            state="open",
        )
    )
    if already is not None:
        return str(already["intervention_id"])
    number = tx.count(rows_of(interventions, func.count(), entry_id=entry.entry_id)) + 1
    intervention_id = f"iv-{entry.entry_id[3:]}-{number}"
    tx.execute(
        insert_row(
            interventions,
            intervention_id=intervention_id,
            run_id=run_id,
            step_id=step_id,
            entry_id=entry.entry_id,
            number=number,
            rule=rule,
            question=question,
            undo=undo and undo.model_dump(mode="json"),
            state="open",
            opened_ms=tx.now_ms,
        )
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


def called_off(tx: Transaction, run_id: str, step_id: str) -> str | None:
    """Return who has said that a step's effect is not to be tried again, if anybody has."""
    row = tx.one(
        rows_of(
            interventions,
            interventions.c.actor,
            run_id=run_id,
            step_id=step_id,
            outcome=ResolutionOutcome.CALL_OFF.value,
        )
    )
    return None if row is None else str(row["actor"])


def newest_intervention(tx: Transaction, entry_id: str) -> dict[str, Any] | None:
    """Return the newest intervention about an entry, open or settled."""
    return tx.one(
        rows_of(interventions, entry_id=entry_id)
        .order_by((interventions.c.state == "open").desc(), interventions.c.number.desc())
        .limit(1)
    )
