"""Reading the ledger for the operator's verbs and the drill. Every query is of one tenant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import Select, func, tuple_
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals.waiting import ListPage, list_readable
from surehand.activities.ledger.core.engine import find_open_transactions, unreachable
from surehand.activities.ledger.core.statements import ours, rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    approvals,
    artifacts,
    effects,
    events,
    interventions,
    notifications,
    plans,
    principal_changes,
    runs,
    steps,
)
from surehand.activities.ledger.runs.deletion import require_kept
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.identity import child_run_id
from surehand.workflows.plan.plan import Plan

_OF_EFFECTS: Final = (
    *("entry_id", "step_id", "tool", "tool_version", "key", "generation", "state", "calls"),
    *("fencing_token", "approval_id", "params_hash", "undoes", "receipt", "error"),
    *("claimed_ms", "settled_ms"),
)
#: Of ``artifacts``, without what the ledger itself keeps of their content.
_OF_ARTIFACTS: Final = tuple(column for column in artifacts.c if column is not artifacts.c.content)


def effects_of(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Return a run's ledger entries in the order of their claims."""
    require_run(tx, run_id)
    own = rows_of(effects, *_OF_EFFECTS, run_id=run_id)
    return _read_all(tx, own.order_by(effects.c.claimed_ms, effects.c.entry_id))


def events_of(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Return a run's events, oldest first, as they were chained."""
    require_run(tx, run_id)
    query = rows_of(events, run_id=run_id).execution_options(sealed="shown")
    return _read_all(tx, query.order_by(events.c.seq))


#: How far the database's clock may be set back so that no event is missed.
CLOCK_SET_BACK_MS: Final = 2000


class Position(NamedTuple):
    """Where an event is among all of a tenant: they are in this order."""

    at_ms: int
    run_id: str
    seq: int

    def __str__(self) -> str:
        return f"{self.at_ms}:{self.run_id}#{self.seq}"

    @classmethod
    def parse(cls, said: str) -> Position:
        """Return a position as ``str`` writes it."""
        found = re.fullmatch(r"([0-9]{1,18}):(.{1,255})#([0-9]{1,18})", said)
        if found is None:
            raise ValueError(f"{said[:300]!r} is no position of an event")
        return cls(int(found[1]), found[2], int(found[3]))


class Cut(NamedTuple):
    """A point in time: what was written before it can be read once these have ended."""

    at_ms: int
    open: frozenset[str]
    """Transactions that were open then."""


class ClockSetBack(Exception):
    """New events may come before those that were read: positions do not tell them apart."""


def list_after(
    tx: Transaction, after: Position | None, cut: Cut | None, run_id: str | None, *, most: int
) -> tuple[list[dict[str, Any]], Cut]:
    """Return events behind a position, and the cut for the next call.

    A transaction chains its events last, with the time at which it began. So of each time events
    are read only once nobody can write any more of it. The cut is the same until all before it are
    read.
    """
    now = Cut(tx.now_ms, find_open_transactions(tx.connection))
    if now.at_ms < max(after.at_ms if after else 0, cut.at_ms if cut else 0):
        raise ClockSetBack("the clock of the ledger's database was set back: events may be missing")
    cut = cut or now
    if cut.open & now.open:
        return [], cut
    named = {} if run_id is None else {"run_id": run_id}
    query = rows_of(events, **named).where(events.c.at_ms < cut.at_ms - CLOCK_SET_BACK_MS)
    if after is not None:
        behind = tuple_(events.c.at_ms, events.c.run_id, events.c.seq) > tuple_(*after)
        query = query.where(events.c.at_ms >= after.at_ms, behind)
    query = query.order_by(events.c.at_ms, events.c.run_id, events.c.seq).limit(most)
    rows = tx.all(query.execution_options(sealed="stored"))
    return rows, cut if len(rows) == most else now


def chain_of(
    tx: Transaction, run_id: str, *, sealed: Literal["stored", "opened"] = "stored"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], ChainHead]:
    """Return a run's events and entries, and the head that its row records.

    As it is stored it is proven without the run's key.
    """
    # Locked: what is read here and there belongs together, however busy the run is.
    head = tx.lock_chain(run_id)
    written = rows_of(events, run_id=run_id).order_by(events.c.seq)
    chain = tx.all(written.execution_options(sealed=sealed))
    entries = tx.all(rows_of(effects, run_id=run_id).execution_options(sealed=sealed))
    return chain, entries, head


def artifacts_of(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Return the artifacts that a run refers to, oldest first."""
    require_run(tx, run_id)
    own = rows_of(artifacts, *_OF_ARTIFACTS, run_id=run_id)
    return _read_all(tx, own.order_by(artifacts.c.created_ms, artifacts.c.artifact_id))


def interventions_of(
    tx: Transaction, run_id: str | None = None, *, only_open: bool = False
) -> list[dict[str, Any]]:
    """Return a tenant's interventions, or those of one run, newest first."""
    query = rows_of(interventions).execution_options(sealed="shown")
    if run_id is not None:
        require_run(tx, run_id)
        query = query.where(interventions.c.run_id == run_id)
    if only_open:
        query = query.where(interventions.c.state == OPEN)
    return _read_all(tx, query.order_by(interventions.c.opened_ms.desc()))


def notifications_of(
    tx: Transaction,
    run_id: str | None = None,
    *,
    only_failed: bool = False,
    limit: int,
) -> list[dict[str, Any]]:
    """Return what people were told, or are to be told, of a tenant or of one run, newest first."""
    query = rows_of(notifications).execution_options(sealed="shown")
    if run_id is not None:
        require_run(tx, run_id)
        query = query.where(notifications.c.run_id == run_id)
    if only_failed:
        query = query.where(
            notifications.c.error.is_not(None), notifications.c.state.in_(("pending", "failed"))
        )
    newest = (notifications.c.written_ms.desc(), notifications.c.notification_id)
    return _read_all(tx, query.order_by(*newest).limit(limit))


def open_interventions(tx: Transaction) -> int:
    """Return how many questions of a tenant wait for a human."""
    return tx.count(rows_of(interventions, func.count(), state=OPEN))


def knows_run(tx: Transaction, run_id: str) -> bool:
    """Return whether the run is recorded; without its tables a ledger knows none."""
    try:
        return tx.has(rows_of(runs, "run_id", run_id=run_id))
    except DBAPIError as error:
        if unreachable(error):
            raise
        return False


def require_run(tx: Transaction, run_id: str) -> None:
    """See that the tenant has a run, and that nobody deletes it."""
    if not tx.has(rows_of(runs, "run_id", run_id=run_id)):
        raise RunNotFound(run_id)
    require_kept(tx, run_id)


def _read_all(tx: Transaction, query: Select[Any]) -> list[dict[str, Any]]:
    return [_readable(row) for row in tx.all(query)]


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


_ORDER: Final = (artifacts.c.step_id, artifacts.c.sha256)


class Shelf(NamedTuple):
    """Where among a run's artifacts one is."""

    step_id: str
    sha256: str


def artifact_page(
    tx: Transaction, run_id: str, *, most: int, after: Shelf | None = None
) -> ListPage[Shelf]:
    """Return artifacts of a run by step."""
    require_run(tx, run_id)
    query = rows_of(artifacts, *_OF_ARTIFACTS, run_id=run_id)
    if after is not None:
        query = query.where(tuple_(*_ORDER) > tuple_(*after))
    rows = tx.all(query.order_by(*_ORDER).limit(most + 1))
    more = Shelf(rows[most - 1]["step_id"], rows[most - 1]["sha256"]) if rows[most:] else None
    return ListPage(rows[:most], more)


def one_artifact(tx: Transaction, run_id: str, artifact_id: str) -> Mapping[str, Any] | None:
    """Return one artifact of a run; ``None``: the run has none of that id."""
    require_run(tx, run_id)
    return tx.one(rows_of(artifacts, *_OF_ARTIFACTS, run_id=run_id, artifact_id=artifact_id))


Row = dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The rows of one run, as they are stored; times in milliseconds by the database's clock."""

    user: str
    """Whom the run acts for."""
    plan: Plan
    tools: Mapping[str, ToolSpec]
    """As they were recorded at the run's start, by name."""
    approvals: list[Row]
    steps: list[Row]
    """One row for each attempt."""
    claims: list[Row]
    """Each claim's own words: the bodies of ``effect.claimed``, with ``step_id``."""
    waived: list[Row]
    """The bodies of ``approval.waived``, in the same form."""
    answered: frozenset[str]
    """Steps whose tools have asked a human something: the answers are part of what is approved."""
    changes: list[Row]
    """What the user's permissions have become, in order."""


def runs_of(tx: Transaction, run_id: str) -> list[str]:
    """Return the ids of a run and of its child runs, and of theirs, as far as they are recorded."""
    child = runs.c.run_id.startswith(child_run_id(run_id, ""), autoescape=True)
    own = rows_of(runs, "run_id").where((runs.c.run_id == run_id) | child)
    return tx.read_column(own.order_by(runs.c.run_id))


def read_evidence(tx: Transaction, run_id: str) -> Evidence:
    """Return what the ledger holds about a run."""
    run = tx.one(
        rows_of(runs, "user_id", plans.c.plan, plans.c.tools, run_id=run_id)
        .join(plans, ours(plans, run_id=runs.c.run_id))
        .order_by(plans.c.plan_version.desc())
    )
    if run is None:
        raise RunNotFound(run_id)
    told = tx.all(rows_of(events, "type", "step_id", "body", run_id=run_id).order_by(events.c.seq))
    changes = tx.all(
        rows_of(principal_changes, principal=run["user_id"])
        .where(principal_changes.c.change.in_(("permission_granted", "permission_revoked")))
        .order_by(principal_changes.c.at_ms)
    )

    def bodies(type_: str) -> list[Row]:
        return [{**one["body"], "step_id": one["step_id"]} for one in told if one["type"] == type_]

    return Evidence(
        user=run["user_id"],
        plan=Plan.model_validate(run["plan"]),
        tools={name: ToolSpec.model_validate(spec) for name, spec in run["tools"].items()},
        approvals=tx.all(rows_of(approvals, run_id=run_id)),
        steps=tx.all(rows_of(steps, run_id=run_id)),
        claims=bodies("effect.claimed"),
        waived=bodies("approval.waived"),
        answered=frozenset(
            body["step_id"] for body in bodies("interrupt.answered") if body["kind"] == "tool"
        ),
        changes=changes,
    )


def list_made(tx: Transaction, tools: Sequence[str], within_ms: int) -> list[dict[str, Any]]:
    """Return the effects of tools that were claimed within that time and stand, oldest first.

    Each has its age, ``age_ms``. What cannot be read here has no params.
    """
    of_step = ("entry_id", "tool", "params", "run_id", "step_id", "approval_id")
    query = rows_of(effects, *of_step, "claimed_ms", "state", undoes=None).where(
        effects.c.tool.in_(tools),
        effects.c.claimed_ms > tx.now_ms - within_ms,
        effects.c.state.not_in(("failed", "compensated")),
    )
    found = list_readable(tx, query.order_by(effects.c.claimed_ms, effects.c.entry_id))
    return [{**row, "age_ms": tx.now_ms - row["claimed_ms"]} for row in found]
