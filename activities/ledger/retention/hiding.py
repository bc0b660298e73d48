"""How long a tenant keeps its runs; hiding those that are old, and showing them again.

A run goes with its child runs. What is open about any of them keeps them all, and is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, null, or_
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core.engine import first_line
from surehand.activities.ledger.core.statements import (
    delete_rows,
    insert_row,
    ours,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import Ledger, RunNotFound, Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    UNSETTLED_STATES,
    checkpoints,
    effects,
    holds,
    interventions,
    replays,
    retention_rounds,
    retentions,
    runs,
)
from surehand.activities.ledger.effects import run_tree
from surehand.process.program import command
from surehand.workflows.identity import root_run_id
from surehand.workflows.plan.policy import parse_duration


@dataclass(frozen=True)
class Policy:
    """How long a run is kept after its end, and then hidden before it is deleted."""

    kept: timedelta | None = None
    """``None``: it is never hidden."""
    grace: timedelta = timedelta(days=7)


def parse_kept(text: str) -> timedelta | None:
    """Return how long runs are kept by a setting such as ``365d``; empty: for ever."""
    if not text:
        return None
    kept = parse_duration(text)
    if not isinstance(kept, timedelta):
        raise ValueError(f"{text!r} is no duration such as 12h or 365d")
    return kept


@dataclass(frozen=True)
class LastRound:
    """What is known of a tenant's rounds."""

    age: timedelta | None
    """Since a round has done all that was to be done; ``None``: none has."""
    failed: bool
    """Whether the newest one has failed in part."""


def record_round(tx: Transaction, *, failed: bool) -> None:
    """Record that a round has come to its end, and whether something of it has failed."""
    ended = {"failed_ms" if failed else "whole_ms": tx.now_ms}
    if not tx.insert_new(retention_rounds, ended):
        tx.execute(update_rows(retention_rounds).values(ended))


def read_last_round(tx: Transaction) -> LastRound | None:
    """Return what is known of the tenant's rounds; ``None``: there was none."""
    row = tx.one(rows_of(retention_rounds))
    if row is None:
        return None
    whole_ms, failed_ms = row["whole_ms"], row["failed_ms"]
    return LastRound(
        age=None if whole_ms is None else timedelta(milliseconds=tx.now_ms - whole_ms),
        failed=failed_ms is not None and (whole_ms is None or failed_ms > whole_ms),
    )


#: PostgreSQL's SQLSTATE for a role that may not.
_DENIED: Final = "42501"
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Of an effect whose outcome may still change.
UNSETTLED: Final = (*UNSETTLED_STATES, "compensating")
#: Ends of a run after which an effect that stands should have been undone.
_UNDOES: Final = ("failed", "cancelled")


class RunHidden(RunNotFound):
    """A run was hidden, or deleted; the message says when, and what to do."""

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(run_id)
        self.args = (message,)


class CannotKeep(Exception):
    """What is to be kept is being deleted already, or is gone; or nobody keeps it."""


class NotPermitted(Exception):
    """The database's role may not hide and delete; the message says which one may."""


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
            f"permission denied: database role {ledger.engine.url.username!r} may not hide and"
            " delete; name the role of the retention (surehand_retention) in SUREHAND_DATABASE_URL"
        ) from error


@dataclass(frozen=True)
class Candidate:
    """A run at the top of its tree whose time is over."""

    run_id: str
    closed_ms: int


@dataclass(frozen=True)
class Hidden:
    """A run that is hidden, going or deleted."""

    run_id: str
    hidden_ms: int
    delete_after_ms: int
    going_ms: int | None
    deleted_ms: int | None
    deleted_by: str | None
    export: str | None

    def told(self) -> str:
        run = f"run {self.run_id}"
        if self.deleted_ms is not None:
            return f"{run} was deleted by {self.deleted_by} on {format_day(self.deleted_ms)}"
        if self.going_ms is not None:
            return f"{run} is being deleted since {format_day(self.going_ms)}"
        return (
            f"{run} is hidden since {format_day(self.hidden_ms)}, and deleted after"
            f" {format_day(self.delete_after_ms)}: {command_to_hold(self.run_id)} keeps it"
        )


def format_day(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def command_to_hold(run_id: str) -> str:
    """Return the command that holds a run, as it stands in a sentence."""
    return f"`{command('retention', '--keep', run_id)}`"


def list_tree(tx: Transaction, root: str) -> list[str]:
    found = sorted(row["run_id"] for row in tx.all(run_tree.RUNS, **run_tree.tree_values(root)))
    if not found:
        raise RunNotFound(root)
    return found


def lock_effects(tx: Transaction, found: Collection[str]) -> None:
    """Wait for whoever is about to rest on an effect of these runs: it is seen afterwards."""
    theirs = rows_of(effects, "entry_id").where(effects.c.run_id.in_(found))
    tx.all(theirs.order_by(effects.c.entry_id).with_for_update())


def read_hidden(tx: Transaction, run_id: str) -> Hidden | None:
    """Return what is hidden of a run; ``None``: it can be seen."""
    row = tx.one(rows_of(retentions, run_id=run_id))
    return None if row is None else _hidden_from(row)


def require_shown(tx: Transaction, run_id: str) -> None:
    """See that a run can be seen."""
    found = read_hidden(tx, run_id)
    if found is not None:
        raise RunHidden(run_id, found.told())


def find_due(
    tx: Transaction, kept: timedelta | None, after: Candidate | None, limit: int
) -> list[Candidate]:
    """Return a page of the runs that are old enough to be hidden, the oldest first.

    ``after`` is the last run of the page before.
    """
    if kept is None:
        return []
    query = rows_of(runs, "run_id", "closed_ms", parent_run_id=None).where(
        # Of what is deleted there are ever more.
        runs.c.closed_ms <= tx.now_ms - kept // _MILLISECOND,
        ~rows_of(retentions, run_id=runs.c.run_id).exists(),
    )
    if after is not None:
        later = and_(runs.c.closed_ms == after.closed_ms, runs.c.run_id > after.run_id)
        query = query.where(or_(runs.c.closed_ms > after.closed_ms, later))
    rows = tx.all(query.order_by(runs.c.closed_ms, runs.c.run_id).limit(limit))
    return [Candidate(row["run_id"], row["closed_ms"]) for row in rows]


def is_deleted() -> ColumnElement[bool]:
    """Return the condition that a row of ``runs`` is what is left of a deleted run."""
    row = rows_of(retentions, run_id=runs.c.run_id)
    return row.where(retentions.c.deleted_ms.is_not(None)).exists()


def why_kept(tx: Transaction, root: str) -> str | None:
    """Return what keeps a run and its child runs, if anything does: it is named."""
    found = list_tree(tx, root)
    return why_needed(tx, found) or _why_asked(tx, found) or who_rests_on(tx, found, ~is_deleted())


def _why_asked(tx: Transaction, found: Collection[str]) -> str | None:
    of_ours = rows_of(effects, "entry_id").where(effects.c.run_id.in_(found))
    asked = tx.one(
        rows_of(interventions, "intervention_id", state=OPEN)
        .where(or_(interventions.c.run_id.in_(found), interventions.c.entry_id.in_(of_ours)))
        .limit(1)
    )
    if asked is not None:
        return f"intervention {asked['intervention_id']} is open"
    return None


def why_needed(tx: Transaction, found: Collection[str]) -> str | None:
    """Return who holds one of these runs, or what of them is not finished, if anything is."""
    held = tx.one(rows_of(holds).where(holds.c.run_id.in_(found)).limit(1))
    if held is not None:
        return f"held by {held['kept_by']}: {held['reason'] or 'no reason given'}"
    opened = tx.one(
        rows_of(runs, "run_id", closed_ms=None).where(runs.c.run_id.in_(found)).limit(1)
    )
    if opened is not None:
        return f"run {opened['run_id']} is open"
    unsettled = tx.one(
        rows_of(effects, "entry_id", "state")
        .where(effects.c.run_id.in_(found), effects.c.state.in_(UNSETTLED))
        .limit(1)
    )
    if unsettled is not None:
        return f"entry {unsettled['entry_id']} is {unsettled['state']}"
    its_run = and_(ours(runs, run_id=effects.c.run_id), runs.c.state.in_(_UNDOES))
    stands = tx.one(
        rows_of(effects, "entry_id", undoes=None, state="committed", left_because=None)
        .where(effects.c.run_id.in_(found))
        .join(runs, its_run)
        .limit(1)
    )
    if stands is not None:
        return f"entry {stands['entry_id']} is not undone, and its run has failed"
    return None


def who_rests_on(tx: Transaction, found: Collection[str], those: ColumnElement[bool]) -> str | None:
    """Return which other run goes by what these have made, if one does."""
    stands = rows_of(effects, "entry_id").where(
        effects.c.run_id.in_(found), effects.c.state == "committed"
    )
    linked = tx.one(
        rows_of(runs, "run_id")
        .where(runs.c.linked_run_id.in_(found), those, runs.c.run_id.not_in(found))
        .limit(1)
    )
    if linked is not None:
        return f"run {linked['run_id']} has taken over its outputs, and is kept"
    rests = tx.one(
        rows_of(replays, "run_id", "entry_id")
        .join(runs, ours(runs, run_id=replays.c.run_id))
        .where(replays.c.entry_id.in_(stands), replays.c.run_id.not_in(found), those)
        .limit(1)
    )
    if rests is not None:
        return f"run {rests['run_id']} rests on entry {rests['entry_id']}, and is kept"
    return None


def hide_run(tx: Transaction, root: str, *, by: str, grace: timedelta) -> str | None:
    """Hide a run and its child runs; returns why not, where it is kept."""
    tx.lock_run(root)
    kept = why_kept(tx, root)
    if kept is not None:
        return kept
    delete_after_ms = tx.now_ms + grace // _MILLISECOND
    tree = list_tree(tx, root)
    rows = [
        {
            "run_id": run_id,
            "hidden_ms": tx.now_ms,
            "hidden_by": by,
            "delete_after_ms": delete_after_ms,
        }
        for run_id in tree
    ]
    if tx.insert_new(retentions, *rows):
        for run_id in tree:
            tx.event(run_id, "run.hidden", actor=by, until_ms=delete_after_ms)
    return None


def checkpoint_is_free() -> ColumnElement[bool]:
    """Return the condition that nobody holds the run of a checkpoint."""
    return ~rows_of(holds, run_id=checkpoints.c.run_id).exists()


def find_due_checkpoints(tx: Transaction) -> list[str]:
    """Return the runs that have saved checkpoints whose time is over, and that nobody holds."""
    found = rows_of(checkpoints, "run_id", hidden_ms=None)
    over = checkpoints.c.expires_ms <= tx.now_ms
    rows = tx.all(found.where(over, checkpoint_is_free()).distinct().order_by(checkpoints.c.run_id))
    return [row["run_id"] for row in rows]


def hide_checkpoints(tx: Transaction, run_id: str, *, grace: timedelta) -> None:
    """Hide the saved checkpoints of a run whose time is over."""
    until_ms = tx.now_ms + grace // _MILLISECOND
    tx.execute(
        update_rows(checkpoints, run_id=run_id, hidden_ms=None)
        .where(checkpoints.c.expires_ms <= tx.now_ms, checkpoint_is_free())
        .values(hidden_ms=tx.now_ms, delete_after_ms=until_ms)
    )


def _show_checkpoints(tx: Transaction, run_id: str) -> None:
    """Show a run's checkpoints again, the newest of each name."""
    which = checkpoints.c.number, checkpoints.c.name, checkpoints.c.hidden_ms
    rows = tx.all(rows_of(checkpoints, *which, run_id=run_id).order_by(checkpoints.c.number.desc()))
    taken = {row["name"] for row in rows if row["hidden_ms"] is None}
    for row in rows:
        if row["name"] not in taken:
            taken.add(row["name"])
            again = update_rows(checkpoints, run_id=run_id, number=row["number"])
            again = again.where(checkpoints.c.document.is_not(None))
            tx.execute(again.values(hidden_ms=null(), delete_after_ms=null()))


def hold_run(tx: Transaction, run_id: str, *, by: str, reason: str) -> Sequence[str]:
    """Hold a run and its child runs: what is hidden is shown again, and nothing of it goes."""
    root = root_run_id(run_id)
    tx.lock_run(root)
    found = list_tree(tx, root)
    _require_whole(tx, found)
    tx.execute(
        delete_rows(retentions).where(
            retentions.c.run_id.in_(found), retentions.c.going_ms.is_(None)
        )
    )
    for one in found:
        _show_checkpoints(tx, one)
        if tx.one(rows_of(holds, run_id=one)) is None:
            tx.execute(insert_row(holds, run_id=one, kept_by=by, reason=reason, kept_ms=tx.now_ms))
            tx.event(one, "run.held", actor=by, because=reason or None)
    return found


def _require_whole(tx: Transaction, found: Collection[str]) -> None:
    """See that none of these runs is being deleted, or is."""
    row = tx.one(
        rows_of(retentions)
        .where(retentions.c.run_id.in_(found), retentions.c.going_ms.is_not(None))
        .order_by(retentions.c.run_id)
        .limit(1)
    )
    if row is not None:
        raise CannotKeep(_hidden_from(row).told())


def release_run(tx: Transaction, run_id: str, *, by: str) -> Sequence[str]:
    """Hold a run and its child runs no more."""
    root = root_run_id(run_id)
    tx.lock_run(root)
    found = list_tree(tx, root)
    _require_whole(tx, found)
    if not tx.execute(delete_rows(holds).where(holds.c.run_id.in_(found))):
        raise CannotKeep(f"nobody holds run {root}")
    for one in found:
        tx.event(one, "run.released", actor=by)
    return found


def _hidden_from(row: dict[str, Any]) -> Hidden:
    return Hidden(**{name: row[name] for name in Hidden.__dataclass_fields__})
