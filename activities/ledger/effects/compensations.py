"""Undoing one effect: what there is to do about it, and the bar on late attempts (G4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects.epochs import lease_left
from surehand.activities.ledger.effects.interventions import (
    UNDO_CHANGED,
    newest_intervention,
    open_intervention,
)
from surehand.activities.ledger.effects.outcomes import doubt
from surehand.activities.ledger.effects.run_tree import bar_step
from surehand.activities.ledger.steps.entries import Asked, Doubtful, Entry, Held
from surehand.workflows.contracts.effects import UndoSpec

#: Entries in these states have something left to undo, or to find out.
_UNSETTLED: Final = ("committed", "compensating", "in_doubt", "partial")


@dataclass(frozen=True)
class NothingToUndo:
    """The effect does not remain."""

    reason: str


@dataclass(frozen=True)
class ToUndo:
    """A committed effect, or one whose compensation is under way."""

    entry: Entry


@dataclass(frozen=True)
class GivenUp:
    """A human has decided to leave the effect as it is."""

    reason: str


BeginResult = NothingToUndo | ToUndo | Held | Doubtful | Asked | GivenUp


def begin(tx: Transaction, entry_id: str, run_id: str, step_id: str) -> BeginResult:
    """Bar the step that has made an effect, and return what there is to undo of it.

    By its entry: a step may have made several, in several lives of a run that was reset. The bar
    and the claim hold the same lock, so a late attempt is either seen here or refused there.
    """
    tx.lock_step(run_id, step_id)
    bar_step(tx, run_id, step_id)
    row = tx.one(rows_of(effects, entry_id=entry_id).with_for_update())
    entry = None if row is None else Entry.from_row(row)
    if entry is None or not entry.owned_by(run_id, step_id) or entry.state == "failed":
        return NothingToUndo("it has not happened")
    if entry.state == "compensated":
        return NothingToUndo("already undone")
    asked = _question(tx, entry)
    if asked is not None:
        return asked
    if entry.state == "claimed":
        tx.tick()  # it may have waited for the locks
        left = lease_left(tx, entry)
        if left > 0:
            return Held(timedelta(milliseconds=left))
        return Doubtful(doubt(tx, entry, "its lease ran out before an outcome was recorded"))
    if entry.state in ("in_doubt", "partial"):
        return Doubtful(doubt(tx, entry, None))
    return ToUndo(entry)


def _question(tx: Transaction, entry: Entry) -> Asked | GivenUp | None:
    row = newest_intervention(tx, entry.entry_id)
    if row is None:
        return None
    if row["state"] == "open":
        return Asked(entry, row["intervention_id"], row["question"])
    if row["outcome"] == "give_up":
        return GivenUp(f"{row['actor']} left it as it is: {row['evidence'] or 'no reason given'}")
    return None


def still_remains(tx: Transaction, original: str) -> bool:
    """Return whether the effect to undo is there to be undone, under its row's lock.

    It is not while a human is asked about it, who may be undoing it by hand, nor after one has
    decided to leave it as it is.
    """
    row = tx.one(rows_of(effects, effects.c.state, entry_id=original).with_for_update())
    if row is None or row["state"] not in ("committed", "compensating"):
        return False
    question = newest_intervention(tx, original)
    return question is None or (question["state"] != "open" and question["outcome"] != "give_up")


def other_undo(tx: Transaction, original: str, tool: str) -> str | None:
    """Return the tool of an undo that may have happened, where it is not the one named."""
    begun = rows_of(effects, effects.c.tool, undoes=original)
    row = tx.one(begun.where(effects.c.tool != tool, effects.c.state != "failed").limit(1))
    return None if row is None else str(row["tool"])


def failed(
    tx: Transaction, original: Entry, question: str, changed: UndoSpec | None = None
) -> str | Held | None:
    """Put an undo that failed, or has changed, before a human; return the intervention's id.

    ``None`` when another attempt, or a human, has settled the original meanwhile: there is nothing
    left to ask. ``Held`` while another attempt may be undoing it: a human who does the same would
    undo it twice. If that one is in doubt, a human is asked about it first.

    The original is left as being compensated: until the human has answered, nobody else may use
    its key.

    Args:
        original: The effect to undo.
        question: What a human is asked.
        changed: How it would be undone now, where that is not what was approved.
    """
    # Before its original, as whoever undoes it locks them.
    tx.all(rows_of(effects, effects.c.entry_id, undoes=original.entry_id).with_for_update())
    row = tx.one(
        rows_of(
            effects, effects.c.state, effects.c.fencing_token, entry_id=original.entry_id
        ).with_for_update()
    )
    assert row is not None, "entries are never deleted"
    if row["fencing_token"] != original.fencing_token or row["state"] not in _UNSETTLED:
        return None
    under_way = _undo_under_way(tx, original, question)
    if under_way is not None:
        return under_way
    tx.execute(
        update_rows(effects, entry_id=original.entry_id, state="committed").values(
            state="compensating"
        )
    )
    rule = UNDO_CHANGED if changed else "compensation_failed"
    return open_intervention(tx, original, question, rule=rule, undo=changed)


def _undo_under_way(tx: Transaction, original: Entry, question: str) -> str | Held | None:
    row = tx.one(
        rows_of(effects, undoes=original.entry_id).where(
            effects.c.state.in_(("claimed", "in_doubt"))
        )
    )
    if row is None:
        return None
    undo = Entry.from_row(row)
    if undo.state == "claimed":
        left = lease_left(tx, undo)
        if left > 0:
            return Held(timedelta(milliseconds=left))
        undo = doubt(tx, undo, "its lease ran out before an outcome was recorded")
    asked = newest_intervention(tx, undo.entry_id)
    if asked is not None and asked["outcome"] == "give_up":
        return None
    return open_intervention(tx, undo, f"{question}. Was it undone before?", rule="unknown")
