"""What is done to a run: people make it wait, or an operator resets, terminates or redeploys it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from pathlib import Path
from typing import Any, TypeVar, assert_never

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from surehand.client.connection import Connection
from surehand.drill.consistency import count_calls
from surehand.drill.environment import Workers, write_release
from surehand.drill.judge import Played
from surehand.drill.people import AT_ITS_START, REASON, People, Principals, is_moving
from surehand.drill.report import ForcedWait, Operation
from surehand.drill.request import HELD, Disturbance
from surehand.process.exits import Refused, WrongUse
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.base import ENDED_STEPS, StepState
from surehand.workflows.contracts.effects import UnwindRun, Unwound
from surehand.workflows.contracts.runs import RunView, StepView
from surehand.workflows.contracts.steering import (
    Interrupt,
    InterruptKind,
    PauseRun,
    ResumeRun,
    Verb,
)
from surehand.workflows.contracts.tools import Batch, ToolCall
from surehand.workflows.identity import child_run_id, unwind_id
from surehand.workflows.names import UNWIND
from surehand.workflows.ports import EXECUTE_TOOLS, TAKE_TURN

T = TypeVar("T")


class Disturber:
    """Does to one run what its case is about, and takes down in ``played`` what came of it."""

    def __init__(
        self,
        disturbance: Disturbance,
        played: Played,
        connection: Connection,
        people: People,
        principals: Principals,
        workers: Workers,
    ) -> None:
        self._disturbance = disturbance
        self._target = disturbance.target
        self._played = played
        self._run_id = played.run_id
        self._connection = connection
        self._people = people
        self._principals = principals
        self._workers = workers

    async def force_wait(self, how: ForcedWait) -> None:
        """Interrupt the run and let it go on; never returns if the run does not come to it."""
        self._people.held = self._target.step
        # What is refused is not there any more, such as a run that is ending: it was not reached.
        with contextlib.suppress(Refused, WrongUse):
            match how:
                case ForcedWait.PAUSE:
                    await self._pause_run()
                case ForcedWait.APPROVAL:
                    await self._wait_for_approval()
                case ForcedWait.ASK:
                    await self._ask_human()
                case ForcedWait.PERMISSION_LOSS:
                    await self._lose_permission()
                case ForcedWait.EXPIRY:
                    await self._let_expire()
                case _:
                    assert_never(how)
        self._people.held = ""

    async def _pause_run(self) -> None:
        people, step = self._people, self._target.step
        asked = await people.wait_until(self._find_question)
        await people.steer_run(Verb.PAUSE, PauseRun(actor=people.user, reason=REASON))
        await people.answer_question(asked)
        # Approvals may be given while a run is paused: they make no call.
        people.held = ""
        if not await self._wait_until_still("pause"):
            return
        before = await self._count_calls()
        await self._workers.replace_all()
        if await self._wait_until_still("pause") and await self._count_calls() == before:
            self._played.reached = True
        else:
            self._played.violations.append(
                f"a call was made while the run was paused before {step}"
            )
        await self._resume_run()

    async def _wait_for_approval(self) -> None:
        request = await self._people.wait_until(self._find_request)
        await self._workers.replace_all()
        again = await self._people.wait_until(self._find_request)
        await self._require_no_call("its approval waited")
        if (again.approval_id, again.params_hash) != (request.approval_id, request.params_hash):
            self._played.violations.append(
                f"{again.approval_id} is asked in the place of its equal"
            )
        await self._people.approve_request(again)
        self._played.reached = True

    async def _ask_human(self) -> None:
        await self._people.wait_until(self._find_question)
        await self._workers.replace_all()
        asked = await self._people.wait_until(self._find_question)
        await self._require_no_call("its question waited")
        await self._people.answer_question(asked)
        self._played.reached = True

    async def _lose_permission(self) -> None:
        """Take the permission away while the run is paused between the approval and the call."""
        people, permission = self._people, self._target.permission
        assert permission is not None, "the request has refused it"
        request = await people.wait_until(self._find_request)
        await people.steer_run(Verb.PAUSE, PauseRun(actor=people.user, reason=REASON))
        await people.approve_request(request)
        if not await self._wait_until_still("pause"):
            return
        await self._principals.revoke(people.user, permission)
        await self._resume_run()
        if not await self._wait_until_still("loss of the permission", StepState.PAUSED_PERMISSION):
            return
        await self._require_no_call(f"{people.user} had no permission {permission}")
        self._played.reached = True
        await self._principals.grant(people.user, "permission", {permission})
        await self._resume_run()

    async def _let_expire(self) -> None:
        people = self._people
        first = await people.wait_until(self._find_request)
        people.ignored.add(first.approval_id)

        def find_next(view: RunView) -> ApprovalRequest | None:
            found = self._find_request(view)
            return found if found and found.approval_id != first.approval_id else None

        again = await people.wait_until(find_next)
        await self._require_no_call("nobody had approved it")
        await people.approve_request(again)
        self._played.reached = True

    async def _wait_until_still(self, why: str, state: StepState = StepState.PAUSED_USER) -> bool:
        """Wait until the step stands still, and nothing else moves; say if it does not."""

        def find_rest(view: RunView) -> StepState | None:
            found = self._find_step(view).state
            rests = found in ENDED_STEPS or (found is state and not is_moving(view))
            return found if rests else None

        found = await self._people.wait_until(find_rest)
        if found is not state:
            self._played.violations.append(f"{self._target.step} is {found} in spite of the {why}")
        return found is state

    async def _resume_run(self) -> None:
        await self._people.steer_run(Verb.RESUME, ResumeRun(actor=self._people.user, reason=REASON))

    async def _count_calls(self, step_id: str | None = None) -> int:
        return count_calls(await self._principals.read_evidence(self._run_id), step_id)

    async def _require_no_call(self, while_: str) -> None:
        if await self._count_calls(self._target.step):
            self._played.violations.append(f"{self._target.step} was called while {while_}")

    def _find_step(self, view: RunView) -> StepView:
        return next(step for step in view.result.steps if step.id == self._target.step)

    def _find_request(self, view: RunView) -> ApprovalRequest | None:
        return next((one for one in view.pending if one.step_id == self._target.step), None)

    def _find_question(self, view: RunView) -> Interrupt | None:
        waiting = (one for one in view.interrupts if one.step_id == self._target.step)
        return next((one for one in waiting if one.kind in AT_ITS_START), None)

    async def operate_run(self, how: Operation, folder: Path, tool_modules: str) -> None:
        """Do what an operator does; never returns if the run does not come to the place."""
        # What is refused is not there any more, such as a run that is ending: it was not reached.
        with contextlib.suppress(Refused, WrongUse):
            if how.crash_point is None:
                await self._wait_behind_step()
            else:
                await self._people.attend_until_done(self._workers.wait_for_death())
            match how:
                case Operation.RESET | Operation.RESET_STEP:
                    await self._reset_here(how)
                case Operation.RESET_KILLED:
                    await self._reset_here(how)
                    await self._workers.start()
                case Operation.FREEZE:
                    await self._workers.start()
                case Operation.TERMINATE:
                    await self._connection.handle(self._run_id).terminate(REASON)
                    await self._unwind_run()
                case Operation.DEPLOY:
                    release = await asyncio.to_thread(write_release, folder, tool_modules)
                    await self._workers.start(changes=release)
                case _:
                    assert_never(how)
            self._played.reached = True

    async def _wait_behind_step(self) -> None:
        people = self._people
        people.held = held = self._disturbance.held
        if held != HELD:
            people.held_at = frozenset({InterruptKind.AFTER})
        await people.wait_until(
            lambda view: (
                any(one.step_id == held and one.kind in people.held_at for one in view.interrupts)
                or None
            )
        )

    async def _reset_here(self, how: Operation) -> None:
        with self._connection.translated(self._run_id):
            await reset_run(self._connection.client, self._run_id, how, self._target.step)
        self._people.forget_answers()

    async def _unwind_run(self) -> None:
        settings = self._connection.settings
        asked = UnwindRun(tenant=settings.tenant, run_id=self._run_id, actor=self._people.user)
        try:
            self._played.unwound = await self._connection.client.execute_workflow(
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
            why = f"a run that was terminated is not unwound: {cause.message}"
            self._played.violations.append(why)


async def decode(client: Client, payloads: Any, model: type[T]) -> T:
    [value] = await client.data_converter.decode(payloads, [model])
    found: T = value
    return found


async def reset_run(client: Client, run_id: str, how: Operation, step: str) -> None:
    """Have Temporal reset a run to a workflow task; what the run was sent is sent again.

    RESET goes to its first one, RESET_STEP to the one that began the step, others to its last.
    """
    first = last = before = begun = 0
    async for event in client.get_workflow_handle(run_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last, first = event.event_id, first or event.event_id
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            begun = begun or event.event_id
        elif not before and await _begins_step(client, run_id, event, step):
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


async def _begins_step(client: Client, run_id: str, event: HistoryEvent, step: str) -> bool:
    """Say whether an event begins a step: its call, the batch with it, or its child run."""
    match event.event_type:
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes.workflow_id
            return child == child_run_id(run_id, step)
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            name, payloads = scheduled.activity_type.name, scheduled.input.payloads
            if name == TAKE_TURN.name:
                return (await decode(client, payloads, ToolCall)).step_id == step
            if name == EXECUTE_TOOLS.name:
                batch = await decode(client, payloads, Batch)
                return step in {batch.first.step_id, *(one.id for one in batch.following)}
        case EventType.EVENT_TYPE_MARKER_RECORDED:
            # A local activity: its id says whose call it is.
            for payload in event.marker_recorded_event_attributes.details["data"].payloads:
                local = json.loads(payload.data)
                return str(local.get("activity_id", "")).rpartition(":")[0] == step
    return False
