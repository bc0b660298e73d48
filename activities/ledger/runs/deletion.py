"""Deleting runs that ended long ago: what keeps them, what goes, and what stays of them.

A run goes with its child runs. What is open about any of them keeps them all, and is named. A row
says that a run is going, then its files go, then its rows: each part may be done again. What stays
protects its effects: the run's row with the head of its chain, and its effects by their business
keys. Its id is never free again, nor is a key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, and_, literal_column, null, or_
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core import tables
from surehand.activities.ledger.core.engine import first_line
from surehand.activities.ledger.core.statements import (
    OfRow,
    delete_rows,
    ours,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import Ledger, RunNotFound, Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    UNSETTLED_STATES,
    artifacts,
    deletions,
    effects,
    holds,
    interventions,
    replays,
    retention_rounds,
    runs,
)
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.steps.acting import EVERY_STEP, bar_name
from surehand.activities.ledger.steps.entries import NO_IDENTITY
from surehand.process.exits import WrongUse
from surehand.workflows.identity import root_run_id

#: PostgreSQL's SQLSTATE for a role that may not.
_DENIED: Final = "42501"
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Of an effect whose outcome may still change.
_UNSETTLED: Final = (*UNSETTLED_STATES, "compensating")
#: Ends of a run after which an effect that stands should have been undone.
_UNDOES: Final = ("failed", "cancelled")
#: Tables whose rows go with their run.
_OF_RUN: Final = (
    artifacts,
    tables.checkpoints,
    tables.decisions,
    tables.drafts,
    tables.events,
    interventions,
    tables.notifications,
    tables.plans,
    replays,
    tables.steerings,
    tables.steps,
)
#: What an empty value is in a column that has to have one: neither is encrypted.
_NO_JSON: Final[Any] = literal_column("'{}'")
_NO_TEXT: Final[Any] = literal_column("''")
#: Of an effect, what says what it was about. That it was made, and under which key, stays.
_OF_EFFECTS: Final = {
    "identity_hash": NO_IDENTITY,
    "params": _NO_JSON,
    "failures": _NO_JSON,
    **dict.fromkeys(("observed", "receipt", "answer", "evidence", "error", "left_because"), null()),
}
#: And of a request; a precondition is a digest of what may be guessed.
_OF_APPROVALS: Final = {
    "params": _NO_JSON,
    "description": _NO_TEXT,
    "undo": _NO_TEXT,
    **dict.fromkeys(("answers", "precondition"), null()),
}


class RunDeleted(RunNotFound):
    """A run was deleted, or is being deleted; the message says since when."""

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(run_id)
        self.args = (message,)


class CannotKeep(WrongUse):
    """What is to be kept is being deleted already, or is gone; or nobody keeps it."""


class NotPermitted(WrongUse):
    """The database's role may not delete; the message says which one may."""


class DatabaseRefuses(Exception):
    """The database refuses a change, whoever makes it; the message is its own."""


@contextmanager
def explain_refusal(ledger: Ledger) -> Iterator[None]:
    """Say in one line what the database does not let this role do, or nobody."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _DENIED:
            raise DatabaseRefuses(f"the database refuses it: {first_line(error)}") from error
        raise NotPermitted(
            f"permission denied: database role {ledger.engine.url.username!r} may not delete; name"
            " the role of the retention (surehand_retention) in SUREHAND_DATABASE_URL"
        ) from error


def record_round(tx: Transaction, *, failed: bool) -> None:
    """Record that a round has come to its end, and whether something of it has failed."""
    whole = {"whole_ms": tx.now_ms}
    if not tx.insert_new(retention_rounds, whole) and not failed:
        tx.execute(update_rows(retention_rounds).values(whole))


def read_round_age(tx: Transaction) -> timedelta | None:
    """Return how long ago a round did all that was to be done; ``None``: there was no round."""
    whole_ms = tx.value(rows_of(retention_rounds, "whole_ms"))
    return None if whole_ms is None else timedelta(milliseconds=tx.now_ms - whole_ms)


@dataclass(frozen=True)
class Deletion(OfRow):
    """A run that is going, or deleted."""

    run_id: str
    begun_ms: int
    begun_by: str
    deleted_ms: int | None

    def told(self) -> str:
        if self.deleted_ms is None:
            return f"run {self.run_id} is being deleted since {_format_time(self.begun_ms)}"
        return (
            f"run {self.run_id} was deleted by {self.begun_by} on {_format_time(self.deleted_ms)}"
        )


def _format_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def read_deletion(tx: Transaction, run_id: str) -> Deletion | None:
    """Return how far a run's deletion is; ``None``: nobody deletes it."""
    row = tx.one(rows_of(deletions, run_id=run_id))
    return None if row is None else Deletion.from_row(row)


def require_kept(tx: Transaction, run_id: str) -> None:
    """See that nobody deletes a run, or has."""
    found = read_deletion(tx, run_id)
    if found is not None:
        raise RunDeleted(run_id, found.told())


def keep_run(tx: Transaction, run_id: str) -> None:
    """See that nobody deletes a run meanwhile, or has: nothing is added to what is gone."""
    tx.share_run(run_id)
    require_kept(tx, run_id)


def is_deleted() -> ColumnElement[bool]:
    """Return the condition that a row of ``runs`` is what is left of a deleted run."""
    row = rows_of(deletions, run_id=runs.c.run_id)
    return row.where(deletions.c.deleted_ms.is_not(None)).exists()


def list_tree(tx: Transaction, root: str) -> list[str]:
    found = sorted(tx.read_column(run_tree.RUNS, **run_tree.tree_values(root)))
    if not found:
        raise RunNotFound(root)
    return found


def lock_effects(tx: Transaction, found: Collection[str]) -> None:
    """Wait for whoever is about to rest on an effect of these runs: it is seen afterwards."""
    theirs = rows_of(effects, "entry_id").where(effects.c.run_id.in_(found))
    tx.all(theirs.order_by(effects.c.entry_id).with_for_update())


@dataclass(frozen=True)
class Candidate(OfRow):
    """A run at the top of its tree whose time is over."""

    run_id: str
    closed_ms: int


def find_due(
    tx: Transaction, kept: timedelta | None, after: Candidate | None, limit: int
) -> list[Candidate]:
    """Return a page of the runs that are old enough to be deleted, the oldest first.

    ``after`` is the last run of the page before.
    """
    if kept is None:
        return []
    query = rows_of(runs, "run_id", "closed_ms", parent_run_id=None).where(
        # Of what is deleted there are ever more.
        runs.c.closed_ms <= tx.now_ms - kept // _MILLISECOND,
        ~rows_of(deletions, run_id=runs.c.run_id).exists(),
    )
    if after is not None:
        later = and_(runs.c.closed_ms == after.closed_ms, runs.c.run_id > after.run_id)
        query = query.where(or_(runs.c.closed_ms > after.closed_ms, later))
    rows = tx.all(query.order_by(runs.c.closed_ms, runs.c.run_id).limit(limit))
    return [Candidate.from_row(row) for row in rows]


def find_going(tx: Transaction) -> list[str]:
    """Return the runs at the top of their trees whose deletion was broken off."""
    return tx.read_column(
        rows_of(deletions, "run_id", deleted_ms=None)
        .join(runs, ours(runs, run_id=deletions.c.run_id))
        .where(runs.c.parent_run_id.is_(None))
        .order_by(deletions.c.run_id)
    )


def why_kept(tx: Transaction, root: str) -> str | None:
    """Return what keeps a run and its child runs, if anything does: it is named."""
    found = list_tree(tx, root)
    return why_needed(tx, found) or _why_asked(tx, found) or who_rests_on(tx, found, ~is_deleted())


def _why_asked(tx: Transaction, found: Collection[str]) -> str | None:
    of_ours = rows_of(effects, "entry_id").where(effects.c.run_id.in_(found))
    asked = tx.value(
        rows_of(interventions, "intervention_id", state=OPEN)
        .where(or_(interventions.c.run_id.in_(found), interventions.c.entry_id.in_(of_ours)))
        .limit(1)
    )
    return None if asked is None else f"intervention {asked} is open"


def why_needed(tx: Transaction, found: Collection[str]) -> str | None:
    """Return who holds one of these runs, or what of them is not finished, if anything is."""
    held = tx.one(rows_of(holds).where(holds.c.run_id.in_(found)).limit(1))
    if held is not None:
        return f"held by {held['kept_by']}: {held['reason'] or 'no reason given'}"
    opened = rows_of(runs, "run_id", closed_ms=None).where(runs.c.run_id.in_(found)).limit(1)
    if (run_id := tx.value(opened)) is not None:
        return f"run {run_id} is open: `cancel` ends it first"
    unsettled = tx.one(
        rows_of(effects, "entry_id", "state")
        .where(effects.c.run_id.in_(found), effects.c.state.in_(_UNSETTLED))
        .limit(1)
    )
    if unsettled is not None:
        state = unsettled["state"]
        return f"entry {unsettled['entry_id']} is {state}: whoever settles it needs its params"
    its_run = and_(ours(runs, run_id=effects.c.run_id), runs.c.state.in_(_UNDOES))
    stands = tx.value(
        rows_of(effects, "entry_id", undoes=None, state="committed", left_because=None)
        .where(effects.c.run_id.in_(found))
        .join(runs, its_run)
        .limit(1)
    )
    return None if stands is None else f"entry {stands} is not undone, and its run has failed"


def who_rests_on(tx: Transaction, found: Collection[str], those: ColumnElement[bool]) -> str | None:
    """Return which other run goes by what these have made, if one does."""
    stands = rows_of(effects, "entry_id").where(
        effects.c.run_id.in_(found), effects.c.state == "committed"
    )
    linked = tx.value(
        rows_of(runs, "run_id")
        .where(runs.c.linked_run_id.in_(found), those, runs.c.run_id.not_in(found))
        .limit(1)
    )
    if linked is not None:
        return f"run {linked} has taken over its outputs, and is kept"
    rests = tx.one(
        rows_of(replays, "run_id", "entry_id")
        .join(runs, ours(runs, run_id=replays.c.run_id))
        .where(replays.c.entry_id.in_(stands), replays.c.run_id.not_in(found), those)
        .limit(1)
    )
    if rests is not None:
        return f"run {rests['run_id']} rests on entry {rests['entry_id']}, and is kept"
    return None


def hold_run(tx: Transaction, run_id: str, *, by: str, reason: str) -> Sequence[str]:
    """Hold a run and its child runs: nothing of it goes."""
    found = _lock_kept(tx, run_id)
    for one in found:
        if not tx.has(rows_of(holds, run_id=one)):
            tx.insert_row(holds, run_id=one, kept_by=by, reason=reason, kept_ms=tx.now_ms)
            tx.event(one, "run.held", actor=by, because=reason or None)
    return found


def release_run(tx: Transaction, run_id: str, *, by: str) -> Sequence[str]:
    """Hold a run and its child runs no more."""
    found = _lock_kept(tx, run_id)
    if not tx.execute(delete_rows(holds).where(holds.c.run_id.in_(found))):
        raise CannotKeep(f"nobody holds run {root_run_id(run_id)}")
    for one in found:
        tx.event(one, "run.released", actor=by)
    return found


def _lock_kept(tx: Transaction, run_id: str) -> list[str]:
    """Lock the run at the top of a tree; returns the tree's runs, if it is not being deleted."""
    root = root_run_id(run_id)
    tx.lock_run(root)
    found, going = list_tree(tx, root), read_deletion(tx, root)
    # A tree is deleted whole, in one transaction.
    if going is not None:
        raise CannotKeep(going.told())
    return found


def begin_deletion(tx: Transaction, root: str, *, by: str) -> list[str] | str:
    """Let a run and its child runs go; returns them, or why the run is kept.

    From then on nothing of the run is claimed, and nobody takes it back. The chain stays as it is,
    so that a receipt of before has the head that is left.
    """
    found = list_tree(tx, root)
    for run_id in found:
        tx.lock_run(run_id)
    lock_effects(tx, found)
    before = read_deletion(tx, root)
    if before is not None:
        return found if before.deleted_ms is None else before.told()
    kept = why_kept(tx, root)
    if kept is not None:
        return kept
    for run_id in found:
        row = {"run_id": run_id, "begun_ms": tx.now_ms, "begun_by": by}
        tx.insert_row(deletions, **row)
        bar_name(tx, run_id, EVERY_STEP)
    return found


def finish_deletion(tx: Transaction, found: Sequence[str]) -> None:
    """Delete the rows of runs that are going, and say so; their files are gone."""
    for run_id in found:
        tx.lock_run(run_id)
    going = read_deletion(tx, found[0])
    if going is None or going.deleted_ms is not None:
        return  # Another round was faster.
    for table in _OF_RUN:
        tx.execute(_delete_rows_of(table, found))
    now_ms, by = tx.now_ms, going.begun_by
    emptied = {**_OF_EFFECTS, "content_deleted_ms": now_ms}
    change_rows(tx, effects, found, emptied, content_deleted_ms=None)
    change_rows(tx, tables.approvals, found, _OF_APPROVALS)
    change_rows(tx, runs, found, {"input": _NO_JSON, "error": null()})
    gone = {"wrapped": null(), "erased_ms": now_ms, "erased_by": by}
    change_rows(tx, tables.run_keys, found, gone, erased_ms=None)
    change_rows(tx, deletions, found, {"deleted_ms": now_ms}, deleted_ms=None)


def change_rows(
    tx: Transaction,
    table: Table,
    found: Collection[str],
    values: Mapping[str, Any],
    *those: ColumnElement[bool],
    **equal: Any,
) -> None:
    """Change what a table has of these runs: all rows, or only some."""
    own = update_rows(table, **equal).where(table.c.run_id.in_(found), *those)
    tx.execute(own.values(values))


def _delete_rows_of(table: Table, found: Collection[str]) -> object:
    mine: list[ColumnElement[bool]] = [table.c.run_id.in_(found)]
    if table is interventions:
        # What a human has said of an entry that is not settled still counts.
        settled = effects.c.state.in_(("committed", "failed", "compensated"))
        mine.append(rows_of(effects, entry_id=table.c.entry_id).where(settled).exists())
    return delete_rows(table).where(*mine)


def read_references(tx: Transaction) -> tuple[set[str], int]:
    """Return the digests of all artifacts that a row of the tenant refers to, and the time."""
    return set(tx.read_column(rows_of(artifacts, "sha256").distinct())), tx.now_ms
