"""Exporting what goes of a run, and deleting what was hidden for as long as its grace.

In parts, each of which may be done again: a row says that a run is going, then it is exported, then
its files go, then its rows. It is exported after that, because that it goes is one of its events.
What stays of a run protects its effects: the run's row with the head of its chain, and its effects
by their business keys. Its id is never free again, nor is a key.

An export has rows as they are stored. What is sealed stays sealed: exports are read with the run's
key, and an erased run's by nobody.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, literal_column, null

from surehand.activities.ledger.core import tables
from surehand.activities.ledger.core.sealed import as_stored
from surehand.activities.ledger.core.statements import delete_rows, ours, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import artifacts, runs
from surehand.activities.ledger.retention import hiding
from surehand.activities.ledger.steps.acting import EVERY_STEP, bar_name
from surehand.activities.ledger.steps.entries import NO_IDENTITY
from surehand.workflows.contracts.base import ChainHead

#: What an export may have: a whole run, or saved checkpoints, each of which has its own time.
RUNS: Final = "runs"
CHECKPOINTS: Final = "checkpoints"
#: Tables whose rows go with their run.
_OF_RUN: Final = (
    artifacts,
    tables.checkpoints,
    tables.decisions,
    tables.interventions,
    tables.notifications,
    tables.plans,
    tables.replays,
    tables.steerings,
    tables.steps,
)
#: By kind: the tables of whose rows something goes. Events are exported as a chain; a draft is
#: nothing yet, and workers drop it by themselves.
_EXPORTED: Final[Mapping[str, tuple[Table, ...]]] = {
    RUNS: (runs, tables.effects, tables.approvals, *_OF_RUN),
    CHECKPOINTS: (tables.checkpoints, artifacts),
}
_STORED: Final = {table.name: as_stored(table) for table in _EXPORTED[RUNS]}
#: What the step of a checkpoint's artifact begins with, before the checkpoint's name.
_STEP: Final[ColumnElement[str]] = literal_column("'checkpoint:'")
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Content:
    """Rows of a run that go, as lines of JSON."""

    run_id: str
    kind: str
    lines: tuple[bytes, ...]
    artifacts: tuple[str, ...]
    """Digests of artifacts whose content is in the store."""
    chain: tuple[dict[str, Any], ...] = ()
    """The run's events, where they go, too: ``chain_of`` has them."""
    head: ChainHead | None = None
    """Where they end; ``None``: they stay."""

    @property
    def digest(self) -> str:
        """What tells whether a row has changed since."""
        found = hashlib.sha256()
        for line in self.lines:
            found.update(line)
        return f"sha256:{found.hexdigest()}"


@dataclass(frozen=True)
class Exported:
    """What was exported of a run before it goes."""

    files: tuple[str, ...]
    digest: str
    """Of the rows, as ``Content`` has it."""
    head: ChainHead | None = None
    """Where the chain ended, as ``Content`` has it."""


def content_of(tx: Transaction, run_id: str, kind: str, grace: timedelta = timedelta(0)) -> Content:
    """Return the rows of a run of which something goes; events are not among them.

    Checkpoints are hidden for ``grace`` at least before they go.
    """
    lines, files = list[bytes](), dict[str, None]()
    for table in _EXPORTED[kind]:
        stored = _STORED[table.name]
        query = rows_of(stored, run_id=run_id).order_by(*stored.primary_key)
        if kind == CHECKPOINTS:
            query = query.where(goes_alone(tx, stored, grace))
        for row in tx.all(query):
            # By the tenant's key, params of a run that was erased could be guessed from it.
            row.pop("identity_hash", None)
            line = json.dumps({"row": row, "table": table.name}, sort_keys=True, default=_as_json)
            lines.append(line.encode() + b"\n")
            if table is artifacts and row["content"] is None:
                files[row["sha256"]] = None
    return Content(run_id, kind, tuple(lines), tuple(files))


def goes_alone(tx: Transaction, table: Table, grace: timedelta) -> ColumnElement[bool]:
    """Return the condition that a row goes before its run: a checkpoint, or an artifact of it.

    Workers hide checkpoints, too, and say when they go: not before ``grace``, whatever they say.
    """
    longest_ms = tx.now_ms - grace // _MILLISECOND
    if table.name == tables.checkpoints.name:
        return (table.c.delete_after_ms <= tx.now_ms) & (table.c.hidden_ms <= longest_ms)
    named = rows_of(tables.checkpoints, literal_column("1"), run_id=table.c.run_id).where(
        table.c.step_id == _STEP + tables.checkpoints.c.name
    )
    hidden = tables.checkpoints.c.hidden_ms.is_not(None)
    stays = ~hidden | ~goes_alone(tx, tables.checkpoints, grace)
    return table.c.step_id.startswith(_STEP) & ~named.where(stays).exists()


def _as_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"no JSON: {type(value)}")


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
    """A run and its child runs, on their way out."""

    root: str
    runs: tuple[str, ...]


def find_over(tx: Transaction) -> list[str]:
    """Return the runs at the top of their trees that go now: their grace is over."""
    rows = tx.all(
        rows_of(tables.retentions, "run_id", deleted_ms=None)
        .join(runs, ours(runs, run_id=tables.retentions.c.run_id))
        .where(tables.retentions.c.delete_after_ms <= tx.now_ms, runs.c.parent_run_id.is_(None))
        .order_by(tables.retentions.c.delete_after_ms, tables.retentions.c.run_id)
    )
    return [row["run_id"] for row in rows]


def why_stays(tx: Transaction, root: str) -> str | None:
    """Return why a run does not go now; ``None``: it goes, or is going."""
    found = hiding.read_hidden(tx, root)
    if found is None:
        return f"run {root} is shown again"
    if found.deleted_ms is not None:
        return found.told()
    return hiding.why_kept(tx, root) if found.going_ms is None else None


def let_go(tx: Transaction, root: str, *, by: str) -> Going | str:
    """Let a run and its child runs go; returns why not, where it is kept.

    From then on nothing of the run is claimed, and nobody takes it back.
    """
    found = hiding.list_tree(tx, root)
    for run_id in found:
        tx.lock_run(run_id)
    hiding.lock_effects(tx, found)
    kept = why_stays(tx, root)
    if kept is not None:
        return kept
    going = update_rows(tables.retentions, going_ms=None, deleted_ms=None)
    going = going.where(tables.retentions.c.run_id.in_(found))
    if tx.execute(going.values(going_ms=tx.now_ms)):
        for run_id in found:
            bar_name(tx, run_id, EVERY_STEP)
            tx.event(run_id, "run.deleted", actor=by)
    return Going(root, tuple(found))


def delete_going(
    tx: Transaction, going: Going, *, by: str, exports: Mapping[str, Exported]
) -> None:
    """Delete the rows of what is going, and say so; its files are gone.

    Without ``exports`` nothing was exported.
    """
    for run_id in going.runs:
        tx.lock_run(run_id)
    require_same(tx, RUNS, exports)
    for table in (*_OF_RUN, tables.drafts, tables.events):
        tx.execute(_delete_rows_of(table, going))
    tx.execute(
        update_rows(tables.effects, content_deleted_ms=None)
        .where(tables.effects.c.run_id.in_(going.runs))
        .values(**_OF_EFFECTS, content_deleted_ms=tx.now_ms)
    )
    _leave_tombstones(tx, going, by)
    for run_id in going.runs:
        row = update_rows(tables.retentions, run_id=run_id, deleted_ms=None)
        files = ", ".join(exports[run_id].files) if run_id in exports else ""
        tx.execute(row.values(deleted_ms=tx.now_ms, deleted_by=by, export=files or None))


def require_same(
    tx: Transaction, kind: str, exports: Mapping[str, Exported], grace: timedelta = timedelta(0)
) -> None:
    """See that what goes is what was exported."""
    for run_id, exported in sorted(exports.items()):
        head = exported.head
        if head is not None and tx.lock_chain(run_id) != head:
            raise Moved(f"the chain of run {run_id} has grown since event {head.seq}")
        if content_of(tx, run_id, kind, grace).digest != exported.digest:
            raise Moved(f"rows of run {run_id} have changed since they were exported")


def _delete_rows_of(table: Table, going: Going) -> object:
    mine: list[ColumnElement[bool]] = [table.c.run_id.in_(going.runs)]
    if table is tables.interventions:
        # What a human has said of an entry that is not settled still counts.
        settled = tables.effects.c.state.in_(("committed", "failed", "compensated"))
        mine.append(rows_of(tables.effects, entry_id=table.c.entry_id).where(settled).exists())
    return delete_rows(table).where(*mine)


def _leave_tombstones(tx: Transaction, going: Going, by: str) -> None:
    mine = going.runs
    tx.execute(
        update_rows(tables.approvals)
        .where(tables.approvals.c.run_id.in_(mine))
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
        update_rows(tables.run_keys, erased_ms=None)
        .where(tables.run_keys.c.run_id.in_(mine))
        .values(wrapped=null(), erased_ms=tx.now_ms, erased_by=by)
    )


def find_checkpoints_over(tx: Transaction, grace: timedelta) -> list[str]:
    """Return the runs that have checkpoints whose grace is over, and that nobody holds."""
    rows = tx.all(
        rows_of(tables.checkpoints, "run_id")
        .where(goes_alone(tx, tables.checkpoints, grace), hiding.checkpoint_is_free())
        .distinct()
        .order_by(tables.checkpoints.c.run_id)
    )
    return [row["run_id"] for row in rows]


def delete_checkpoints(
    tx: Transaction, run_id: str, exported: Exported | None, grace: timedelta
) -> int:
    """Delete a run's checkpoints whose grace is over, and what they referred to."""
    if exported is not None:
        require_same(tx, CHECKPOINTS, {run_id: exported}, grace)
    return sum(
        tx.execute(delete_rows(table, run_id=run_id).where(goes_alone(tx, table, grace)))
        for table in (tables.checkpoints, artifacts)
    )


def read_references(tx: Transaction) -> tuple[set[str], int]:
    """Return the digests of all artifacts that a row of the tenant refers to, and the time."""
    rows = tx.all(rows_of(artifacts, "sha256").distinct())
    return {row["sha256"] for row in rows}, tx.now_ms
