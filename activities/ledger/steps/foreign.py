"""Runs that have read content from outside: an event of the run says so, and none takes it back.

Whoever judges a call asks here in the transaction that lets it through. What is recorded only then
has reached nobody yet: no call that is let through before can rest on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sqlalchemy import ColumnElement, Exists, Select, bindparam, literal_column

from surehand.activities.ledger.core.statements import PreparedStatement, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import events
from surehand.workflows.contracts.base import ForeignContent

#: The event that marks a run.
MARKED: Final = "run.marked_foreign"


def is_marked(run_id: ColumnElement[str]) -> Exists:
    """Return the condition that a run is marked, as far as other transactions have said so."""
    return _select_marks(run_id).exists()


def _select_marks(run_id: ColumnElement[str]) -> Select[tuple[object, ...]]:
    # Written out: by a parameter the database could not use the index, which has these rows alone.
    marks = rows_of(events, events.c.step_id, events.c.body, run_id=run_id)
    return marks.where(events.c.type == literal_column(f"'{MARKED}'"))


_CONTENT: Final = PreparedStatement(_select_marks(bindparam("of_run")).order_by(events.c.seq))


def marked_here(tx: Transaction, run_id: str) -> list[ForeignContent]:
    """Return what this transaction says of a run at its end."""
    return [
        content_of_event(event.step_id, event.body)
        for event in tx.pending.get(run_id, ())
        if event.type == MARKED
    ]


def foreign_content(tx: Transaction, run_id: str) -> tuple[ForeignContent, ...]:
    """Return what has brought a run content from outside: of each tool, its first step."""
    rows = tx.all(_CONTENT, of_run=run_id)
    return (
        *(content_of_event(row["step_id"], row["body"]) for row in rows),
        *marked_here(tx, run_id),
    )


def marked_among(tx: Transaction, run_ids: Collection[str]) -> set[str]:
    """Return which of these runs are marked."""
    marks = rows_of(events, events.c.run_id).where(
        events.c.run_id.in_(run_ids), events.c.type == literal_column(f"'{MARKED}'")
    )
    return set(tx.read_column(marks))


def mark_foreign(tx: Transaction, run_id: str, found: Iterable[ForeignContent]) -> None:
    """Record that a run has got content from outside; of one tool that is said once."""
    known = {content.tool for content in foreign_content(tx, run_id)}
    for content in found:
        if content.tool in known:
            continue
        known.add(content.tool)
        other = content.run_id is not None
        tx.event(
            run_id,
            "run.marked_foreign",  # written out: the reference of events is read from the code
            step_id=None if other else content.step_id,
            tool=content.tool,
            source_run=content.run_id,
            source_step=content.step_id if other else None,
        )


def hand_on_foreign(tx: Transaction, run_id: str, to: str) -> None:
    """Mark a run to which something of another one comes, if that one is marked."""
    mark_foreign(tx, to, [content.of(run_id) for content in foreign_content(tx, run_id)])


def content_of_event(step_id: str | None, body: Mapping[str, object]) -> ForeignContent:
    """Return what an event that marks a run tells of."""
    source_run = body.get("source_run")
    return ForeignContent(
        tool=str(body["tool"]),
        step_id=str(body.get("source_step") or step_id or ""),
        run_id=None if source_run is None else str(source_run),
    )
