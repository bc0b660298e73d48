"""Drafts: what calls write of artifacts, part by part, until they are whole.

One row for each, and one draft of a step under way. Who may write, its call's own row says: the
callers look at that in the same transaction. Rows stay; what they keep is removed when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, null, or_

from surehand.activities.ledger.core.statements import insert_row, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import drafts, runs


@dataclass(frozen=True)
class DraftPart:
    """A part of a draft in the artifact store."""

    name: str
    """In the folder of its draft."""
    sha256: str
    size: int
    """In bytes."""


@dataclass(frozen=True)
class WrittenDraft:
    """What stands of a draft."""

    run_id: str
    step_id: str
    number: int
    size: int = 0
    """In bytes."""
    parts: tuple[DraftPart, ...] = ()
    tail: bytes = b""
    """What comes after the parts."""


def standing(tx: Transaction, run_id: str, step_id: str, params_hash: str) -> WrittenDraft | None:
    """Return what a call goes on with, if earlier attempts of it have written something."""
    under_way = {"run_id": run_id, "step_id": step_id, "ended_ms": None}
    row = tx.one(rows_of(drafts, **under_way, params_hash=params_hash))
    return None if row is None else _written(row)


def begin(tx: Transaction, run_id: str, step_id: str, params_hash: str) -> WrittenDraft:
    """Begin a draft anew; what stood of the step's earlier one stands no more."""
    step = {"run_id": run_id, "step_id": step_id}
    _end(tx, **step)
    last = tx.one(rows_of(drafts, func.max(drafts.c.number).label("number"), **step))
    number = 1 + ((last or {}).get("number") or 0)
    values = {"params_hash": params_hash, "bytes": 0, "parts": [], "tail": b""}
    tx.execute(insert_row(drafts, **step, number=number, **values, begun_ms=tx.now_ms))
    return WrittenDraft(run_id, step_id, number)


def write(tx: Transaction, before: WrittenDraft, after: WrittenDraft) -> bool:
    """Record what stands now; ``False``: somebody else has begun anew, or ended it.

    The same again changes nothing: the answer to the first may have been lost.
    """
    row = _key(before) | {"ended_ms": None}
    values = {
        "bytes": after.size,
        "parts": [vars(part) for part in after.parts],
        "tail": after.tail,
    }
    if tx.execute(update_rows(drafts, **row, bytes=before.size).values(values)) == 1:
        return True
    found = tx.one(rows_of(drafts, **row))
    return found is not None and _written(found) == after


def end(tx: Transaction, draft: WrittenDraft) -> None:
    """Record that nothing more is written: its call has its outcome."""
    _end(tx, **_key(draft))


def is_over(tx: Transaction, draft: WrittenDraft) -> bool:
    """Return whether nobody needs the content of a draft any more."""
    row = tx.one(rows_of(drafts, drafts.c.ended_ms, **_key(draft)))
    return row is not None and row["ended_ms"] is not None


def over(tx: Transaction, run_id: str | None = None) -> list[WrittenDraft]:
    """Return the drafts whose content nobody needs any more, and let nobody write to them.

    Those are the ones that were ended, and all of a run that is closed.

    Args:
        run_id: Only of this run.
    """
    its_run = (runs.c.run_id == drafts.c.run_id, runs.c.closed_ms.is_not(None))
    closed = rows_of(runs, runs.c.run_id).where(*its_run).exists()
    of_run = {} if run_id is None else {"run_id": run_id}
    rows = tx.all(
        rows_of(drafts, removed_ms=None, **of_run).where(
            or_(drafts.c.ended_ms.is_not(None), closed)
        )
    )
    found = [_written(row) for row in rows]
    for draft in found:
        end(tx, draft)
    return found


def removed(tx: Transaction, draft: WrittenDraft) -> None:
    """Record that the content of a draft is gone."""
    tx.execute(
        update_rows(drafts, **_key(draft)).values(tail=null(), parts=[], removed_ms=tx.now_ms)
    )


def _end(tx: Transaction, **which: Any) -> None:
    tx.execute(update_rows(drafts, **which, ended_ms=None).values(ended_ms=tx.now_ms))


def _key(draft: WrittenDraft) -> dict[str, Any]:
    return {"run_id": draft.run_id, "step_id": draft.step_id, "number": draft.number}


def _written(row: dict[str, Any]) -> WrittenDraft:
    parts = tuple(DraftPart(**part) for part in row["parts"])
    return WrittenDraft(
        *(row["run_id"], row["step_id"], row["number"], row["bytes"]),
        parts=parts,
        tail=bytes(row["tail"] or b""),
    )
