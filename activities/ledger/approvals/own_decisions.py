"""What one person has decided, newest first, page by page: no more is read than is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import tuple_

from surehand.activities.ledger.approvals.waiting import readable
from surehand.activities.ledger.core.sealed import Erased, SealedValue
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, retentions

_SAID: Final = (
    decisions.c.decision_id,
    decisions.c.run_id,
    decisions.c.approval_id,
    decisions.c.outcome,
    decisions.c.verdict,
    decisions.c.message,
    decisions.c.reason,
    decisions.c.verified,
    decisions.c.at_ms,
)
_ORDER: Final = (decisions.c.at_ms, decisions.c.decision_id)


class Moment(NamedTuple):
    """Where among somebody's decisions one is."""

    at_ms: int
    decision_id: str


@dataclass(frozen=True)
class OwnDecisions:
    """A page of them."""

    rows: Sequence[Mapping[str, Any]]
    """Of ``decisions``, each with ``tool`` and ``description`` of what it was on. What cannot be
    read here is ``None``, and so is all that a hidden run says (``hidden``)."""
    more: Moment | None
    """Where the next page begins; ``None``: this is the last one."""


def own_decisions(
    tx: Transaction, approver: str, *, most: int, after: Moment | None = None
) -> OwnDecisions:
    """Return what somebody has decided, whether it has counted or not; the newest comes first.

    Votes that a standing approval has given in their place are not among it.

    Args:
        approver: Who, by the exact name.
        most: So many at most.
        after: Only what is older than this.
    """
    query = rows_of(decisions, *_SAID, approver=approver).where(decisions.c.standing_id.is_(None))
    if after is not None:
        query = query.where(tuple_(*_ORDER) < tuple_(*after))
    newest = query.order_by(*(column.desc() for column in _ORDER)).limit(most + 1)
    rows = tx.all(readable(tx, newest))
    more = Moment(rows[most - 1]["at_ms"], rows[most - 1]["decision_id"]) if rows[most:] else None
    rows = rows[:most]
    return OwnDecisions(_with_calls(tx, rows), more)


def _with_calls(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return decisions with the calls that they were on."""
    columns = (
        approvals.c.approval_id,
        approvals.c.run_id,
        approvals.c.tool,
        approvals.c.description,
    )
    ids = {row["approval_id"] for row in rows}
    query = rows_of(approvals, *columns).where(approvals.c.approval_id.in_(ids))
    calls = {row["approval_id"]: row for row in tx.all(readable(tx, query))}
    of_runs = rows_of(retentions, retentions.c.run_id, kind="runs")
    runs = {row["run_id"] for row in rows}
    hidden = {row["run_id"] for row in tx.all(of_runs.where(retentions.c.run_id.in_(runs)))}
    found = []
    for row in rows:
        call = calls.get(row["approval_id"], {"tool": None, "description": None})
        told = {**row, "tool": call["tool"], "description": call["description"]}
        closed = ("tool", "description", "reason", "message") if row["run_id"] in hidden else ()
        for name, value in told.items():
            if name in closed or isinstance(value, SealedValue | Erased):
                told[name] = None
        found.append({**told, "hidden": row["run_id"] in hidden})
    return found
