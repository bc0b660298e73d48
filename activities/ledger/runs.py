"""Run rows: opened once, never reused, closed with what the ledger says about their effects."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import insert, select, update

from activities.ledger import facts, run_tree
from activities.ledger.chain import GENESIS
from activities.ledger.standing_uses import give_back
from activities.ledger.starts import start_of
from activities.ledger.store import RunNotFound, Transaction
from activities.ledger.tables import plans, runs, steps
from workflows.contracts import AmendRun, Assurance, CloseRun, EffectView, OpenRun, ToolSpec
from workflows.identity import digest
from workflows.plan import Plan


class RunIdTaken(Exception):
    """A run of this id was recorded before; ids are never reused, not even after retention."""


async def open_run(tx: Transaction, asked: OpenRun, assurance: Assurance = Assurance.OPEN) -> None:
    """Record a run and its plan; the same run may do so twice, and does when it is reset.

    The row keeps Temporal's id of the run's first execution, which all others name.

    Args:
        tx: The transaction.
        asked: The run.
        assurance: What has to prove who has started it.

    Raises:
        RunIdTaken: Another run has this id.
        StartRefused: Nothing proves who has started it, or its parent is not recorded.
        RunNotFound: The run that it continues is not recorded.
        TakesOverUndone: The effect of a step that it takes over has been undone.
    """
    request, parent = asked.request, asked.request.parent
    if parent is not None:
        # Before every other lock: whoever undoes the parent bars its child runs, too.
        await tx.lock_run(parent.run_id)
    row = await tx.one(
        select(runs.c.workflow_run_id).where(
            runs.c.tenant_id == tx.tenant, runs.c.run_id == request.run_id
        )
    )
    if row is not None:
        if row["workflow_run_id"] != asked.execution:
            raise RunIdTaken(f"run id {request.run_id!r} was used before")
        return
    if asked.continues:
        raise RunNotFound(request.run_id)
    start = await start_of(tx, asked, assurance)
    if request.linked is not None:
        await facts.must_stand(tx, request.linked.run_id, request.linked.outputs)
    plan = request.plan.model_dump(mode="json")
    await tx.execute(
        insert(runs).values(
            **start,
            tenant_id=tx.tenant,
            run_id=request.run_id,
            workflow_run_id=asked.execution,
            parent_run_id=parent.run_id if parent else None,
            parent_step_id=parent.step_id if parent else None,
            user_id=request.user,
            plan_name=request.plan.name,
            input=plan["input"],
            state="running",
            seq=0,
            head=GENESIS,
            opened_ms=tx.now_ms,
        )
    )
    await tx.execute(
        insert(plans).values(
            tenant_id=tx.tenant,
            run_id=request.run_id,
            plan_version=1,
            plan=plan,
            tools={name: spec.model_dump(mode="json") for name, spec in asked.tools.items()},
            stored_ms=tx.now_ms,
        )
    )
    tx.event(
        request.run_id,
        "run.opened",
        user=request.user,
        started_by=start["started_by"],
        verified=start["start_kid"] is not None,
        kid=start["start_kid"],
        plan=request.plan.name,
        plan_digest=digest(plan),
        gated=_gated_steps(request.plan, asked.tools),
        parent=parent.run_id if parent else None,
        linked=request.linked.run_id if request.linked else None,
        taken_over=sorted(request.linked.outputs) or None if request.linked else None,
    )
    if parent is not None:
        await run_tree.bar_with_parent(tx, request.run_id, parent.run_id, parent.step_id)


async def amend(tx: Transaction, asked: AmendRun, tools: Mapping[str, ToolSpec]) -> None:
    """Record a new version of a run's plan; doing so twice changes nothing."""
    known = await tx.one(
        select(plans.c.plan_version).where(
            plans.c.tenant_id == tx.tenant,
            plans.c.run_id == asked.run_id,
            plans.c.plan_version == asked.plan_version,
        )
    )
    if known is not None:
        return
    plan = asked.plan.model_dump(mode="json")
    await tx.execute(
        insert(plans).values(
            tenant_id=tx.tenant,
            run_id=asked.run_id,
            plan_version=asked.plan_version,
            plan=plan,
            tools={name: spec.model_dump(mode="json") for name, spec in tools.items()},
            stored_ms=tx.now_ms,
        )
    )
    tx.event(
        asked.run_id,
        "run.amended",
        plan_version=asked.plan_version,
        plan_digest=digest(plan),
        steering_id=asked.steering_id,
        gated=_gated_steps(asked.plan, tools),
    )


def _gated_steps(plan: Plan, tools: Mapping[str, ToolSpec]) -> list[str]:
    """Return the steps whose calls need an approval: an audit holds the commits against it."""
    return [
        step.id
        for step in plan.steps
        if plan.approvals(step) or (step.tool and tools[step.tool].approval is not None)
    ]


async def close_run(tx: Transaction, asked: CloseRun) -> None:
    """Record the end of a run; doing so twice changes nothing."""
    await give_back(tx, asked.run_id)
    touched = await tx.execute(
        update(runs)
        .where(
            runs.c.tenant_id == tx.tenant, runs.c.run_id == asked.run_id, runs.c.closed_ms.is_(None)
        )
        .values(state=asked.state.value, error=asked.error, closed_ms=tx.now_ms)
    )
    if not touched:
        return
    if asked.skipped:
        await tx.execute(
            insert(steps).values(
                [
                    {
                        "tenant_id": tx.tenant,
                        "run_id": asked.run_id,
                        "step_id": step_id,
                        "attempt": 0,
                        "tool": tool,
                        "state": "skipped",
                        "ended_ms": tx.now_ms,
                    }
                    for step_id, tool in asked.skipped.items()
                ]
            )
        )
    tx.event(asked.run_id, f"run.{asked.state}", error=bool(asked.error) or None)


async def set_state(tx: Transaction, run_id: str, state: str) -> None:
    """Record where an open run stands."""
    await tx.execute(
        update(runs)
        .where(runs.c.tenant_id == tx.tenant, runs.c.run_id == run_id, runs.c.closed_ms.is_(None))
        .values(state=state)
    )


async def effect_views(
    tx: Transaction, run_id: str, newest: int
) -> tuple[list[EffectView], list[EffectView], int]:
    """Return effects of a run and its child runs, those that stand, and how many are not listed.

    The newest ones, in the order of their claims.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    await require_run(tx, run_id)
    made, more = await run_tree.effects_of_tree(tx, run_id, newest)
    page = await run_tree.standing(tx, run_id, limit=newest)
    stand = sorted(page.effects, key=lambda one: (one.entry.claimed_ms, one.entry.entry_id))
    return [one.view() for one in made], [one.view() for one in stand], more


async def plan_of(tx: Transaction, run_id: str) -> dict[str, object] | None:
    """Return the plan that a run was opened with; ``None``: no such run is recorded."""
    row = await tx.one(
        select(plans.c.plan).where(
            plans.c.tenant_id == tx.tenant, plans.c.run_id == run_id, plans.c.plan_version == 1
        )
    )
    return None if row is None else dict(row["plan"])


async def require_run(tx: Transaction, run_id: str) -> None:
    """Make sure that a run is recorded.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    known = await tx.one(
        select(runs.c.run_id).where(runs.c.tenant_id == tx.tenant, runs.c.run_id == run_id)
    )
    if known is None:
        raise RunNotFound(run_id)
