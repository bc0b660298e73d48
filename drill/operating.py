"""Does to one run, or to its workers, what an operator does, once a step has had its effect."""

from __future__ import annotations

import contextlib
import json
import uuid

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from surehand.client.connection import Connection
from surehand.drill.disturbance import HELD, Disturbance
from surehand.drill.observer import CALLS, decoded
from surehand.drill.people import REASON, People
from surehand.drill.points import Operation
from surehand.drill.workers import Workers
from surehand.process.exits import Refused, WrongUse
from surehand.workflows.contracts.batches import Batch
from surehand.workflows.contracts.interrupts import InterruptKind
from surehand.workflows.contracts.maintenance import UnwindRun, Unwound
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.identity import child_run_id, unwind_id
from surehand.workflows.names import UNWIND
from surehand.workflows.ports import RUN_BATCH


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
    first = last = before = begun = 0
    async for event in client.get_workflow_handle(run_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last, first = event.event_id, first or event.event_id
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            begun = begun or event.event_id
        elif not before and await _begins(client, run_id, event, step):
            before = last
    # A worker may have died in the run's first task.
    task = {Operation.RESET: first, Operation.RESET_STEP: before}.get(how, last or begun)
    if not task:
        raise WrongUse(f"run {run_id} has not come to {step}")
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id),
            reason="a drill",
            request_id=str(uuid.uuid4()),
            workflow_task_finish_event_id=task,
        ),
        retry=True,  # it has an id: twice is once
    )


async def _begins(client: Client, run_id: str, event: HistoryEvent, step: str) -> bool:
    """Say whether an event begins a step: its call, the batch with it, or its child run."""
    match event.event_type:
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes.workflow_id
            return child == child_run_id(run_id, step)
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            name, payloads = scheduled.activity_type.name, scheduled.input.payloads
            if name in CALLS:
                call = await decoded(client, payloads, ToolCall)
                return call.step_id == step
            if name == RUN_BATCH.name:
                batch = await decoded(client, payloads, Batch)
                return step in {batch.first.step_id, *(one.id for one in batch.following)}
        case EventType.EVENT_TYPE_MARKER_RECORDED:
            # A local activity: its id says whose call it is.
            for payload in event.marker_recorded_event_attributes.details["data"].payloads:
                local = json.loads(payload.data)
                return str(local.get("activity_id", "")).rpartition(":")[0] == step
    return False


class Operating:
    """One operation: waits for its place, and does it."""

    def __init__(
        self,
        disturbance: Disturbance,
        run_id: str,
        connection: Connection,
        people: People,
        workers: Workers,
        release: dict[str, str],
    ) -> None:
        """Prepare an operation.

        Args:
            disturbance: What is done, and where.
            run_id: The run.
            connection: Where it runs.
            people: They leave the run waiting at the place.
            workers: Its workers, of whom one is alive.
            release: The settings of workers after a deploy.
        """
        assert disturbance.operation is not None
        self._disturbance = disturbance
        self._how = disturbance.operation
        self._target = disturbance.target
        self._run_id = run_id
        self._connection = connection
        self._people = people
        self._workers = workers
        self._release = release
        self.reached = False
        """Whether it was done."""
        self.unwound: Unwound | None = None
        self.violations: list[str] = []

    async def run(self) -> None:
        """Do it; never returns if the run does not come to the place."""
        # What is refused is not there any more, such as a run that is ending: it was not reached.
        with contextlib.suppress(Refused, WrongUse):
            if self._how.crash_point is None:
                await self._waits()
            else:
                await self._people.while_(self._workers.death())
            await self._do()
            self.reached = True

    async def _waits(self) -> None:
        """Wait until the step is done and the run waits behind it."""
        self._people.held = held = self._disturbance.held
        if held != HELD:
            self._people.held_at = frozenset({InterruptKind.AFTER})
        await self._people.until(
            lambda view: (
                any(
                    one.step_id == held and one.kind in self._people.held_at
                    for one in view.interrupts
                )
                or None
            )
        )

    async def _do(self) -> None:
        match self._how:
            case Operation.RESET | Operation.RESET_STEP:
                await self._reset()
            case Operation.RESET_KILLED:
                await self._reset()
                await self._workers.start()
            case Operation.FREEZE:
                await self._workers.start()
            case Operation.TERMINATE:
                await self._connection.handle(self._run_id).terminate(REASON)
                await self._unwind()
            case Operation.DEPLOY:
                await self._workers.start(changes=self._release)

    async def _reset(self) -> None:
        with self._connection.translated(self._run_id):
            await reset(self._connection.client, self._run_id, self._how, self._target.step)
        self._people.begin_anew()

    async def _unwind(self) -> None:
        settings = self._connection.settings
        asked = UnwindRun(tenant=settings.tenant, run_id=self._run_id, actor=self._people.user)
        try:
            self.unwound = await self._connection.client.execute_workflow(
                UNWIND,
                asked,
                id=unwind_id(self._run_id),
                task_queue=settings.task_queue,
                result_type=Unwound,
            )
        except WorkflowFailureError as error:
            cause = error.cause.__cause__ if error.cause else None
            if not isinstance(cause, ApplicationError):
                raise
            self.violations.append(f"a run that was terminated is not unwound: {cause.message}")
