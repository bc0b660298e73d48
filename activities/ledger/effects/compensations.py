"""Undoing one effect: what there is to do about it, and the bar on late attempts (G4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final, assert_never

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.effects.epochs import lease_left
from surehand.activities.ledger.effects.interventions import (
    UNDO_CHANGED,
    UNDO_REFUSED,
    asked_about,
    find_replayers,
    human_decides,
    newest_intervention,
    open_intervention,
)
from surehand.activities.ledger.effects.outcomes import mark_compensating, put_in_doubt
from surehand.activities.ledger.effects.run_tree import bar_step
from surehand.activities.ledger.steps import entries
from surehand.activities.ledger.steps.entries import LEASE_OVER, Asked, Doubtful, Entry, Held
from surehand.workflows.contracts.effects import NotUndone, ResolutionOutcome, UndoSpec, Unwound
from surehand.workflows.identity import root_run_id

#: Entries in these states have something left to undo, or to find out.
_UNSETTLED: Final = ("committed", "compensating", "in_doubt", "partial")
_UNDO: Final = ResolutionOutcome.UNDO.value
#: Effects and runs that one question names.
_MOST_USERS: Final = 5
_NONE_REFUSED: Final[Mapping[str, str]] = MappingProxyType({})


class NothingToUndo(entries.NotClaimed):
    """The effect does not remain."""


@dataclass(frozen=True)
class ToUndo(entries.OfEntry):
    """A committed effect, or one whose compensation is under way."""

    instead_of: str | None = None
    """How its undo differs from the one that its call was made with, if it does."""


class GivenUp(entries.NotClaimed):
    """A human has decided to leave the effect as it is."""


@dataclass(frozen=True)
class Stays(entries.OfEntry):
    """Nothing undoes it."""

    reason: str


@dataclass(frozen=True)
class AskFirst(entries.OfEntry):
    """A human has to say whether it is undone."""

    question: str
    rule: str
    changed: UndoSpec | None = None
    """The undo that is not the one which was approved."""


BeginResult = NothingToUndo | ToUndo | Held | Doubtful | Asked | GivenUp | Stays | AskFirst
#: Returns how an effect is undone; ``None``: whoever would undo it does not know its tool.
Loads = Callable[[Entry], UndoSpec | None]


def begin_undo(
    tx: Transaction,
    entry_id: str,
    run_id: str,
    step_id: str,
    loads: Loads,
    *,
    cleanup: bool = False,
) -> BeginResult:
    """Bar the step that has made an effect, and return what there is to undo of it.

    By its entry: a step may have made several, in several lives of a run that was reset. The bar
    and the claim hold the same lock, so a late attempt is either seen here or refused there.
    """
    tx.lock_step(run_id, step_id)
    bar_step(tx, run_id, step_id)
    entry = Entry.find(tx, rows_of(effects, entry_id=entry_id).with_for_update())
    if entry is None or not entry.owned_by(run_id, step_id):
        return NothingToUndo("it has not happened")
    if entry.state == "claimed":
        tx.tick()  # it may have waited for the locks
    found = judge_undo(tx, entry, loads, cleanup=cleanup)
    if not isinstance(found, Doubtful):
        return found
    return Doubtful(put_in_doubt(tx, entry, LEASE_OVER if entry.state == "claimed" else None))


def judge_undo(
    tx: Transaction,
    entry: Entry,
    loads: Loads,
    *,
    cleanup: bool = False,
    gone: Collection[str] = (),
) -> BeginResult:
    """Return what is to be done about an effect, and change nothing.

    What is undone is judged by it, and what would be. ``gone`` are effects that would be undone
    before this one.
    """
    if entry.state == "failed":
        return NothingToUndo("it has not happened")
    if entry.state == "compensated":
        return NothingToUndo("already undone")
    question = newest_intervention(tx, entry.entry_id)
    if question is not None and question["state"] == "open":
        return asked_about(entry, question)
    if question is not None and question["outcome"] == "give_up":
        reason = question["evidence"] or "no reason given"
        return GivenUp(f"{question['actor']} left it as it is: {reason}")
    if (held := _find_attempt(tx, entry)) is not None:
        return held
    if entry.state not in ("committed", "compensating"):
        return Doubtful(entry)
    undoing, loaded = f"undoing {entry.tool} {entry.key}", loads(entry)
    if loaded is None:
        why = f"{undoing} failed: tool {entry.tool!r} is not loaded any more"
        return AskFirst(entry, why, "compensation_failed")
    kept = UndoSpec.model_validate(entry.undo) if entry.undo else loaded
    changed = kept.changed_to(loaded, cleanup=cleanup)
    if changed is not None and (kept.approved or kept.loses_condition(loaded, cleanup=cleanup)):
        since = "it was approved" if kept.approved else "its call"
        why = (
            f"{undoing} has changed since {since}: {changed}."
            " Settle it as undo to run what there is now, as compensated once it is undone by"
            " hand, or give it up"
        )
        return AskFirst(entry, why, UNDO_CHANGED, loaded)
    if (loaded.cleanup if cleanup else loaded.compensate) is None:
        why_not = "irreversible" if loaded.irreversible else "the tool has no compensation"
        return Stays(entry, "kept: the tool has no cleanup" if cleanup else why_not)
    # What a cancel with cleanup takes away is temporary, whoever has used it.
    in_the_way = None if cleanup else _find_users(tx, entry, undoing, gone)
    return ToUndo(entry, changed) if in_the_way is None else in_the_way


def _find_users(
    tx: Transaction, entry: Entry, undoing: str, gone: Collection[str]
) -> Asked | AskFirst | None:
    """Return what stands in the way of an undo because others have used what the effect returned.

    An effect that is being asked about is waited for. Nothing stands in the way once a human has
    agreed to the undo although these very ones have used it.
    """
    users = [one for one in run_tree.find_users(tx, entry) if one.entry_id not in gone]
    for user in users:
        asked = newest_intervention(tx, user.entry_id)
        if asked is not None and asked["state"] == "open":
            return asked_about(user, asked)
    names = [f"{one.tool} of step {one.step_id} ({one.entry_id})" for one in users]
    root = root_run_id(entry.run_id)
    for other in find_replayers(tx, entry.entry_id):
        if root_run_id(other["run_id"]) != root:
            names.append(f"step {other['step_id']} of run {other['run_id']}")
    if not names:
        return None
    more = f" and {len(names) - _MOST_USERS} more" if len(names) > _MOST_USERS else ""
    question = (
        f"{undoing} waits for a human: {', '.join(names[:_MOST_USERS])}{more} used what it returned"
        " and is not undone. Settle it as undo to undo it all the same, as compensated once it is"
        " undone by hand, or give it up"
    )
    agreed = rows_of(
        interventions, entry_id=entry.entry_id, rule=UNDO_REFUSED, outcome=_UNDO, state="settled"
    )
    if any(row["question"] == question for row in tx.all(agreed)):
        return None
    return AskFirst(entry, question, UNDO_REFUSED)


#: An effect of a tree, and what would become of it.
Judged = tuple[run_tree.Made, BeginResult]


def preview_undo(
    tx: Transaction, run_id: str, loads: Loads, refused: Mapping[str, str] = _NONE_REFUSED
) -> tuple[list[Judged], int]:
    """Return what would become of a tree's newest effects, and how many others remain.

    They are in the order of their undoing. ``refused`` says of effects why the world does not
    allow their undo.
    """
    found, gone = list[Judged](), set[str]()
    page = run_tree.list_remaining(tx, run_id, undone=True)
    for made in page.effects:
        entry = made.entry
        judged = judge_undo(tx, entry, loads, gone=gone)
        if isinstance(judged, ToUndo) and entry.entry_id in refused:
            judged = AskFirst(entry, refused[entry.entry_id], UNDO_REFUSED)
        if isinstance(judged, ToUndo):
            gone.add(entry.entry_id)
        found.append((made, judged))
    listed = sum(made.remains for made, _ in found)
    return found, 0 if page.following is None else run_tree.how_many_remain(tx, run_id) - listed


def tell_preview(run_id: str, found: Iterable[Judged], more: int) -> Unwound:
    """Return in words what would be undone, in its order, and what not, and why."""
    told = Unwound(run_id=run_id, undone=[], left=[], more_left=more)
    for made, judged in found:
        entry = made.entry
        asked: str | None = None
        step = entry.step_id if made.child is None else f"{entry.run_id}/{entry.step_id}"
        match judged:
            case ToUndo():
                told = told.with_undone(step)
                continue
            case AskFirst():
                why = judged.question
            case Asked():
                asked, why = judged.intervention_id, judged.question
            case Stays() | NothingToUndo() | GivenUp():
                why = judged.reason
            case Held():
                why = "an attempt is under way: it is waited for"
            case Doubtful():
                why = "in doubt: first it is found out whether it happened"
            case _:
                assert_never(judged)
        left = NotUndone(step_id=step, reason=f"{entry.tool}: {why}", intervention_id=asked)
        told = told.with_left(left)
    return told


def _find_attempt(tx: Transaction, entry: Entry) -> Held | None:
    """Return for how long the attempt may be alive that has claimed an entry; ``None``: none is."""
    left = lease_left(tx, entry) if entry.state == "claimed" else 0
    return Held(timedelta(milliseconds=left)) if left > 0 else None


def still_remains(tx: Transaction, original: str) -> bool:
    """Return whether the effect to undo is there to be undone, under its row's lock.

    It is not while a human is asked about it, who may be undoing it by hand, nor after one has
    decided to leave it as it is.
    """
    state = tx.value(rows_of(effects, effects.c.state, entry_id=original).with_for_update())
    return state in ("committed", "compensating") and not human_decides(tx, original)


def other_undo(tx: Transaction, original: str, tool: str) -> str | None:
    """Return the tool of an undo that may have happened, if it is not the one named."""
    begun = rows_of(effects, effects.c.tool, undoes=original)
    others = begun.where(effects.c.tool != tool, effects.c.state != "failed")
    other: str | None = tx.value(others.limit(1))
    return other


def ask_about_undo(
    tx: Transaction,
    original: Entry,
    question: str,
    rule: str = "compensation_failed",
    changed: UndoSpec | None = None,
) -> Asked | Held | None:
    """Put an undo that failed, is refused or has ``changed`` before a human.

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
            if (held := _find_attempt(tx, undo)) is not None:
                return held
            put_in_doubt(tx, undo, LEASE_OVER)
        elif undo.state != "in_doubt":
            continue
        asked = newest_intervention(tx, undo.entry_id)
        if asked is None or asked["outcome"] != "give_up":
            why = f"{question}. Was it undone before?"
            return Asked(undo, open_intervention(tx, undo, why, rule="unknown"), why)
    mark_compensating(tx, original.entry_id)
    opened = open_intervention(tx, original, question, rule=rule, undo=changed)
    return Asked(replace(original, state="compensating"), opened, question, rule)
