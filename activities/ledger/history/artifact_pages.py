"""What a run has kept, page by page, and one of it: read by an index of the run's own alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import tuple_

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import artifacts
from surehand.activities.ledger.history.reads import require_run

_SHOWN: Final = tuple(column for column in artifacts.c if column is not artifacts.c.content)
_ORDER: Final = (artifacts.c.step_id, artifacts.c.sha256)


class Shelf(NamedTuple):
    """Where among a run's artifacts one is."""

    step_id: str
    sha256: str


@dataclass(frozen=True)
class ArtifactPage:
    """A page of them, by step."""

    rows: Sequence[Mapping[str, Any]]
    """Of ``artifacts``, without what the ledger itself keeps of their content."""
    more: Shelf | None
    """Where the next page begins; ``None``: this is the last one."""


def artifact_page(
    tx: Transaction, run_id: str, *, most: int, after: Shelf | None = None
) -> ArtifactPage:
    """Return artifacts of a run by step.

    Raises:
        RunNotFound: No such run in this tenant, or they are hidden.
    """
    require_run(tx, run_id, "artifacts")
    query = rows_of(artifacts, *_SHOWN, run_id=run_id)
    if after is not None:
        query = query.where(tuple_(*_ORDER) > tuple_(*after))
    rows = tx.all(query.order_by(*_ORDER).limit(most + 1))
    more = Shelf(rows[most - 1]["step_id"], rows[most - 1]["sha256"]) if rows[most:] else None
    return ArtifactPage(rows[:most], more)


def one_artifact(tx: Transaction, run_id: str, artifact_id: str) -> Mapping[str, Any] | None:
    """Return one artifact of a run; ``None``: the run has none of that id.

    Raises:
        RunNotFound: No such run in this tenant, or it is hidden.
    """
    require_run(tx, run_id, "artifacts")
    return tx.one(rows_of(artifacts, *_SHOWN, run_id=run_id, artifact_id=artifact_id))
