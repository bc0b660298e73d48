"""Hiding what has been kept for long enough, and taking it back.

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
    checkpoints,
    effects,
    holds,
    interventions,
    replays,
    retentions,
    runs,
)
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.retention.policy import Policy
from surehand.process.program import command
from surehand.workflows.identity import root_run_id

#: PostgreSQL's SQLSTATE for a role that may not.
_DENIED: Final = "42501"
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Of an effect whose outcome is not settled for good.
UNSETTLED: Final = ("claimed", "in_doubt", "partial", "compensating")
#: Of a row of ``retentions``: that it is of a whole run, which is deleted.
_DELETED: Final = (retentions.c.kind == "runs") & retentions.c.deleted_ms.is_not(None)
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
def permitted(ledger: Ledger) -> Iterator[None]:
    """Say in one line what the database does not let this role do, or nobody.

    Raises:
        NotPermitted: This role may not.
        DatabaseRefuses: Nobody may.
    """
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
    """A run at the top of its tree whose time is over, for some kinds of its data."""

    run_id: str
    closed_ms: int
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Hidden:
    """What of a run is hidden, going or deleted."""

    run_id: str
    kind: str
    hidden_ms: int
    delete_after_ms: int
    going_ms: int | None
    deleted_ms: int | None
    deleted_by: str | None
    export: str | None

    def told(self) -> str:
        """Return it in one line."""
        whole, is_, was = self.kind == "runs", "is", "was"
        what = f"run {self.run_id}"
        if not whole:
            what, is_, was = f"{self.kind} of {what}", "are", "were"
        if self.deleted_ms is not None:
            return f"{what} {was} deleted by {self.deleted_by} on {day(self.deleted_ms)}"
        if self.going_ms is not None:
            return f"{what} {is_} being deleted since {day(self.going_ms)}"
        return (
            f"{what} {is_} hidden since {day(self.hidden_ms)}, and deleted after"
            f" {day(self.delete_after_ms)}: {to_keep(self.run_id)} keeps"
            f" {'it' if whole else 'them'}"
        )


def day(ms: int) -> str:
    """Return a time as people read it."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def to_keep(run_id: str) -> str:
    """Return the command that holds a run, as it stands in a sentence."""
    return f"`{command('retention', '--keep', run_id)}`"


def tree(tx: Transaction, root: str) -> list[str]:
    """Return a run and its child runs.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    found = sorted(row["run_id"] for row in tx.all(run_tree.RUNS, **run_tree.within(root)))
    if not found:
        raise RunNotFound(root)
    return found


def lock_effects(tx: Transaction, found: Collection[str]) -> None:
    """Wait for whoever is about to rest on an effect of these runs: it is seen afterwards."""
    theirs = rows_of(effects, effects.c.entry_id).where(effects.c.run_id.in_(found))
    tx.all(theirs.order_by(effects.c.entry_id).with_for_update())


def hidden(tx: Transaction, run_id: str, kind: str = "runs") -> Hidden | None:
    """Return what is hidden of a run; ``None``: it can be seen."""
    row = tx.one(rows_of(retentions, run_id=run_id, kind=kind))
    return None if row is None else _hidden(row)


def require_shown(tx: Transaction, run_id: str, kind: str = "runs") -> None:
    """See that a run, or a kind of its data, can be seen.

    Raises:
        RunHidden: It is hidden, or deleted.
    """
    found = hidden(tx, run_id) or (hidden(tx, run_id, kind) if kind != "runs" else None)
    if found is not None:
        raise RunHidden(run_id, found.told())


def due(tx: Transaction, policy: Policy, after: tuple[int, str] | None, limit: int) -> list[Any]:
    """Return a page of the runs of which something is old enough to be hidden, the oldest first.

    Args:
        policy: How long what is kept.
        after: The last run of the page before, as ``closed_ms`` and id.
        limit: Most runs that are looked at.
    """
    if not policy.kept:
        return []
    oldest = tx.now_ms - min(policy.kept.values()) // _MILLISECOND
    query = rows_of(runs, runs.c.run_id, runs.c.closed_ms, parent_run_id=None).where(
        # Of what is deleted there are ever more.
        runs.c.closed_ms <= oldest,
        ~is_deleted(),
    )
    if after is not None:
        later = and_(runs.c.closed_ms == after[0], runs.c.run_id > after[1])
        query = query.where(or_(runs.c.closed_ms > after[0], later))
    rows = tx.all(query.order_by(runs.c.closed_ms, runs.c.run_id).limit(limit))
    ids = [row["run_id"] for row in rows]
    done: dict[str, set[str]] = {run_id: set() for run_id in ids}
    for row in tx.all(
        rows_of(retentions, retentions.c.run_id, retentions.c.kind).where(
            retentions.c.run_id.in_(ids)
        )
    ):
        done[row["run_id"]].add(row["kind"])
    return [
        Candidate(row["run_id"], row["closed_ms"], _kinds(tx, policy, row, done[row["run_id"]]))
        for row in rows
    ]


def _kinds(
    tx: Transaction, policy: Policy, row: dict[str, Any], done: Collection[str]
) -> tuple[str, ...]:
    if "runs" in done:
        return ()
    old = [
        kind
        for kind, kept in policy.kept.items()
        if kind not in done and row["closed_ms"] + kept // _MILLISECOND <= tx.now_ms
    ]
    return ("runs",) if "runs" in old else tuple(old)


def is_deleted() -> ColumnElement[bool]:
    """Return the condition that a row of ``runs`` is what is left of a deleted run."""
    return rows_of(retentions, run_id=runs.c.run_id).where(_DELETED).exists()


def why_kept(tx: Transaction, root: str) -> str | None:
    """Return what keeps a run and its child runs, if anything does: it is named."""
    found = tree(tx, root)
    return why_needed(tx, found) or _asked(tx, found) or who_rests_on(tx, found, ~is_deleted())


def _asked(tx: Transaction, found: Collection[str]) -> str | None:
    of_ours = rows_of(effects, effects.c.entry_id).where(effects.c.run_id.in_(found))
    asked = tx.one(
        rows_of(interventions, interventions.c.intervention_id, state=OPEN)
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
        rows_of(runs, runs.c.run_id, closed_ms=None).where(runs.c.run_id.in_(found)).limit(1)
    )
    if opened is not None:
        return f"run {opened['run_id']} is open"
    unsettled = tx.one(
        rows_of(effects, effects.c.entry_id, effects.c.state)
        .where(effects.c.run_id.in_(found), effects.c.state.in_(UNSETTLED))
        .limit(1)
    )
    if unsettled is not None:
        return f"entry {unsettled['entry_id']} is {unsettled['state']}"
    its_run = and_(ours(runs, run_id=effects.c.run_id), runs.c.state.in_(_UNDOES))
    stands = tx.one(
        rows_of(effects, effects.c.entry_id, undoes=None, state="committed", left_because=None)
        .where(effects.c.run_id.in_(found))
        .join(runs, its_run)
        .limit(1)
    )
    if stands is not None:
        return f"entry {stands['entry_id']} is not undone, and its run has failed"
    return None


def who_rests_on(tx: Transaction, found: Collection[str], those: ColumnElement[bool]) -> str | None:
    """Return which other run goes by what these have made, if one does.

    Args:
        found: The runs of a tree.
        those: A condition on the other ones.
    """
    stands = rows_of(effects, effects.c.entry_id).where(
        effects.c.run_id.in_(found), effects.c.state == "committed"
    )
    linked = tx.one(
        rows_of(runs, runs.c.run_id)
        .where(runs.c.linked_run_id.in_(found), those, runs.c.run_id.not_in(found))
        .limit(1)
    )
    if linked is not None:
        return f"run {linked['run_id']} has taken over its outputs, and is kept"
    rests = tx.one(
        rows_of(replays, replays.c.run_id, replays.c.entry_id)
        .join(runs, ours(runs, run_id=replays.c.run_id))
        .where(replays.c.entry_id.in_(stands), replays.c.run_id.not_in(found), those)
        .limit(1)
    )
    if rests is not None:
        return f"run {rests['run_id']} rests on entry {rests['entry_id']}, and is kept"
    return None


def hide(tx: Transaction, candidate: Candidate, *, by: str, grace: timedelta) -> str | None:
    """Hide some kinds of data of a run and its child runs; returns why not, where it is kept."""
    root = candidate.run_id
    tx.lock_run(root)
    kept = why_kept(tx, root)
    if kept is not None:
        return kept
    delete_after_ms = tx.now_ms + grace // _MILLISECOND
    rows = [
        {
            "run_id": run_id,
            "kind": kind,
            "hidden_ms": tx.now_ms,
            "hidden_by": by,
            "delete_after_ms": delete_after_ms,
        }
        for run_id in tree(tx, root)
        for kind in candidate.kinds
    ]
    if tx.insert_new(retentions, *rows):
        for run_id in tree(tx, root):
            kinds = list(candidate.kinds)
            tx.event(run_id, "run.hidden", actor=by, kinds=kinds, until_ms=delete_after_ms)
    return None


def checkpoint_is_free() -> ColumnElement[bool]:
    """Return the condition that nobody holds the run of a checkpoint."""
    return ~rows_of(holds, run_id=checkpoints.c.run_id).exists()


def due_checkpoints(tx: Transaction) -> list[str]:
    """Return the runs that have saved checkpoints whose time is over, and that nobody holds."""
    found = rows_of(checkpoints, checkpoints.c.run_id, hidden_ms=None)
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


def keep(tx: Transaction, run_id: str, *, by: str, reason: str) -> Sequence[str]:
    """Hold a run and its child runs: what is hidden is shown again, and nothing of it goes.

    Raises:
        RunNotFound: No such run in this tenant.
        NotKept: Some of it is being deleted already.
    """
    root = root_run_id(run_id)
    tx.lock_run(root)
    found = tree(tx, root)
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
    """See that nothing of these runs is going, and that there is more of them than tombstones."""
    goes = retentions.c.going_ms.is_not(None) & retentions.c.deleted_ms.is_(None)
    row = tx.one(
        rows_of(retentions)
        .where(retentions.c.run_id.in_(found), goes | _DELETED)
        .order_by(retentions.c.run_id, retentions.c.kind)
        .limit(1)
    )
    if row is not None:
        raise CannotKeep(_hidden(row).told())


def release(tx: Transaction, run_id: str, *, by: str) -> Sequence[str]:
    """Hold a run and its child runs no more.

    Raises:
        RunNotFound: No such run in this tenant.
        NotKept: Nobody holds it, or it is deleted.
    """
    root = root_run_id(run_id)
    tx.lock_run(root)
    found = tree(tx, root)
    _require_whole(tx, found)
    if not tx.execute(delete_rows(holds).where(holds.c.run_id.in_(found))):
        raise CannotKeep(f"nobody holds run {root}")
    for one in found:
        tx.event(one, "run.released", actor=by)
    return found


def _hidden(row: dict[str, Any]) -> Hidden:
    return Hidden(**{name: row[name] for name in Hidden.__dataclass_fields__})
