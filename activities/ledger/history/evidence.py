"""What a ledger holds about one run's approvals and permissions, for whoever checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surehand.activities.ledger.core.people_tables import principal_changes
from surehand.activities.ledger.core.statements import ours, rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    effects,
    events,
    plans,
    runs,
    steps,
)
from surehand.activities.ledger.steps import foreign
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.identity import child_run_id
from surehand.workflows.plan.plan import Plan

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
    effects: list[Row]
    steps: list[Row]
    """One row for each attempt."""
    claims: list[Row]
    """Each claim's own words: the bodies of ``effect.claimed``, with ``step_id``, and ``foreign``:
    whether the run had read content from outside by then."""
    waived: list[Row]
    """The bodies of ``approval.waived``, in the same form."""
    answered: frozenset[str]
    """Steps whose tools have asked a human something: the answers are part of what is approved."""
    changes: list[Row]
    """What the user's permissions have become, in order."""


def runs_of(tx: Transaction, run_id: str) -> list[str]:
    """Return the ids of a run and of its child runs, and of theirs, as far as they are recorded."""
    child = runs.c.run_id.startswith(child_run_id(run_id, ""), autoescape=True)
    rows = tx.all(
        rows_of(runs, runs.c.run_id)
        .where((runs.c.run_id == run_id) | child)
        .order_by(runs.c.run_id)
    )
    return [row["run_id"] for row in rows]


def evidence_of(tx: Transaction, run_id: str) -> Evidence:
    """Return what the ledger holds about a run.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    run = tx.one(
        rows_of(runs, runs.c.user_id, plans.c.plan, plans.c.tools, run_id=run_id)
        .join(plans, ours(plans, run_id=runs.c.run_id))
        .order_by(plans.c.plan_version.desc())
    )
    if run is None:
        raise RunNotFound(run_id)
    told = tx.all(
        rows_of(events, events.c.type, events.c.step_id, events.c.body, run_id=run_id).order_by(
            events.c.seq
        )
    )
    of_run = [tx.all(rows_of(table, run_id=run_id)) for table in (approvals, effects, steps)]
    changes = tx.all(
        rows_of(principal_changes, principal=run["user_id"])
        .where(principal_changes.c.change.in_(("permission_granted", "permission_revoked")))
        .order_by(principal_changes.c.at_ms)
    )

    def bodies(type_: str) -> list[Row]:
        found, marked = list[Row](), False
        for event in told:
            marked = marked or event["type"] == foreign.MARKED
            if event["type"] == type_:
                found.append({**event["body"], "step_id": event["step_id"], "foreign": marked})
        return found

    return Evidence(
        user=run["user_id"],
        plan=Plan.model_validate(run["plan"]),
        tools={name: ToolSpec.model_validate(spec) for name, spec in run["tools"].items()},
        approvals=of_run[0],
        effects=of_run[1],
        steps=of_run[2],
        claims=bodies("effect.claimed"),
        waived=bodies("approval.waived"),
        answered=frozenset(
            body["step_id"] for body in bodies("interrupt.answered") if body["kind"] == "tool"
        ),
        changes=changes,
    )
