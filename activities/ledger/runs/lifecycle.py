"""Run rows: opened once, never reused, closed with what the ledger says about their effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause, bindparam, func

from surehand.activities.ledger.approvals.requests import void_approvals
from surehand.activities.ledger.approvals.votes import give_back_uses
from surehand.activities.ledger.core.statements import (
    PreparedStatement,
    insert_row,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    drafts,
    events,
    plans,
    runs,
    standing_uses,
    steerings,
    steps,
)
from surehand.activities.ledger.core.transaction import GENESIS
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.effects.run_tree import TreeEffects
from surehand.activities.ledger.people.starts import StartRefused, start_of
from surehand.activities.ledger.quotas import admit_at_opening, find_queue_wait, read_limits
from surehand.activities.ledger.runs.deletion import RunDeleted, keep_run
from surehand.activities.ledger.steps import acting, foreign
from surehand.activities.ledger.steps.artifacts import WrittenDraft, end_unneeded_drafts
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import ForeignContent, QuotaWait
from surehand.workflows.contracts.runs import AmendRun, CloseRun, OpenRun
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.plan.plan import Plan


@dataclass(frozen=True)
class Opened:
    """What a run has to know as it begins."""

    foreign: tuple[ForeignContent, ...]
    queued: QuotaWait | None
    """What it waits for before its first step."""
    weight: float
    """Its tenant's share of turns."""


class RunIdTaken(Exception):
    """A run of this id was recorded before; ids are never reused, not even after retention."""


def open_run(
    tx: Transaction,
    asked: OpenRun,
    tools: Mapping[str, ToolSpec],
    assurance: Assurance = Assurance.OPEN,
    *,
    execution: str | None = None,
    above: str | None = None,
    store: str | None = None,
) -> Opened:
    """Record a run and its plan; the same run may do so twice, and does when it is reset.

    The row keeps Temporal's id of the run's first execution, which all others name.
    ``assurance`` says what has to prove who has started it, ``execution`` which execution of the
    run asks, if not its first one. ``above`` is the first execution of the run that has started it,
    as the server has it, and ``store`` tells the worker's artifact store from others.
    """
    request, parent, linked = asked.request, asked.request.parent, asked.request.linked
    run_id = request.run_id
    if parent is not None:
        # Before every other lock: whoever undoes the parent bars its child runs, too.
        tx.lock_run(parent.run_id)
    first_execution = tx.value(rows_of(runs, runs.c.first_execution, run_id=run_id))
    if first_execution is not None:
        if first_execution != asked.execution:
            raise RunIdTaken(f"run id {run_id!r} was used before")
        acting.require_acting(tx, run_id, execution or asked.execution)
        marked = foreign.foreign_content(tx, run_id)
        return Opened(marked, find_queue_wait(tx, run_id), read_limits(tx).weight)
    if asked.continues:
        raise RunNotFound(run_id)
    start = start_of(tx, asked, assurance, above)
    taken: list[run_tree.Fact] = []
    if linked is not None:
        # Nothing of it is deleted meanwhile; afterwards this run keeps it.
        try:
            keep_run(tx, linked.run_id)
        except RunDeleted as error:
            raise StartRefused(f"nothing can be taken over: {error}") from error
        taken = run_tree.effects_behind(tx, linked.run_id, linked.outputs)
        run_tree.must_stand(tx, linked.run_id, linked.outputs)
    plan = request.plan.model_dump(mode="json")
    # A child run is part of its parent, which holds the place.
    limits = read_limits(tx)
    admitted_ms = tx.now_ms if parent is not None else admit_at_opening(tx, limits)
    tx.send(
        insert_row(
            runs,
            **start,
            run_id=run_id,
            first_execution=asked.execution,
            execution=execution or asked.execution,
            parent_run_id=parent.run_id if parent else None,
            parent_step_id=parent.step_id if parent else None,
            linked_run_id=linked.run_id if linked else None,
            user_id=request.user,
            plan_name=request.plan.name,
            input=plan["input"],
            state="running",
            seq=0,
            head=GENESIS,
            opened_ms=tx.now_ms,
            admitted_ms=admitted_ms,
        )
    )
    tx.begin_chain(run_id)
    run_tree.watch_effects(tx, run_id, taken)
    plan_digest = _insert_plan(tx, run_id, 1, plan, tools)
    tx.event(
        run_id,
        "run.opened",
        user=request.user,
        started_by=start["started_by"],
        verified=start["start_kid"] is not None,
        kid=start["start_kid"],
        plan=request.plan.name,
        plan_digest=plan_digest,
        gated=_gated_steps(request.plan, tools),
        parent=parent.run_id if parent else None,
        linked=linked.run_id if linked else None,
        taken_over=sorted(linked.outputs) or None if linked else None,
        store=store,
    )
    if linked is not None and linked.outputs:
        foreign.hand_on_foreign(tx, linked.run_id, run_id)
    if parent is not None:
        foreign.hand_on_foreign(tx, parent.run_id, run_id)
        run_tree.bar_with_parent(tx, run_id, parent.run_id, parent.step_id)
    # Nobody else has marked a run that was not there before.
    marked = tuple(foreign.marked_here(tx, run_id))
    queued = find_queue_wait(tx, run_id) if admitted_ms is None else None
    return Opened(marked, queued, limits.weight)


def amend_run(tx: Transaction, asked: AmendRun, tools: Mapping[str, ToolSpec]) -> None:
    """Record a new version of a run's plan; doing so twice changes nothing."""
    run_id, version = asked.run_id, asked.plan_version
    if tx.has(rows_of(plans, plans.c.plan_version, run_id=run_id, plan_version=version)):
        return
    actor = tx.value(rows_of(steerings, steerings.c.actor, steering_id=asked.steering_id))
    plan_digest = _insert_plan(tx, run_id, version, asked.plan.model_dump(mode="json"), tools)
    tx.event(
        run_id,
        "run.amended",
        plan_version=version,
        plan_digest=plan_digest,
        steering_id=asked.steering_id,
        gated=_gated_steps(asked.plan, tools),
        value_by=actor,
    )


def _insert_plan(
    tx: Transaction, run_id: str, version: int, plan: dict[str, Any], tools: Mapping[str, ToolSpec]
) -> str:
    """Write a version of a run's plan and return the digest of the plan."""
    specs = {name: spec.model_dump(mode="json") for name, spec in tools.items()}
    key = {"run_id": run_id, "plan_version": version}
    tx.send(insert_row(plans, **key, plan=plan, tools=specs, stored_ms=tx.now_ms))
    return digest(plan)


def _gated_steps(plan: Plan, tools: Mapping[str, ToolSpec]) -> list[str]:
    """Return the steps whose calls need an approval: an audit holds the commits against it."""
    return [
        step.id
        for step in plan.steps
        if plan.approvals(step) or (step.tool and tools[step.tool].approval is not None)
    ]


def _there_is(table: FromClause, name: str, **equal: Any) -> ColumnElement[bool]:
    return rows_of(table, **equal).exists().label(name)


_CHILD: Final = runs.alias("child")
#: All that decides which other statements the end of a run takes: for most runs it is none.
_AT_THE_END: Final = PreparedStatement(
    rows_of(
        runs,
        runs.c.execution,
        runs.c.parent_run_id,
        foreign.is_marked(runs.c.run_id).label("is_marked"),
        _there_is(standing_uses, "has_used", run_id=runs.c.run_id, returned_ms=None),
        _there_is(approvals, "asks", run_id=runs.c.run_id, state="pending"),
        _there_is(_CHILD, "has_children", parent_run_id=runs.c.run_id),
        _there_is(drafts, "has_drafts", run_id=runs.c.run_id, removed_ms=None),
        run_id=bindparam("of_run"),
    )
)


@dataclass(frozen=True)
class Closed:
    """What a run leaves."""

    made: TreeEffects
    drafts: list[WrittenDraft]
    """Those whose content nobody needs any more."""


def close_run(
    tx: Transaction,
    asked: CloseRun,
    execution: str | None = None,
    *,
    newest: int = run_tree.PAGE,
) -> Closed | None:
    """Record the end of a run; doing so twice changes nothing.

    Returns ``None`` without closing it if something else stands than the run knows of. ``newest``
    says how many of its effects are told.
    """
    run_id = asked.run_id
    if execution is not None:
        # From here on nothing of it is claimed, and no child run is opened, until it is closed.
        tx.lock_run(run_id)
    found = tx.one(_AT_THE_END, of_run=run_id)
    if found is None:
        raise RunNotFound(run_id)
    if execution not in (None, found["execution"]):
        raise acting.ActsElsewhere(tx.tenant, run_id, execution, found["execution"])
    made = run_tree.effects_of_tree(tx, run_id, newest)
    if asked.standing is not None:
        has_children = found["has_children"]
        if run_tree.digest_standing(tx, run_id, made, has_children=has_children) != asked.standing:
            return None
    if found["has_used"]:
        give_back_uses(tx, run_id)
    if found["parent_run_id"] is not None and found["is_marked"]:
        # Before its end is told: what it returns, and why it has failed, is its parent's then.
        foreign.hand_on_foreign(tx, run_id, found["parent_run_id"])
    if found["asks"]:
        # The run has closed those that it knows of. But it may have asked, and have heard of
        # something else when a crash made it decide anew.
        void_approvals(tx, run_id, approved=False)
    end = {"state": asked.state.value, "error": asked.error, "closed_ms": tx.now_ms}
    if tx.execute(update_rows(runs, run_id=run_id, closed_ms=None).values(end)):
        skipped = {"run_id": run_id, "attempt": 0, "state": "skipped", "ended_ms": tx.now_ms}
        rows = [{**skipped, "step_id": id_, "tool": tool} for id_, tool in asked.skipped.items()]
        if rows:
            # A run that was reset after its end may have skipped them before.
            tx.insert_new(steps, *rows)
        tx.event(run_id, f"run.{asked.state}", error=bool(asked.error) or None)
    return Closed(made, end_unneeded_drafts(tx, run_id) if found["has_drafts"] else [])


def plan_of(tx: Transaction, run_id: str) -> dict[str, object] | None:
    """Return the plan that a run was opened with; ``None``: no such run is recorded."""
    first = rows_of(plans, plans.c.plan, run_id=run_id, plan_version=1)
    plan: dict[str, object] | None = tx.value(first)
    return plan


_STOPPED: Final = "stopped from outside"


class EndedByItself(Exception):
    """A run was not stopped: it has ended, and has undone what was to be undone."""


def bar_terminated(tx: Transaction, run_id: str) -> None:
    """Bar a run and its child runs: an attempt that outlives it must make nothing any more."""
    row = tx.read_run(run_id, runs.c.state, runs.c.error, runs.c.closed_ms)
    if row["closed_ms"] is not None and row["error"] != _STOPPED:
        raise EndedByItself(
            f"run {run_id} was not stopped from outside, it is {row['state']}:"
            " what it has left is meant to stay"
        )
    run_tree.bar_tree(tx, run_id)


def close_terminated(tx: Transaction, run_id: str) -> bool:
    """Record that a run was stopped, and void what it still asks; ``False`` if it is closed."""
    if tx.read_run(run_id, runs.c.closed_ms)["closed_ms"] is not None:
        return False
    void_approvals(tx, run_id, approved=True)
    end = {"state": "failed", "error": _STOPPED, "closed_ms": tx.now_ms}
    if not tx.execute(update_rows(runs, run_id=run_id, closed_ms=None).values(end)):
        return False
    tx.event(run_id, "run.stopped", rule="closed_at_the_server", action="offer_compensation")
    return True


def times_stopped(tx: Transaction, run_id: str) -> int:
    return tx.count(rows_of(events, func.count(), run_id=run_id, type="run.stopped"))


def not_closed(tx: Transaction, run_ids: Sequence[str]) -> list[str]:
    """Return those of the runs that the ledger has as open, in the order in which they came."""
    going = rows_of(runs, runs.c.run_id, closed_ms=None).where(runs.c.run_id.in_(run_ids))
    found = set(tx.read_column(going))
    return [run_id for run_id in dict.fromkeys(run_ids) if run_id in found]
