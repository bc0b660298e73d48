"""Rows of the artifact store: what a run has kept there, and drafts that calls write part by part.

One row for each draft, and one draft of a step under way. Who may write, its call's own row says:
the callers look at that in the same transaction. Rows stay; what they keep is removed when it is
over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, null, or_

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import artifacts, drafts, runs
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import Artifact
from surehand.workflows.identity import root_run_id


@dataclass(frozen=True)
class Kept:
    """A value as rows and history carry it."""

    value: Any
    """Itself, or a reference to ``artifact``."""
    artifact: Artifact | None = None
    content: bytes | None = None
    """The artifact's content, where the ledger has to keep it."""

    @property
    def digest(self) -> str:
        """The digest of the whole value, wherever it is kept."""
        return digest(self.value) if self.artifact is None else f"sha256:{self.artifact.sha256}"


def record_artifact(tx: Transaction, run_id: str, step_id: str, kept: Kept) -> None:
    """Record that a step refers to an artifact; the same one twice is one row."""
    artifact = kept.artifact
    if artifact is None:
        return
    name = digest([run_id, step_id, artifact.sha256]).removeprefix("sha256:")
    row = {
        "artifact_id": f"ar-{name[:16]}",
        "run_id": run_id,
        "step_id": step_id,
        "type": artifact.type,
        "uri": artifact.uri,
        "sha256": artifact.sha256,
        "bytes": artifact.bytes,
        "sealed_for": artifact.sealed_for,
        "content": kept.content,
        "created_ms": tx.now_ms,
    }
    if not tx.insert_new(artifacts, row) and kept.content is not None:
        # The store had it then and does not take it now: there may be no other copy.
        without = update_rows(artifacts, artifact_id=row["artifact_id"], content=None)
        tx.execute(without.values(content=kept.content))


def may_read_artifact(tx: Transaction, run_id: str, sha256: str) -> bool:
    """Return whether a run may read what another one has kept.

    So it is for the receipt of an effect that stood already, and for what a run has kept that this
    one was forked from.
    """
    roots, left = set[str](), [run_id]
    while left:
        root = root_run_id(left.pop())
        if root in roots:
            continue
        roots.add(root)
        opened = tx.opening(root)
        left += [source] if opened and (source := opened.body.get("linked")) else []
    refer = tx.read_column(rows_of(artifacts, artifacts.c.run_id, sha256=sha256))
    return not roots.isdisjoint(map(root_run_id, refer))


def store_of(tx: Transaction, run_id: str) -> str | None:
    """Return which artifact store the worker had that has opened a run, if that is recorded."""
    opened = tx.opening(run_id)
    return None if opened is None else opened.body.get("store")


def artifact_content(tx: Transaction, sha256: str) -> bytes | None:
    """Return what the ledger itself keeps under a digest."""
    known = rows_of(artifacts, artifacts.c.content, sha256=sha256)
    content = tx.value(known.where(artifacts.c.content.is_not(None)).limit(1))
    return None if content is None else bytes(content)


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

    @property
    def key(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "step_id": self.step_id, "number": self.number}


def find_draft(tx: Transaction, run_id: str, step_id: str, params_hash: str) -> WrittenDraft | None:
    """Return what a call goes on with, if earlier attempts of it have written something."""
    under_way = {"run_id": run_id, "step_id": step_id, "ended_ms": None}
    row = tx.one(rows_of(drafts, **under_way, params_hash=params_hash))
    return None if row is None else _read_draft(row)


def begin_draft(tx: Transaction, run_id: str, step_id: str, params_hash: str) -> WrittenDraft:
    """Begin a draft anew; what stood of the step's earlier one stands no more."""
    step = {"run_id": run_id, "step_id": step_id}
    _end_drafts(tx, **step)
    number = 1 + tx.count(rows_of(drafts, func.coalesce(func.max(drafts.c.number), 0), **step))
    values = {"params_hash": params_hash, "bytes": 0, "parts": [], "tail": b""}
    tx.insert_row(drafts, **step, number=number, **values, begun_ms=tx.now_ms)
    return WrittenDraft(run_id, step_id, number)


def write_draft(tx: Transaction, before: WrittenDraft, after: WrittenDraft) -> bool:
    """Record what stands now; ``False``: somebody else has begun anew, or ended it.

    The same again changes nothing: the answer to the first may have been lost.
    """
    row = before.key | {"ended_ms": None}
    parts = [vars(part) for part in after.parts]
    values = {"bytes": after.size, "parts": parts, "tail": after.tail}
    if tx.execute(update_rows(drafts, **row, bytes=before.size).values(values)) == 1:
        return True
    found = tx.one(rows_of(drafts, **row))
    return found is not None and _read_draft(found) == after


def end_draft(tx: Transaction, draft: WrittenDraft) -> None:
    """Record that nothing more is written: its call has its outcome."""
    _end_drafts(tx, **draft.key)


def is_draft_over(tx: Transaction, draft: WrittenDraft) -> bool:
    """Return whether nobody needs the content of a draft any more."""
    return tx.value(rows_of(drafts, drafts.c.ended_ms, **draft.key)) is not None


def end_unneeded_drafts(tx: Transaction, run_id: str | None = None) -> list[WrittenDraft]:
    """Return the drafts, all or a run's, whose content nobody needs any more, and end them.

    Those are the ones that were ended, and all of a run that is closed.
    """
    its_run = rows_of(runs, runs.c.run_id, run_id=drafts.c.run_id)
    closed = its_run.where(runs.c.closed_ms.is_not(None)).exists()
    of_run = {} if run_id is None else {"run_id": run_id}
    unneeded = rows_of(drafts, removed_ms=None, **of_run)
    rows = tx.all(unneeded.where(or_(drafts.c.ended_ms.is_not(None), closed)))
    found = [_read_draft(row) for row in rows]
    for draft in found:
        end_draft(tx, draft)
    return found


def note_removed_draft(tx: Transaction, draft: WrittenDraft) -> None:
    """Record that the content of a draft is gone."""
    tx.execute(update_rows(drafts, **draft.key).values(tail=null(), parts=[], removed_ms=tx.now_ms))


def _end_drafts(tx: Transaction, **which: Any) -> None:
    tx.execute(update_rows(drafts, **which, ended_ms=None).values(ended_ms=tx.now_ms))


def _read_draft(row: dict[str, Any]) -> WrittenDraft:
    parts, tail = tuple(DraftPart(**part) for part in row["parts"]), bytes(row["tail"] or b"")
    which = (row["run_id"], row["step_id"], row["number"])
    return WrittenDraft(*which, row["bytes"], parts, tail)
