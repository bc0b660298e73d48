"""What Temporal has of a run: its executions, new ones by a reset, those of its child runs."""

from __future__ import annotations

import json
import uuid

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHistory

from tests.e2e.runs import Run
from tests.e2e.stage import Stage


async def executions(stage: Stage, run: Run) -> list[WorkflowHistory]:
    found, run_id = list[WorkflowHistory](), None
    while run_id != "":
        handle = stage.client.get_workflow_handle(run.run_id, run_id=run_id)
        history = await handle.fetch_history()
        started = history.events[0].workflow_execution_started_event_attributes
        found.append(history)
        run_id = started.continued_execution_run_id
    return found[::-1]


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
        if called(event) == activity:
            nth -= 1
            if nth == 0:
                break
    begun = await reset_to(stage.client, run.run_id, task, workflow_run_id or "", again=again)
    return Run(run.run_id, stage.client.get_workflow_handle(run.run_id, run_id=begun))


def called(event: HistoryEvent) -> str:
    """Return the activity that an event begins, or of which it tells what came of it here."""
    if event.HasField("activity_task_scheduled_event_attributes"):
        return event.activity_task_scheduled_event_attributes.activity_type.name
    for payload in event.marker_recorded_event_attributes.details["data"].payloads:
        return str(json.loads(payload.data).get("activity_type", ""))
    return ""


async def reset_to(
    client: Client, run_id: str, task: int, workflow_run_id: str = "", *, again: bool = True
) -> str:
    """Have Temporal begin a run anew from a workflow task.

    Args:
        client: Knows the run.
        run_id: The run.
        task: The event with which the task ended.
        workflow_run_id: As for ``reset_before``.
        again: As for ``reset_before``.

    Returns:
        Temporal's Run Id of the new execution.
    """
    request = ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=run_id, run_id=workflow_run_id),
        reason="a test",
        request_id=str(uuid.uuid4()),
        workflow_task_finish_event_id=task,
        reset_reapply_exclude_types=[]
        if again
        else [
            ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
            ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
        ],
    )
    # It has an id: twice is once.
    reset = await client.workflow_service.reset_workflow_execution(request, retry=True)
    return reset.run_id


def inside(stage: Stage, run: Run, step_id: str = "pay") -> Run:
    """Return the run that does a step of a run."""
    run_id = f"{run.run_id}~{step_id}"
    found = Run(run_id, stage.client.get_workflow_handle(run_id))
    if found not in stage.started:
        stage.started.append(found)
    return found
