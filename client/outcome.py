"""Where a run stands and how it ended, whichever way the server tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue
from temporalio.client import (
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    TerminatedError,
)

from surehand.client.connection import (
    Connection,
    require_readable,
    understood,
)
from surehand.process.exits import (
    CutOff,
    ExitCode,
    PlanRefused,
    StartNotTaken,
    SurehandError,
)
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.tools import PlanError
from surehand.workflows.errors import ErrorType
from surehand.workflows.names import RUN_STATE
from surehand.workflows.ports import RUN_BATCH

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
    """Return the state that the run itself has noted last."""
    return run.typed_search_attributes.get(RUN_STATE, RunState.RUNNING.value)


@dataclass(frozen=True)
class Tokens:
    """The newest of what a model says in one attempt of a turn."""

    attempt: int
    """The step's."""
    before: int
    """How many characters came before."""
    text: str


@dataclass(frozen=True)
class CallProgress:
    """The newest word of each call."""

    under_way: str | None
    """The step that a batch is at."""
    by_step: dict[str, JsonValue]
    """How far calls have come, by step, in their tools' own words."""
    bytes_written: dict[str, int]
    """How much of an artifact calls have written, by step."""
    tokens: dict[str, Tokens]
    """What models say, by step."""


async def call_progress(run: WorkflowExecutionDescription) -> CallProgress:
    """Return what the calls of a run have told."""
    under_way, by_step, written = None, dict[str, JsonValue](), dict[str, int]()
    tokens = dict[str, Tokens]()
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
        if pending.activity_type.name == RUN_BATCH.name and details:
            under_way = str(details[0])
        for part in details:
            if isinstance(part, dict) and "step_id" in part:
                step_id = str(part["step_id"])
                if part.get("progress") is not None:
                    by_step[step_id] = part["progress"]
                if isinstance(part.get("bytes_written"), int):
                    written[step_id] = part["bytes_written"]
                if "tokens" in part:
                    tokens[step_id] = Tokens(**part["tokens"])
    return CallProgress(under_way, by_step, written, tokens)


def code_of(state: str) -> ExitCode:
    """Return the exit code that tells how a run ended; ``DONE`` for one that goes on."""
    if state == RunState.CANCELLED:
        return ExitCode.CANCELLED
    failed = state == RunState.FAILED or state in CUT_OFF_BY_SERVER
    return ExitCode.FAILED if failed else ExitCode.DONE


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
            return _failed(run_id, cause)
        if isinstance(cause, TerminatedError):
            why = f" ({cause.message})" if cause.message else ""
            raise CutOff(
                f"run {run_id} was terminated from outside{why}. {connection.what_to_do(run_id)}"
            ) from error
        raise CutOff(f"run {run_id} failed: {cause}") from error
    return understood(result, RunResult, f"the result of run {run_id}")


#: Ends of a run of which nothing was recorded: its id is free.
_NOT_TAKEN: Final = (
    ErrorType.START_REFUSED,
    ErrorType.QUOTA_EXCEEDED,
    ErrorType.TENANT_ELSEWHERE,
)


def _failed(run_id: str, cause: ApplicationError) -> RunResult:
    details: Any = cause.details[0] if cause.details else None
    require_readable(details, f"run {run_id} failed: {cause.message}; its result")
    if cause.type == ErrorType.RUN_FAILED and isinstance(details, Mapping):
        return RunResult.model_validate(details)
    if cause.type == ErrorType.PLAN_INVALID and isinstance(details, list):
        raise PlanRefused(run_id, [PlanError.model_validate(item) for item in details])
    if cause.type in _NOT_TAKEN:
        raise StartNotTaken(cause.message)
    if cause.type == ErrorType.RUN_ID_TAKEN:
        raise SurehandError(
            f"run id {run_id} was used before, and ids are never reused: choose another",
            code=ExitCode.WRONG_USE,
        )
    raise SurehandError(f"run {run_id} failed: {cause.message}", code=ExitCode.FAILED)
