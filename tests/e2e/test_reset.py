"""Guarantee G1 across Temporal's own reset: what the ledger has recorded is not made again."""

from __future__ import annotations

import uuid

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from tests.e2e.runs import Run, example_plan, step
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES
from workflows.contracts import RunState


async def reset_before(
    stage: Stage, run: Run, activity: str, nth: int, workflow_run_id: str | None = None
) -> Run:
    """Have Temporal begin a run anew right before the n-th call of an activity.

    Args:
        stage: The stage.
        run: The run.
        activity: The activity.
        nth: Counts from 1.
        workflow_run_id: Which execution of the run, if not its newest.
    """
    task, handle = 0, stage.client.get_workflow_handle(run.run_id, run_id=workflow_run_id)
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            task = event.event_id
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == activity:
            nth -= 1
            if nth == 0:
                break
    reset = await stage.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=stage.client.namespace,
            workflow_execution=WorkflowExecution(
                workflow_id=run.run_id, run_id=workflow_run_id or ""
            ),
            reason="a drill",
            request_id=str(uuid.uuid4()),
            workflow_task_finish_event_id=task,
        )
    )
    return Run(run.run_id, stage.client.get_workflow_handle(run.run_id, run_id=reset.run_id))


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(
    ("activity", "nth"),
    # Reads are calls, too: the third one is the refund, the fifth one the mail.
    [("request_approval", 1), ("execute_tool", 3), ("execute_tool", 5)],
    ids=["before asking", "before the refund", "before the mail"],
)
async def test_a_run_that_is_reset_repeats_no_effect_and_asks_nobody_again(
    stage: Stage, order_id: str, activity: str, nth: int
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        first = await run.result()
        again = await reset_before(stage, run, activity, nth)
        result = await again.result()

    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)
    assert step(result, "refund").output == step(first, "refund").output
    assert step(result, "mail").replayed
    assert len(await stage.approval_rows(run)) == 1
    assert result.uncompensated == []


async def test_a_run_that_has_undone_its_effects_does_not_make_them_when_it_is_reset(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        await run.result()
        again = await reset_before(stage, run, "execute_tool", 3)
        result = await again.result()

    assert result.state is RunState.FAILED
    assert "undone" in (step(result, "refund").error or "")
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)
    assert (counts["restocks"], counts["restock_undos"]) == (1, 1)
