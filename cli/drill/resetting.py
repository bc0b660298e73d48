"""Where in its history a run is reset to, and the reset."""

from __future__ import annotations

import json
import uuid
from typing import Any, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from cli.drill.points import Operation
from cli.exits import WrongUse
from workflows.contracts import Stretch, ToolCall
from workflows.identity import child_run_id
from workflows.ports import EXECUTE_TOOL, RUN_STRETCH

T = TypeVar("T")


async def reset(client: Client, run_id: str, how: Operation, step: str) -> None:
    """Have Temporal begin a run anew at one of its workflow tasks; what it was sent is sent again.

    Args:
        client: Of the server where it runs.
        run_id: The run.
        how: To its first workflow task, to the one that has begun the step, or to its last.
        step: The step.

    Raises:
        WrongUse: The run has not come to the step.
        RPCError: The server does not do it.
    """
    first = last = before = 0
    async for event in client.get_workflow_handle(run_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last, first = event.event_id, first or event.event_id
        elif not before and await _begins(client, run_id, event, step):
            before = last
    task = {Operation.RESET: first, Operation.RESET_STEP: before}.get(how, last)
    if not task:
        raise WrongUse(f"run {run_id} has not come to {step}")
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id),
            reason="a drill",
            request_id=str(uuid.uuid4()),
            workflow_task_finish_event_id=task,
        )
    )


async def _begins(client: Client, run_id: str, event: HistoryEvent, step: str) -> bool:
    """Say whether an event begins a step: its call, the stretch with it, or its child run."""
    match event.event_type:
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes.workflow_id
            return child == child_run_id(run_id, step)
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            name, payloads = scheduled.activity_type.name, scheduled.input.payloads
            if name == EXECUTE_TOOL.name:
                call = await _decoded(client, payloads, ToolCall)
                return call.step_id == step
            if name == RUN_STRETCH.name:
                stretch = await _decoded(client, payloads, Stretch)
                return step in {stretch.first.step_id, *(one.id for one in stretch.following)}
        case EventType.EVENT_TYPE_MARKER_RECORDED:
            # A local activity: its id says whose call it is.
            for payload in event.marker_recorded_event_attributes.details["data"].payloads:
                local = json.loads(payload.data)
                return str(local.get("activity_id", "")).rpartition(":")[0] == step
    return False


async def _decoded(client: Client, payloads: Any, model: type[T]) -> T:
    [value] = await client.data_converter.decode(payloads, [model])
    found: T = value
    return found
