"""Undoing one effect: what there is to do about it, and the bar on late attempts (G4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects.epochs import lease_left
from surehand.activities.ledger.effects.interventions import (
    human_decides,
    newest_intervention,
    open_intervention,
)
from surehand.activities.ledger.effects.outcomes import mark_compensating, put_in_doubt
from surehand.activities.ledger.effects.run_tree import bar_step
from surehand.activities.ledger.steps import entries
from surehand.activities.ledger.steps.entries import LEASE_OVER, Asked, Doubtful, Entry, Held
from surehand.workflows.contracts.effects import UndoSpec

#: Entries in these states have something left to undo, or to find out.
_UNSETTLED: Final = ("committed", "compensating", "in_doubt", "partial")


class NothingToUndo(entries.NotClaimed):
    """The effect does not remain."""


class ToUndo(entries.OfEntry):
    """A committed effect, or one whose compensation is under way."""


class GivenUp(entries.NotClaimed):
    """A human has decided to leave the effect as it is."""


BeginResult = NothingToUndo | ToUndo | Held | Doubtful | Asked | GivenUp


def begin_undo(tx: Transaction, entry_id: str, run_id: str, step_id: str) -> BeginResult:
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
    question = newest_intervention(tx, entry.entry_id)
    if question is not None and question["state"] == "open":
        return Asked(entry, question["intervention_id"], question["question"])
    if question is not None and question["outcome"] == "give_up":
        reason = question["evidence"] or "no reason given"
        return GivenUp(f"{question['actor']} left it as it is: {reason}")
    match entry.state:
        case "claimed":
            tx.tick()  # it may have waited for the locks
            doubted = _doubt_claim(tx, entry)
            return doubted if isinstance(doubted, Held) else Doubtful(doubted)
        case "in_doubt" | "partial":
            return Doubtful(put_in_doubt(tx, entry, None))
        case _:
            return ToUndo(entry)


def _doubt_claim(tx: Transaction, entry: Entry) -> Entry | Held:
    """Put a claimed entry in doubt, unless its attempt may be alive."""
    left = lease_left(tx, entry)
    if left > 0:
        return Held(timedelta(milliseconds=left))
    return put_in_doubt(tx, entry, LEASE_OVER)


def still_remains(tx: Transaction, original: str) -> bool:
    """Return whether the effect to undo is there to be undone, under its row's lock.

    It is not while a human is asked about it, who may be undoing it by hand, nor after one has
    decided to leave it as it is.
    """
    row = tx.one(rows_of(effects, effects.c.state, entry_id=original).with_for_update())
    if row is None or row["state"] not in ("committed", "compensating"):
        return False
    return not human_decides(tx, original)


def other_undo(tx: Transaction, original: str, tool: str) -> str | None:
    """Return the tool of an undo that may have happened, if it is not the one named."""
    begun = rows_of(effects, effects.c.tool, undoes=original)
    row = tx.one(begun.where(effects.c.tool != tool, effects.c.state != "failed").limit(1))
    return None if row is None else str(row["tool"])


def ask_about_undo(
    tx: Transaction,
    original: Entry,
    question: str,
    rule: str = "compensation_failed",
    changed: UndoSpec | None = None,
) -> str | Held | None:
    """Put an undo that failed, is refused or has ``changed`` before a human; return the id.

    ``None`` when another attempt, or a human, has settled the original meanwhile: there is nothing
    left to ask. ``Held`` while another attempt may be undoing it: a human who does the same would
    undo it twice. If that one is in doubt, a human is asked about it first.

    The original is left as being compensated: until the human has answered, nobody else may use
    its key.
    """
    # Before its original, as whoever undoes it locks them.
    tx.all(rows_of(effects, effects.c.entry_id, undoes=original.entry_id).with_for_update())
    columns = (effects.c.state, effects.c.fencing_token)
    row = tx.one(rows_of(effects, *columns, entry_id=original.entry_id).with_for_update())
    assert row is not None, "entries are never deleted"
    if row["fencing_token"] != original.fencing_token or row["state"] not in _UNSETTLED:
        return None
    # Only now: an undo that began while this waited for its original was not there to be locked.
    for undo in map(Entry.from_row, tx.all(rows_of(effects, undoes=original.entry_id))):
        if undo.state == "claimed":
            doubted = _doubt_claim(tx, undo)
            if isinstance(doubted, Held):
                return doubted
        elif undo.state != "in_doubt":
            continue
        asked = newest_intervention(tx, undo.entry_id)
        if asked is None or asked["outcome"] != "give_up":
            why = f"{question}. Was it undone before?"
            return open_intervention(tx, undo, why, rule="unknown")
    mark_compensating(tx, original.entry_id)
    return open_intervention(tx, original, question, rule=rule, undo=changed)
