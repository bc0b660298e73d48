"""Checkpoints under a name: saved by hand, and kept as long as their run.

A checkpoint can be made anew from the events at any time (``history/recordings.py``), as far as
they tell it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import Field

from surehand.activities.ledger.core.statements import OfRow, rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import checkpoints, runs
from surehand.activities.ledger.runs.deletion import keep_run
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.process.exits import NotFound

#: Checkpoints of a run.
MOST: Final = 100


class CheckpointError(NotFound):
    """There is no such checkpoint, or one too many; the message says what there is."""


@dataclass(frozen=True)
class SavedCheckpoint(OfRow):
    """A checkpoint under a name."""

    name: str
    seq: int
    """Number of the run's newest event when it was made."""
    bytes: int
    saved_by: str
    saved_at: datetime
    document: Annotated[Any, Field(exclude=True)] = None
    """Itself, or a reference to an artifact; listed without it."""


def save_checkpoint(
    tx: Transaction, run_id: str, name: str, kept: Kept, *, seq: int, size: int, saved_by: str
) -> SavedCheckpoint:
    """Keep a run's checkpoint; raises ``CheckpointError`` if the name is taken."""
    keep_run(tx, run_id)
    # One after another, or two of them could both be the last one that there is room for.
    run = rows_of(runs, runs.c.run_id, run_id=run_id)
    if not tx.has(run.with_for_update(key_share=True)):
        raise RunNotFound(run_id)
    before = list_checkpoints(tx, run_id)
    for same in (one for one in before if one.name == name):
        raise CheckpointError(
            f"run {run_id} has a checkpoint {name} already, of event {same.seq}: take another name"
        )
    if len(before) >= MOST:
        raise CheckpointError(f"run {run_id} has {MOST} checkpoints, and can have no more")
    artifact_rows.record_artifact(tx, run_id, f"checkpoint:{name}", kept)
    row = {
        "run_id": run_id,
        "name": name,
        "seq": seq,
        "document": kept.value,
        "bytes": size,
        "saved_by": saved_by,
        "saved_ms": tx.now_ms,
    }
    tx.insert_row(checkpoints, **row)
    return _read_saved(row)


def list_checkpoints(tx: Transaction, run_id: str) -> list[SavedCheckpoint]:
    """Return a run's checkpoints, the newest first; of a run that was erased none are left."""
    left = rows_of(checkpoints, run_id=run_id).where(checkpoints.c.document.is_not(None))
    newest = checkpoints.c.saved_ms.desc(), checkpoints.c.seq.desc(), checkpoints.c.name
    return [_read_saved(row) for row in tx.all(left.order_by(*newest))]


def find_checkpoint(tx: Transaction, run_id: str, name: str) -> SavedCheckpoint:
    """Return a run's checkpoint of a name; raises ``CheckpointError`` if there is none."""
    there = list_checkpoints(tx, run_id)
    for one in there:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in there) or "none"
    raise CheckpointError(f"run {run_id} has no checkpoint {name}; it has: {names}")


def _read_saved(row: dict[str, Any]) -> SavedCheckpoint:
    saved_at = datetime.fromtimestamp(row["saved_ms"] / 1000, UTC)
    return SavedCheckpoint.from_row(row, saved_at=saved_at)
