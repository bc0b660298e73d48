"""What of a run goes with a kind of its data, as an export has it: rows as they are stored.

What is sealed stays sealed: exports are read with the run's key, and an erased run's by nobody.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, literal_column

from surehand.activities.ledger.core.sealed import as_stored
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    artifacts,
    checkpoints,
    decisions,
    effects,
    interventions,
    notifications,
    plans,
    replays,
    runs,
    steerings,
    steps,
)
from surehand.workflows.contracts.base import ChainHead

#: Saved checkpoints, each of which has a time of its own: as a kind it is in no policy.
CHECKPOINTS: Final = "checkpoints"
#: By kind: the tables of whose rows something goes. Events are exported as a chain; a draft is
#: nothing yet, and workers drop it by themselves.
_TABLES: Final[Mapping[str, tuple[Table, ...]]] = {
    "runs": (
        runs,
        plans,
        steps,
        effects,
        approvals,
        decisions,
        steerings,
        interventions,
        replays,
        artifacts,
        checkpoints,
        notifications,
    ),
    "steps": (steps,),
    "outputs": (steps, effects),
    "artifacts": (artifacts,),
    "messages": (notifications,),
    CHECKPOINTS: (checkpoints, artifacts),
}
_STORED: Final = {table.name: as_stored(table) for table in _TABLES["runs"]}
#: What the step of a checkpoint's artifact begins with, before the checkpoint's name.
_STEP: Final[ColumnElement[str]] = literal_column("'checkpoint:'")
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Content:
    """Rows of a run that go with a kind, as lines of JSON."""

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
        return digest_of(self.lines)


@dataclass(frozen=True)
class Exported:
    """What was exported of a run before it goes."""

    files: tuple[str, ...]
    digest: str
    """Of the rows, as ``Content`` has it."""
    head: ChainHead | None = None
    """Where the chain ended, as ``Content`` has it."""


def content_of(tx: Transaction, run_id: str, kind: str, grace: timedelta = timedelta(0)) -> Content:
    """Return the rows of a run of which something goes with a kind; events are not among them.

    Args:
        grace: For how long checkpoints are hidden at least before they go.
    """
    lines, files = list[bytes](), dict[str, None]()
    for table in _TABLES[kind]:
        stored = _STORED[table.name]
        query = rows_of(stored, run_id=run_id).order_by(*stored.primary_key)
        if kind == CHECKPOINTS:
            query = query.where(goes_alone(tx, stored, grace))
        if kind == "artifacts":
            query = query.where(~of_checkpoint(stored))
        for row in tx.all(query):
            # By the tenant's key, params of a run that was erased could be guessed from it.
            row.pop("identity_hash", None)
            lines.append(_line({"row": row, "table": table.name}))
            if table is artifacts and row["content"] is None:
                files[row["sha256"]] = None
    return Content(run_id, kind, tuple(lines), tuple(files))


def digest_of(lines: Iterable[bytes]) -> str:
    """Return what tells these lines from others."""
    found = hashlib.sha256()
    for line in lines:
        found.update(line)
    return f"sha256:{found.hexdigest()}"


def goes_alone(tx: Transaction, table: Table, grace: timedelta) -> ColumnElement[bool]:
    """Return the condition that a row goes before its run: a checkpoint, or an artifact of it.

    Workers hide checkpoints, too, and say when they go: not before ``grace``, whatever they say.
    """
    longest_ms = tx.now_ms - grace // _MILLISECOND
    if table.name == checkpoints.name:
        return (table.c.delete_after_ms <= tx.now_ms) & (table.c.hidden_ms <= longest_ms)
    named = rows_of(checkpoints, literal_column("1"), run_id=table.c.run_id).where(
        table.c.step_id == _STEP + checkpoints.c.name
    )
    hidden = checkpoints.c.hidden_ms.is_not(None)
    stays = ~hidden | ~goes_alone(tx, checkpoints, grace)
    return of_checkpoint(table) & ~named.where(stays).exists()


def of_checkpoint(table: Table) -> ColumnElement[bool]:
    """Return the condition that an artifact is a checkpoint's: it goes with that, or the run."""
    return table.c.step_id.startswith(_STEP)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, default=_as_json).encode() + b"\n"


def _as_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"no JSON: {type(value)}")
