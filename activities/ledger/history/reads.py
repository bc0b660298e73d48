"""Reading the ledger for people: the operator's verbs. Every query is of one tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import func, tuple_
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core.engine import unreachable
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    artifacts,
    effects,
    events,
    interventions,
    notifications,
    runs,
)
from surehand.activities.ledger.retention.hiding import hidden, require_shown
from surehand.workflows.contracts.base import ChainHead


def effects_of(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Return a run's ledger entries in the order of their claims.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    columns = (
        effects.c.entry_id,
        effects.c.step_id,
        effects.c.tool,
        effects.c.tool_version,
        effects.c.key,
        effects.c.generation,
        effects.c.state,
        effects.c.calls,
        effects.c.fencing_token,
        effects.c.approval_id,
        effects.c.params_hash,
        effects.c.undoes,
        effects.c.receipt,
        effects.c.error,
        effects.c.claimed_ms,
        effects.c.settled_ms,
    )
    require_run(tx, run_id)
    rows = tx.all(
        rows_of(effects, *columns, run_id=run_id).order_by(effects.c.claimed_ms, effects.c.entry_id)
    )
    if hidden(tx, run_id, "outputs") is not None:
        rows = [{**row, "receipt": None} for row in rows]
    return [_readable(row) for row in rows]


def events_of(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Return a run's events, oldest first, as they were chained.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    require_run(tx, run_id)
    query = rows_of(events, run_id=run_id).execution_options(sealed="shown")
    rows = tx.all(query.order_by(events.c.seq))
    return [_readable(row) for row in rows]


def chain_of(
    tx: Transaction, run_id: str, *, sealed: Literal["stored", "opened"] = "stored"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], ChainHead]:
    """Return a run's events and entries, and the head that its row records.

    Args:
        sealed: What of them is sealed, as it is stored: so they are proven without the run's key.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    # Locked: what is read here and there belongs together, however busy the run is.
    head = tx.lock_chain(run_id)
    written = rows_of(events, run_id=run_id).order_by(events.c.seq)
    chain = tx.all(written.execution_options(sealed=sealed))
    entries = tx.all(rows_of(effects, run_id=run_id).execution_options(sealed=sealed))
    return chain, entries, head


def artifacts_of(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Return the artifacts that a run refers to, oldest first.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    columns = [column for column in artifacts.c if column is not artifacts.c.content]
    require_run(tx, run_id, "artifacts")
    rows = tx.all(
        rows_of(artifacts, *columns, run_id=run_id).order_by(
            artifacts.c.created_ms, artifacts.c.artifact_id
        )
    )
    return [_readable(row) for row in rows]


def interventions_of(
    tx: Transaction, run_id: str | None = None, *, only_open: bool = False
) -> list[dict[str, Any]]:
    """Return a tenant's interventions, or those of one run, newest first.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    query = rows_of(interventions).execution_options(sealed="shown")
    if run_id is not None:
        require_run(tx, run_id)
        query = query.where(interventions.c.run_id == run_id)
    if only_open:
        query = query.where(interventions.c.state == OPEN)
    rows = tx.all(query.order_by(interventions.c.opened_ms.desc()))
    return [_readable(row) for row in rows]


def notifications_of(
    tx: Transaction,
    run_id: str | None = None,
    *,
    only_failed: bool = False,
    limit: int,
) -> list[dict[str, Any]]:
    """Return what people were told, or are to be told, of a tenant or of one run, newest first.

    Args:
        run_id: Only of this run.
        only_failed: Only what could not be sent, for good or so far.
        limit: Most rows to return.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    query = rows_of(notifications).execution_options(sealed="shown")
    if run_id is not None:
        require_run(tx, run_id, "messages")
        query = query.where(notifications.c.run_id == run_id)
    if only_failed:
        query = query.where(
            notifications.c.error.is_not(None), notifications.c.state.in_(("pending", "failed"))
        )
    newest = (notifications.c.written_ms.desc(), notifications.c.notification_id)
    rows = tx.all(query.order_by(*newest).limit(limit))
    return [_readable(row) for row in rows]


def run_of_intervention(tx: Transaction, intervention_id: str) -> str | None:
    """Return the run whose effect an intervention is about; ``None`` if there is none."""
    row = tx.one(rows_of(interventions, interventions.c.run_id, intervention_id=intervention_id))
    return None if row is None else str(row["run_id"])


def open_interventions(tx: Transaction) -> int:
    """Return how many questions of a tenant wait for a human."""
    return tx.count(rows_of(interventions, func.count(), state=OPEN))


def knows_run(tx: Transaction, run_id: str) -> bool:
    """Return whether the run is recorded, hidden or not; without its tables a ledger knows none."""
    try:
        return tx.one(rows_of(runs, runs.c.run_id, run_id=run_id)) is not None
    except DBAPIError as error:
        if unreachable(error):
            raise
        return False


def require_run(tx: Transaction, run_id: str, kind: str = "runs") -> None:
    """See that the tenant has a run, and that this kind of its data is not hidden.

    Raises:
        RunNotFound: It has none of that id, or it is hidden.
    """
    row = tx.one(rows_of(runs, runs.c.run_id, run_id=run_id))
    if row is None:
        raise RunNotFound(run_id)
    require_shown(tx, run_id, kind)


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its times as ISO 8601 and without the tenant."""
    result: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_ms"):
            moment = datetime.fromtimestamp(value / 1000, UTC) if value is not None else None
            result[f"{name[:-3]}_at" if name != "at_ms" else "at"] = (
                moment.isoformat(timespec="milliseconds") if moment else None
            )
        elif name != "tenant_id":
            result[name] = value
    return result


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
