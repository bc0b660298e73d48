"""One request as an approver sees it, read from the ledger alone: no worker has to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surehand.activities.ledger.approvals.standing_grants import voters
from surehand.activities.ledger.approvals.votes import needs_of, requesters
from surehand.activities.ledger.approvals.waiting import readable, without_sealed
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, effects, runs
from surehand.activities.ledger.people.starts import marked_starter
from surehand.activities.ledger.retention.hiding import require_shown
from surehand.activities.ledger.steps.foreign import content_of
from surehand.workflows.contracts.values import ForeignContent
from surehand.workflows.identity import approval_id as approval_id_of
from surehand.workflows.plan.policy import Needs


@dataclass(frozen=True)
class OneApproval:
    """A request, with what else decides whether somebody says yes."""

    row: Mapping[str, Any]
    """Of ``approvals``; what cannot be read here is ``None`` in it."""
    needs: Needs
    run_state: str
    run_open: bool
    """Whether its run is open, as the ledger knows it."""
    started_by: str
    """Who has started the run, empty where that is whom it acts for."""
    excluded: tuple[str, ...]
    """Who has no vote, where four eyes are asked for."""
    foreign: tuple[ForeignContent, ...]
    decisions: Sequence[Mapping[str, Any]]
    """What people have said to it, in its order; refused decisions, too."""
    standing: tuple[str, ...]
    """Whose standing approvals have voted."""
    replaces: Mapping[str, Any] | None
    """The request whose params were edited."""
    precondition_before: str | None
    """What the step's request before this one has kept of the tool's precondition."""
    entries: Sequence[Mapping[str, Any]]
    """What the ledger has under the same key, newest generation first."""
    now_ms: int


def one_approval(tx: Transaction, approval_id: str) -> OneApproval | None:
    """Return a request; ``None``: the tenant has none of that id.

    Raises:
        RunHidden: Its run is hidden.
    """
    row = _read(tx, approval_id)
    if row is None:
        return None
    run_id, needs = row["run_id"], needs_of(row)
    require_shown(tx, run_id, "runs")
    run = tx.one(rows_of(runs, runs.c.state, runs.c.closed_ms, run_id=run_id))
    assert run is not None, "its row refers to it"
    number = int(approval_id.rpartition("/")[2])
    before = _read(tx, approval_id_of(run_id, row["step_id"], number - 1))
    said = rows_of(
        decisions,
        decisions.c.run_id,
        decisions.c.approver,
        decisions.c.outcome,
        decisions.c.verdict,
        decisions.c.message,
        decisions.c.reason,
        decisions.c.verified,
        decisions.c.at_ms,
        run_id=run_id,
        approval_id=approval_id,
        standing_id=None,
    )
    same_key = rows_of(
        effects,
        effects.c.entry_id,
        effects.c.run_id,
        effects.c.step_id,
        effects.c.generation,
        effects.c.state,
        effects.c.claimed_ms,
        tool=row["tool"],
        key=row["key"],
    )
    return OneApproval(
        row=row,
        needs=needs,
        run_state=run["state"],
        run_open=run["closed_ms"] is None,
        started_by=marked_starter(tx, run_id),
        excluded=tuple(sorted(requesters(tx, row, needs.requirements))),
        foreign=content_of(tx, run_id),
        decisions=[
            without_sealed(one)
            for one in tx.all(readable(tx, said.order_by(decisions.c.at_ms).limit(_MOST)))
        ],
        standing=voters(tx, approval_id).standing,
        precondition_before=None if before is None else before["precondition"],
        replaces=before if before is not None and before["state"] == "superseded" else None,
        entries=tx.all(same_key.order_by(effects.c.generation.desc()).limit(_MOST)),
        now_ms=tx.now_ms,
    )


def place_of(tx: Transaction, run_id: str) -> tuple[int, str]:
    """Return how far a run has come: the number of its newest event, and its state.

    Raises:
        RunNotFound: No such run in this tenant, or it is hidden.
    """
    require_shown(tx, run_id, "runs")
    row = tx.one(rows_of(runs, runs.c.seq, runs.c.state, run_id=run_id))
    if row is None:
        raise RunNotFound(run_id)
    return row["seq"], row["state"]


#: Decisions and entries that are shown of one request.
_MOST = 50


def _read(tx: Transaction, approval_id: str) -> dict[str, Any] | None:
    row = tx.one(readable(tx, rows_of(approvals, approval_id=approval_id)))
    return None if row is None else without_sealed(row)
