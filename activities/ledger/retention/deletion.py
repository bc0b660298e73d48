"""Deleting what was hidden for as long as its grace.

In parts, each of which may be done again: it is exported, then a row says that it is going, then
files go, then the rows. Only of a whole run its events are exported last: that it goes is one. What
stays of a run protects its effects: the run's row with the head of its chain, and its effects by
their business keys. Its id is never free again, nor is a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, literal_column, null

from surehand.activities.ledger.core.statements import delete_rows, ours, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    artifacts,
    checkpoints,
    decisions,
    drafts,
    effects,
    events,
    interventions,
    notifications,
    plans,
    replays,
    retentions,
    run_keys,
    runs,
    steerings,
    steps,
)
from surehand.activities.ledger.retention.content import (
    CHECKPOINTS,
    Exported,
    content_of,
    goes_alone,
    of_checkpoint,
)
from surehand.activities.ledger.retention.hiding import (
    checkpoint_is_free,
    hidden,
    lock_effects,
    tree,
    why_kept,
)
from surehand.activities.ledger.steps.acting import EVERY_STEP, bar_name
from surehand.activities.ledger.steps.entries import NO_IDENTITY

#: By kind: the tables whose rows go with it.
_ROWS: Final[Mapping[str, tuple[Table, ...]]] = {
    "runs": (
        artifacts,
        checkpoints,
        decisions,
        drafts,
        interventions,
        notifications,
        plans,
        replays,
        steerings,
        steps,
        events,
    ),
    "steps": (steps, drafts),
    "outputs": (),
    "artifacts": (artifacts,),
    "messages": (notifications,),
}
_NONE: Final = timedelta(0)
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


class Moved(Exception):
    """A run has changed since it was exported: it is exported once more."""


@dataclass(frozen=True)
class Going:
    """A kind of data of a run and its child runs, on its way out."""

    root: str
    kind: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Deleted:
    """How many rows have gone, and how many effects stay by their business keys."""

    rows: int
    effects_kept: int


def over(tx: Transaction) -> list[tuple[str, str]]:
    """Return the runs, by the one at the top, of which a kind goes now: its grace is over."""
    rows = tx.all(
        rows_of(retentions, retentions.c.run_id, retentions.c.kind, deleted_ms=None)
        .join(runs, ours(runs, run_id=retentions.c.run_id))
        .where(retentions.c.delete_after_ms <= tx.now_ms, runs.c.parent_run_id.is_(None))
        .order_by(retentions.c.delete_after_ms, retentions.c.run_id, retentions.c.kind)
    )
    return [(row["run_id"], row["kind"]) for row in rows]


def why_stays(tx: Transaction, root: str, kind: str) -> str | None:
    """Return why a kind of data of a run does not go now; ``None``: it goes, or is going."""
    found = hidden(tx, root, kind)
    if found is None:
        return f"{kind} of run {root} are shown again"
    if found.deleted_ms is not None:
        return found.told()
    return why_kept(tx, root) if found.going_ms is None else None


def go(tx: Transaction, root: str, kind: str, *, by: str) -> Going | str:
    """Let a kind of data of a run and its child runs go; returns why not, where it is kept.

    From then on nothing of the run is claimed, and nobody takes it back.
    """
    found = tree(tx, root)
    for run_id in found:
        tx.lock_run(run_id)
    lock_effects(tx, found)
    kept = why_stays(tx, root, kind)
    if kept is not None:
        return kept
    of_kind = retentions.c.run_id.in_(found), retentions.c.kind == kind
    going = update_rows(retentions, going_ms=None, deleted_ms=None).where(*of_kind)
    if tx.execute(going.values(going_ms=tx.now_ms)):
        for run_id in found:
            if kind == "runs":
                bar_name(tx, run_id, EVERY_STEP)
            tx.event(run_id, "run.deleted", actor=by, kinds=[kind])
    return Going(root, kind, tuple(found))


def delete(tx: Transaction, going: Going, *, by: str, exports: Mapping[str, Exported]) -> Deleted:
    """Delete the rows of what is going, and say so; its files are gone.

    Args:
        exports: What was exported of each run; empty: nothing was.

    Raises:
        Moved: An export does not have all of it.
    """
    for run_id in going.runs:
        tx.lock_run(run_id)
    require_same(tx, going.kind, exports)
    rows = sum(tx.execute(_rows(table, going)) for table in _ROWS[going.kind])
    kept = 0
    if going.kind in ("runs", "outputs"):
        kept = tx.execute(
            update_rows(effects, content_deleted_ms=None)
            .where(effects.c.run_id.in_(going.runs))
            .values(**_OF_EFFECTS, content_deleted_ms=tx.now_ms)
        )
    if going.kind == "outputs":
        mine = steps.c.run_id.in_(going.runs)
        tx.execute(update_rows(steps).where(mine).values(output=null()))
    if going.kind == "runs":
        _leave_tombstones(tx, going, by)
    for run_id in going.runs:
        row = update_rows(retentions, run_id=run_id, kind=going.kind, deleted_ms=None)
        files = ", ".join(exports[run_id].files) if run_id in exports else ""
        tx.execute(row.values(deleted_ms=tx.now_ms, deleted_by=by, export=files or None))
    return Deleted(rows, kept)


def require_same(
    tx: Transaction, kind: str, exports: Mapping[str, Exported], grace: timedelta = _NONE
) -> None:
    """See that what goes is what was exported.

    Args:
        kind: Which kind of data goes.
        exports: What was exported of each run.
        grace: For how long checkpoints are hidden at least.

    Raises:
        Moved: An export does not have all of it.
    """
    for run_id, exported in sorted(exports.items()):
        head = exported.head
        if head is not None and tx.lock_chain(run_id) != head:
            raise Moved(f"the chain of run {run_id} has grown since event {head.seq}")
        if content_of(tx, run_id, kind, grace).digest != exported.digest:
            raise Moved(f"{kind} of run {run_id} have changed since they were exported")


def _rows(table: Table, going: Going) -> object:
    mine: list[ColumnElement[bool]] = [table.c.run_id.in_(going.runs)]
    if going.kind == "artifacts":
        mine.append(~of_checkpoint(artifacts))
    if table is interventions:
        # What a human has said of an entry that is not settled still counts.
        settled = effects.c.state.in_(("committed", "failed", "compensated"))
        mine.append(rows_of(effects, entry_id=table.c.entry_id).where(settled).exists())
    return delete_rows(table).where(*mine)


def _leave_tombstones(tx: Transaction, going: Going, by: str) -> None:
    mine = going.runs
    tx.execute(
        update_rows(approvals)
        .where(approvals.c.run_id.in_(mine))
        .values(
            params=_NO_JSON,
            answers=null(),
            description=_NO_TEXT,
            undo=_NO_TEXT,
            precondition=null(),  # a digest of what may be guessed
        )
    )
    tx.execute(
        update_rows(runs).where(runs.c.run_id.in_(mine)).values(input=_NO_JSON, error=null())
    )
    tx.execute(
        update_rows(run_keys, erased_ms=None)
        .where(run_keys.c.run_id.in_(mine))
        .values(wrapped=null(), erased_ms=tx.now_ms, erased_by=by)
    )
    # What was hidden of it alone has gone with it.
    tx.execute(
        delete_rows(retentions).where(
            retentions.c.run_id.in_(mine), retentions.c.going_ms.is_(None)
        )
    )


def over_checkpoints(tx: Transaction, grace: timedelta) -> list[str]:
    """Return the runs that have checkpoints whose grace is over, and that nobody holds."""
    rows = tx.all(
        rows_of(checkpoints, checkpoints.c.run_id)
        .where(goes_alone(tx, checkpoints, grace), checkpoint_is_free())
        .distinct()
        .order_by(checkpoints.c.run_id)
    )
    return [row["run_id"] for row in rows]


def delete_checkpoints(
    tx: Transaction, run_id: str, exported: Exported | None, grace: timedelta
) -> int:
    """Delete a run's checkpoints whose grace is over, and what they referred to.

    Returns:
        The number of rows.

    Raises:
        Moved: The export does not have all of them.
    """
    if exported is not None:
        require_same(tx, CHECKPOINTS, {run_id: exported}, grace)
    return sum(
        tx.execute(delete_rows(table, run_id=run_id).where(goes_alone(tx, table, grace)))
        for table in (checkpoints, artifacts)
    )


def referred_to(tx: Transaction) -> set[str]:
    """Return the digests of all artifacts that a row of the tenant refers to."""
    return {row["sha256"] for row in tx.all(rows_of(artifacts, artifacts.c.sha256).distinct())}
