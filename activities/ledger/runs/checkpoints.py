"""Checkpoints under a name: saved by hand, the newest of each run kept for some days.

One whose time is over is hidden by a round of retention, and one that makes room at once; both are
deleted after their grace. A checkpoint can be made anew from the events at any time
(``history/recordings.py``), as far as they tell it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import ColumnElement, func, or_

from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import checkpoints, runs
from surehand.activities.ledger.retention.hiding import command_to_hold, format_day
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import Kept


class CheckpointError(ValueError):
    """There is no such checkpoint, or one too many; the message says what there is."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint under a name."""

    name: str
    seq: int
    """Number of the run's newest event when it was made."""
    bytes: int
    saved_by: str
    saved_at: datetime
    expires_at: datetime
    document: Annotated[Any, Field(exclude=True)] = None
    """Itself, or a reference to an artifact; listed without it."""


def save_checkpoint(
    tx: Transaction,
    run_id: str,
    name: str,
    kept: Kept,
    *,
    seq: int,
    size: int,
    saved_by: str,
    ttl: timedelta,
    most: int,
    grace: timedelta,
) -> tuple[SavedCheckpoint, list[str]]:
    """Keep a run's checkpoint; returns it, and the names of older ones that made room.

    At most ``most`` of the run are shown, with this one. Those that make room may be taken back for
    ``grace``. Raises ``CheckpointError`` if the name is taken.
    """
    # One after another, or two of them could both be the last one that there is room for.
    run = rows_of(runs, runs.c.run_id, run_id=run_id)
    if tx.one(run.with_for_update(key_share=True)) is None:
        raise RunNotFound(run_id)
    before = list_checkpoints(tx, run_id, checkpoints.c.expires_ms > tx.now_ms)
    for same in (one for one in before if one.name == name):
        raise CheckpointError(
            f"run {run_id} has a checkpoint {name} already, of event {same.seq}, kept until"
            f" {same.expires_at:%Y-%m-%d %H:%M} UTC: take another name"
        )
    surplus = [one.name for one in before[most - 1 :]]
    until_ms = tx.now_ms + grace // timedelta(milliseconds=1)
    tx.execute(
        update_rows(checkpoints, run_id=run_id, hidden_ms=None)
        .where(or_(checkpoints.c.name.in_(surplus), checkpoints.c.expires_ms <= tx.now_ms))
        .values(hidden_ms=tx.now_ms, delete_after_ms=until_ms)
    )
    artifact_rows.record_artifact(tx, run_id, f"checkpoint:{name}", kept)
    newest = func.coalesce(func.max(checkpoints.c.number), 0)
    row = {
        "run_id": run_id,
        "number": 1 + tx.count(rows_of(checkpoints, newest, run_id=run_id)),
        "name": name,
        "seq": seq,
        "document": kept.value,
        "bytes": size,
        "saved_by": saved_by,
        "saved_ms": tx.now_ms,
        "expires_ms": tx.now_ms + round(ttl / timedelta(milliseconds=1)),
    }
    tx.execute(insert_row(checkpoints, **row))
    return _read_saved(row), surplus


def list_checkpoints(
    tx: Transaction, run_id: str, *which: ColumnElement[bool]
) -> list[SavedCheckpoint]:
    """Return a run's checkpoints that are not hidden, the newest first."""
    shown = rows_of(checkpoints, run_id=run_id, hidden_ms=None).where(*which)
    return [_read_saved(row) for row in tx.all(shown.order_by(checkpoints.c.number.desc()))]


def find_checkpoint(tx: Transaction, run_id: str, name: str) -> SavedCheckpoint:
    """Return a run's checkpoint of a name; raises ``CheckpointError`` if none is shown."""
    there = list_checkpoints(tx, run_id)
    for one in there:
        if one.name == name:
            return one
    newest = checkpoints.c.number.desc()
    gone = tx.one(rows_of(checkpoints, run_id=run_id, name=name).order_by(newest).limit(1))
    if gone is not None:
        raise CheckpointError(
            f"checkpoint {name} of run {run_id} is hidden since {format_day(gone['hidden_ms'])},"
            f" and deleted after {format_day(gone['delete_after_ms'])}:"
            f" {command_to_hold(run_id)} shows it again"
        )
    names = ", ".join(one.name for one in there) or "none"
    raise CheckpointError(f"run {run_id} has no checkpoint {name}; it has: {names}")


def _read_saved(row: dict[str, Any]) -> SavedCheckpoint:
    names = ("name", "seq", "bytes", "saved_by", "document")
    return SavedCheckpoint(
        **{name: row[name] for name in names},
        saved_at=datetime.fromtimestamp(row["saved_ms"] / 1000, UTC),
        expires_at=datetime.fromtimestamp(row["expires_ms"] / 1000, UTC),
    )
