"""Guarantee G1 across Temporal's own reset: what the ledger has recorded is not made again."""

from __future__ import annotations

import uuid

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetActivityRequest, ResetWorkflowExecutionRequest

from surehand.activities.ledger.steps.batches import Holding
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, example_plan, step, until
from tests.e2e.stage import Stage
from tests.e2e.test_answers import mail_step
from tests.ledger_databases import DATABASES

pytestmark = pytest.mark.guarantee("G1")


async def reset_before(
    stage: Stage,
    run: Run,
    activity: str,
    nth: int,
    workflow_run_id: str | None = None,
    *,
    again: bool = True,
) -> Run:
    """Have Temporal begin a run anew right before the n-th call of an activity.

    Args:
        stage: The stage.
        run: The run.
        activity: The activity.
        nth: Counts from 1.
        workflow_run_id: Which execution of the run, if not its newest.
        again: Whether the new execution is sent what the run was sent since, as it usually is.
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
            reset_reapply_exclude_types=[]
            if again
            else [
                ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
                ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
            ],
        ),
        retry=True,  # it has an id: twice is once
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
    assert len(stage.approval_rows(run)) == 1
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


async def attempts(run: Run) -> int:
    """Return at which attempt the call is that is under way."""
    pending = (await run.handle.describe()).raw_description.pending_activities
    return max((one.attempt for one in pending), default=0)


def scheduled(stage: Stage, run: Run) -> int:
    """Return when the attempt was scheduled that holds the run's batch."""
    [row] = stage.run_rows(run)
    return Holding.of(row["batch"]).scheduled_ms


@pytest.mark.parametrize("how", ["the run", "the activity"])
async def test_a_batch_that_is_reset_while_it_is_tried_again_goes_on(
    stage: Stage, order_id: str, how: str
) -> None:
    stage.shop.fault("mails", fail="before", status=503)
    steps = [mail_step(order_id, kind) for kind in ("first", "second")]
    async with stage.worker_here():
        run = await stage.start(Plan.model_validate(steps), durability="exit")
        await until(lambda: attempts(run), lambda number: number >= 3)
        began = scheduled(stage, run)
        # Of a later attempt: by that, one that is late is known.
        await until(lambda: scheduled(stage, run), lambda at: at > began)
        stage.shop.clear_faults()
        if how == "the run":
            # To where the batch was under way already: what it was given has the old run's id.
            await run.handle.signal("decide", "nonsense")
            await run.until(lambda view: bool(view.refused_signals or view.verdicts))
            run = await reset_before(stage, run, "verify_decision", 1)
        else:
            pending = (await run.handle.describe()).raw_description.pending_activities
            await stage.client.workflow_service.reset_activity(
                ResetActivityRequest(
                    namespace=stage.client.namespace,
                    execution=WorkflowExecution(workflow_id=run.run_id),
                    id=pending[0].activity_id,
                )
            )
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["mails"] == 2
