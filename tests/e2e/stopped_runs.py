"""Runs that Temporal has ended, and what reconciles and unwinds them."""

from __future__ import annotations

import uuid
from typing import Any

from surehand.workflows.contracts.effects import Reconciled, ReconcileLedger, UnwindRun, Unwound
from surehand.workflows.identity import unwind_id
from surehand.workflows.maintenance import Reconcile, Unwind
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, decision_on, failing_plan
from tests.e2e.stage import Stage


async def terminated(stage: Stage, order_id: str) -> Run:
    """Return a run that was terminated after its refund and restock, before a last approval."""
    steps = failing_plan(order_id).model_dump(mode="json")
    steps["steps"][-1]["approval"] = "required"
    run = await stage.start(Plan.model_validate(steps))
    await run.decide(decision_on(await run.asks("refund")))
    await run.asks("close")
    await run.handle.terminate("by hand")
    return run


async def reconciled(stage: Stage) -> Reconciled:
    return await stage.client.execute_workflow(
        Reconcile.run,
        ReconcileLedger(tenant="default"),
        id=f"reconcile-{uuid.uuid4().hex}",
        task_queue=stage.task_queue,
    )


async def until_found(stage: Stage, run: Run) -> list[Any]:
    """Reconcile until the server's list, which lags a little, has shown the terminated run."""
    while True:
        found = [one for one in (await reconciled(stage)).stopped if one.run_id == run.run_id]
        if found:
            return found


async def unwind(stage: Stage, run: Run, **how: Any) -> Unwound:
    asked = UnwindRun(tenant="default", run_id=run.run_id, actor="oscar", **how)
    return await stage.client.execute_workflow(
        Unwind.run, asked, id=unwind_id(run.run_id), task_queue=stage.task_queue
    )
