"""Rows of the artifact store: what a run has kept there, and what the store would not take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import artifacts
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


def record(tx: Transaction, run_id: str, step_id: str, kept: Kept) -> None:
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
    if tx.insert_new(artifacts, row) or kept.content is None:
        return
    # The store had it then and does not take it now: there may be no other copy.
    tx.execute(
        update_rows(artifacts, artifact_id=row["artifact_id"], content=None).values(
            content=kept.content
        )
    )


def was_given(tx: Transaction, run_id: str, sha256: str) -> bool:
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
    refer = tx.all(rows_of(artifacts, artifacts.c.run_id, sha256=sha256))
    return any(root_run_id(row["run_id"]) in roots for row in refer)


def store_of(tx: Transaction, run_id: str) -> str | None:
    """Return which artifact store the worker had that has opened a run, if that is recorded."""
    opened = tx.opening(run_id)
    return None if opened is None else opened.body.get("store")


def content_of(tx: Transaction, sha256: str) -> bytes | None:
    """Return what the ledger itself keeps under a digest."""
    row = tx.one(
        rows_of(artifacts, artifacts.c.content, sha256=sha256)
        .where(artifacts.c.content.is_not(None))
        .limit(1)
    )
    return None if row is None else bytes(row["content"])
