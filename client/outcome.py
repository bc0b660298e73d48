"""Where a run stands, how it ended, and waiting for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from pydantic import JsonValue
from temporalio.client import (
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError

from surehand.client.connection import ENDS, Connection, require_readable, understood
from surehand.process import exits
from surehand.workflows.contracts.base import ENDED, RunState, StepState, WaitKind
from surehand.workflows.contracts.runs import RunResult, RunView
from surehand.workflows.contracts.tools import WAITS_FOR
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.references import PlanError
from surehand.workflows.ports import EXECUTE_TOOLS, OPEN_RUN, RUN_STATE

#: States in which only a person moves a run on.
FOR_PEOPLE: Final = tuple(RunState(kind.step_state) for kind in WaitKind if kind.needs_human)
#: Ends that a run has no say in: nothing was undone, and it cannot tell.
CUT_OFF_BY_SERVER: Final = frozenset({"terminated", "timed_out"})

#: A run that ended without its own last word: its search attribute tells an older story.
_LAST_WORD_OF_SERVER: Final = {
    WorkflowExecutionStatus.FAILED: RunState.FAILED.value,
    WorkflowExecutionStatus.CANCELED: RunState.CANCELLED.value,
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


def state_of(run: WorkflowExecution) -> str:
    """Return where a run stands, as the server knows it; needs no worker."""
    if run.status in _LAST_WORD_OF_SERVER:
        return _LAST_WORD_OF_SERVER[run.status]
    return last_own_state(run)


def last_own_state(run: WorkflowExecution) -> str:
    return run.typed_search_attributes.get(RUN_STATE, RunState.RUNNING.value)


@dataclass(frozen=True)
class CallProgress:
    """The newest word of each call."""

    under_way: str | None
    """The step that a batch is at."""
    by_step: dict[str, JsonValue]
    """How far calls have come, by step, in their tools' own words."""
    bytes_written: dict[str, int]
    """How much of an artifact calls have written, by step."""


async def call_progress(run: WorkflowExecutionDescription) -> CallProgress:
    under_way, by_step, written = None, dict[str, JsonValue](), dict[str, int]()
    for pending in run.raw_description.pending_activities:
        # The converter is one of the workflow's own payloads, and these are an activity's.
        converter = run.data_converter.with_context(
            ActivitySerializationContext(
                namespace=run.namespace or "",
                activity_id=pending.activity_id,
                activity_type=pending.activity_type.name,
                activity_task_queue=None,
                workflow_id=run.id,
                workflow_type=run.workflow_type,
                is_local=False,
            )
        )
        details = await converter.decode(pending.heartbeat_details.payloads)
        if pending.activity_type.name == EXECUTE_TOOLS.name and details:
            text = str(details[0])
            under_way = under_way if text.startswith(WAITS_FOR) else text or under_way
        for part in details:
            if isinstance(part, dict) and "step_id" in part:
                step_id = str(part["step_id"])
                if part.get("progress") is not None:
                    by_step[step_id] = part["progress"]
                if isinstance(part.get("bytes_written"), int):
                    written[step_id] = part["bytes_written"]
    return CallProgress(under_way, by_step, written)


def code_of(state: str, going: exits.ExitCode) -> exits.ExitCode:
    """Return the exit code that tells how a run ended; ``going`` for one that goes on."""
    match state:
        case RunState.COMPLETED:
            return exits.ExitCode.DONE
        case RunState.CANCELLED:
            return exits.ExitCode.CANCELLED
        case RunState.FAILED:
            return exits.ExitCode.FAILED
    return exits.ExitCode.FAILED if state in CUT_OFF_BY_SERVER else going


async def run_result(connection: Connection, run_id: str) -> RunResult:
    """Wait for the run's end and return its result, also when it failed or was cancelled.

    Raises:
        PlanRefused: The plan does not fit the tools; ``file`` is the run id.
        StartNotTaken: The worker did not open it.
        OutOfReach: The result is larger than what this starter can fetch.
        CutOff: It ended without a result: the server has ended it.
        SurehandError: Its id was used before.
        RPCError: The server does not answer; ``Connection.translated`` says it in a line.
    """
    try:
        result = await connection.handle(run_id).result()
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, CancelledError):
            return (await connection.view(run_id)).result
        if isinstance(cause, ApplicationError):
            return _failure_of(run_id, cause)
        if isinstance(cause, TerminatedError):
            why = f" ({cause.message})" if cause.message else ""
            raise exits.CutOff(
                f"run {run_id} was terminated from outside{why}. {connection.what_to_do(run_id)}"
            ) from error
        raise exits.CutOff(f"run {run_id} failed: {cause}") from error
    return understood(result, RunResult, f"the result of run {run_id}")


#: Ends of a run of which nothing was recorded: its id is free.
_NOT_TAKEN: Final = (ErrorType.START_REFUSED, ErrorType.QUOTA_EXCEEDED, ErrorType.TENANT_ELSEWHERE)


def _failure_of(run_id: str, cause: ApplicationError) -> RunResult:
    details: Any = cause.details[0] if cause.details else None
    require_readable(details, f"run {run_id} failed: {cause.message}; its result")
    if cause.type == ErrorType.RUN_FAILED and isinstance(details, Mapping):
        return RunResult.model_validate(details)
    if cause.type == ErrorType.PLAN_INVALID and isinstance(details, list):
        raise exits.PlanRefused(run_id, [PlanError.model_validate(item) for item in details])
    if cause.type in _NOT_TAKEN:
        raise exits.StartNotTaken(cause.message)
    if cause.type == ErrorType.RUN_ID_TAKEN:
        raise exits.SurehandError(
            f"run id {run_id} was used before, and ids are never reused: choose another",
            code=exits.ExitCode.WRONG_USE,
        )
    raise exits.SurehandError(f"run {run_id} failed: {cause.message}", code=exits.ExitCode.FAILED)


#: A worker that polls takes a run up within milliseconds and has validated its plan within a
#: second; after this long there is none, and the run waits for one.
TAKEN_UP_WITHIN: Final = timedelta(seconds=10)

#: The first thing that a run does, and the last one before its first step.
_OPENS: Final = OPEN_RUN.name
#: What the SDK calls the event of a local activity.
_LOCAL: Final = "core_local_activity"


async def wait_taken_up(connection: Connection, run_id: str) -> bool:
    """Wait until the run's own validation has passed; ``False`` if no worker takes it up.

    Read from the history, which needs no worker.
    """
    handle, opening = connection.handle(run_id), 0
    try:
        async with asyncio.timeout(TAKEN_UP_WITHIN.total_seconds()):
            with connection.translated(run_id):
                async for event in handle.fetch_history_events(wait_new_event=True):
                    if event.workflow_execution_started_event_attributes.continued_execution_run_id:
                        return True
                    if event.event_type in ENDS:
                        await run_result(connection, run_id)
                        return True
                    here = event.marker_recorded_event_attributes
                    if here.marker_name == _LOCAL and not here.HasField("failure"):
                        return True
                    if event.activity_task_scheduled_event_attributes.activity_type.name == _OPENS:
                        opening = event.event_id
                    ended = event.activity_task_completed_event_attributes.scheduled_event_id
                    if opening and ended == opening:
                        return True
    except TimeoutError:
        pass
    return False


#: Seconds between looks: quick while steps move, calmer in a wait that can take days.
FIRST_PAUSE: Final = 0.3
LONGEST_PAUSE: Final = 2.0
PAUSE_GROWTH: Final = 1.3

#: One look. A worker answers in milliseconds; after a crash, another one within 2 s.
LOOK_LIMIT: Final = timedelta(seconds=5)

#: A server that is restarted is back within seconds; after this long somebody has to see to it.
SERVER_PATIENCE: Final = timedelta(seconds=60)


class Watch(Protocol):
    """Is told of a run while it goes on."""

    def show(self, view: RunView) -> None:
        """Take where the run stands now."""

    def note(self, text: str) -> None:
        """Take why nothing moves."""


async def until_settled(
    connection: Connection, run_id: str, watch: Watch | None = None, *, stay: bool
) -> RunResult:
    ended = asyncio.create_task(_wait_for_end(connection, run_id))
    pause, asked_before, silent_since = FIRST_PAUSE, "", time.monotonic()
    try:
        while True:
            viewing = asyncio.create_task(connection.view(run_id, LOOK_LIMIT))
            try:
                await asyncio.wait({ended, viewing}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return ended.result()
                view = viewing.result()
            except exits.NeverTakenUp:
                return await ended  # how it has ended is on its way
            except exits.TaskFails as error:
                silent_since = time.monotonic()
                _tell_watch(watch, str(error))
            except exits.NoWorker:
                silent_since = time.monotonic()
                _tell_watch(watch, f"No worker answers; {run_id} is safe, and waits for one")
            except exits.NotReachable as error:
                if time.monotonic() - silent_since > SERVER_PATIENCE.total_seconds():
                    raise
                _tell_watch(watch, str(error))
            except exits.OutOfReach as error:
                if ended.done():
                    raise
                silent_since = time.monotonic()
                _tell_watch(watch, str(error))
                state = state_of(await connection.describe(run_id))
                if not stay and state in (*FOR_PEOPLE, RunState.WAITING_EVENT):
                    raise
            else:
                silent_since = time.monotonic()
                if watch is not None:
                    watch.show(view)
                asked = " ".join(item.id for item in view.result.waiting_for)
                if view.result.state is RunState.NEEDS_INTERVENTION:
                    # Also when there is no question that could be answered: a lost ledger.
                    asked = asked or view.result.error or ""
                # Seen twice: a decision that came early is being looked at in the meantime.
                if asked and asked == asked_before and not stay and _needs_human(view):
                    return view.result
                pause = pause if asked == asked_before else FIRST_PAUSE
                asked_before = asked
            finally:
                viewing.cancel()
            await asyncio.wait({ended}, timeout=pause)
            pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE)
    finally:
        ended.cancel()


def _tell_watch(watch: Watch | None, text: str) -> None:
    if watch is not None:
        watch.note(text)


def _needs_human(view: RunView) -> bool:
    result = view.result
    if result.state is RunState.NEEDS_INTERVENTION:
        return True
    # A list is under way as long as its items are, whatever they wait for.
    running = [step.id for step in result.steps if step.state is StepState.RUNNING]
    moving = any(step_id not in view.plan.lists for step_id in running)
    return result.state not in ENDED and not moving


async def until_ended(connection: Connection, run_id: str) -> RunResult:
    """Wait for the end; no worker is asked for anything in the meantime."""
    await connection.describe(run_id)
    silent_since: float | None = None
    while True:
        try:
            return await run_result(connection, run_id)
        except (RPCError, exits.NotReachable):
            silent_since = silent_since or time.monotonic()
        await asyncio.sleep(LONGEST_PAUSE)
        try:
            await connection.describe(run_id)
        except exits.NotReachable:
            if time.monotonic() - silent_since > SERVER_PATIENCE.total_seconds():
                raise
        else:
            silent_since = None


async def _wait_for_end(connection: Connection, run_id: str) -> RunResult:
    """Return the result; a server that is away is asked again until the caller gives up."""
    while True:
        try:
            return await run_result(connection, run_id)
        except (RPCError, exits.NotReachable):
            await asyncio.sleep(LONGEST_PAUSE)
