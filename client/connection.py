"""The starter's only way to runs: every call is for one tenant, every failure is one line."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

import temporalio.client
from pydantic import BaseModel
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, TaskQueueType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskFailedEventAttributes
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    DescribeTaskQueueRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, FailureError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from surehand.process import exits
from surehand.process.connect import DEFAULT_NAMESPACE, EMBEDDED, Target
from surehand.process.program import command
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import as_unreadable
from surehand.workflows.contracts.effects import UnwindRun, Unwound
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.identity import DEFAULT_TENANT, unwind_id, upkeep_id
from surehand.workflows.names import CHECKPOINT, PING, UNWIND, VIEW, WORKFLOW, ErrorType
from surehand.workflows.payload_codec import (
    KeyErased,
    KeyUnavailable,
    NotDecrypted,
    StoreUnavailable,
)
from surehand.workflows.plain_text import plain, plain_line
from surehand.workflows.ports import IS_RUN, RUN_STATE, TENANT

#: A worker that was killed is replaced within seconds; longer than this, none is there.
ANSWER_TIME: Final = timedelta(seconds=15)

#: A worker asks for work again at least so often: one that has not for longer is gone.
LONGEST_POLL: Final = timedelta(seconds=70)

#: Silence beyond this makes people wonder: then it is said what is waited for.
SAID_AFTER: Final = timedelta(seconds=2)

#: Ends that a run has no say in: nothing was undone, and it cannot tell.
_CUT_OFF: Final = {
    WorkflowExecutionStatus.TERMINATED: "was terminated from outside",
    WorkflowExecutionStatus.TIMED_OUT: "was timed out by the server",
}

#: Events among which the newest workflow task is looked for: behind it, what was sent meanwhile.
_NEWEST: Final = 100
#: Ends of workflow tasks that say nothing of the run's code.
_NO_MISTAKE: Final = frozenset(
    {
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    }
)
#: What the SDK says of arguments that are not what a workflow takes.
_NOT_TAKEN: Final = "Failed decoding arguments"
#: Characters of what is told of it; all of it is in the run's history.
_LONGEST_REASON: Final = 500
_PLACE: Final = re.compile(r'File "([^"]+)", line (\d+)')
#: Whose lines do not say where the mistake is.
_OF_ENGINE: Final = re.compile(r"[/\\]temporalio[/\\]|^<")

#: A worker answers within milliseconds, a busy one or one that has just taken over within seconds.
PING_LIMIT: Final = timedelta(seconds=5)

Message = TypeVar("Message", bound=BaseModel)


@dataclass(frozen=True)
class Polling:
    """Whose workers poll a task queue, as the server knows it; it counts dead ones for minutes."""

    current: str
    """Build id of the version that new runs begin on; empty: workers without one take them."""
    seen: list[str]
    """Build ids of the workers that have polled within minutes; empty for those without one."""
    newest: datetime | None
    """When one has asked for work last."""


class Connection:
    """Runs of one tenant on one server."""

    def __init__(
        self,
        client: Client,
        target: Target,
        settings: ClientSettings,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Make a client; ``tell`` prints a line to whoever waits."""
        self._tell = tell
        self._told = False
        self.client = client
        self.target = target
        self.settings = settings

    def handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        """Return the handle of a run; what it returns is to be ``understood``."""
        return self.client.get_workflow_handle(run_id)

    def web_ui(self, run_id: str) -> str:
        namespace = quote(self.target.namespace, safe="")
        return f"{self.settings.ui_url}/namespaces/{namespace}/workflows/{quote(run_id, safe='')}"

    def temporal_options(self) -> list[str]:
        """Return what the plain Temporal CLI needs to reach the same server."""
        options = []
        if self.target.address not in EMBEDDED:
            options += ["--address", self.target.address]
        if self.target.namespace != DEFAULT_NAMESPACE:
            options += ["--namespace", self.target.namespace]
        return options

    async def describe(self, run_id: str) -> WorkflowExecutionDescription:
        """Return what the server knows about a run; needs no worker."""
        with self.translated(run_id):
            found = await self.handle(run_id).describe()
        attributes = found.typed_search_attributes
        # A run of code has a type of its own; one of a plan may not have begun yet.
        is_run = found.workflow_type == WORKFLOW or attributes.get(RUN_STATE) is not None
        if not is_run or attributes.get(TENANT) not in (None, self.settings.tenant):
            raise exits.NoSuchRun(f"run not found: {run_id}")
        return found

    async def task_failure(self, run: WorkflowExecutionDescription) -> str | None:
        """Return in one line why a run's newest workflow task has failed; ``None``: it has not."""
        asked = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self.client.namespace,
            execution=WorkflowExecution(workflow_id=run.id, run_id=run.run_id),
            maximum_page_size=_NEWEST,
        )
        service = self.client.workflow_service
        with self.translated(run.id):
            found = await service.get_workflow_execution_history_reverse(asked)
        asks_for_another = False
        for event in found.history.events:
            match event.event_type:
                case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                    failed = event.workflow_task_failed_event_attributes
                    if failed.cause not in _NO_MISTAKE:
                        return await self._reason_of(failed)
                case EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
                    asks_for_another = True
                case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED if asks_for_another:
                    pass  # a task that takes long, or that has answered a query, gets nowhere yet
                case (
                    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
                    | EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT
                ):
                    pass
                case _:
                    return None
        return None

    async def stuck(self, run: WorkflowExecutionDescription) -> str | None:
        """Return in one line that a run's workflow task fails, and why; ``None``: it does not."""
        why = await self.task_failure(run)
        if why is None:
            return None
        return (
            f"run {run.id} does not go on: its workflow task fails: {why}; it is tried again"
            f" until a worker (task queue {run.task_queue}) gets through it"
        )

    async def _reason_of(self, failed: WorkflowTaskFailedEventAttributes) -> str:
        error = await self.client.data_converter.decode_failure(failed.failure)
        known = error.failure if isinstance(error, FailureError) else None
        stack = (known or failed.failure).stack_trace
        places = [place for place in _PLACE.findall(stack) if not _OF_ENGINE.search(place[0])]
        where = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
        if str(error).endswith(_NOT_TAKEN) and error.__cause__ is not None:
            error = error.__cause__  # which says what is wrong with it
        return plain_line(error, _LONGEST_REASON) + plain(where)

    async def open_run(self, run_id: str) -> WorkflowExecutionDescription:
        """Return what the server knows about a run that has not ended; needs no worker."""
        found = await self.describe(run_id)
        if found.status is not WorkflowExecutionStatus.RUNNING:
            raise exits.WrongUse(self._end_of(found))
        return found

    async def view(self, run_id: str, limit: timedelta | None = None) -> RunView:
        answer = await self._query_run(run_id, VIEW, limit)
        view = understood(answer, RunView, f"the view of run {run_id}")
        if view.tenant != self.settings.tenant:
            raise exits.NoSuchRun(f"run not found: {run_id}")
        return view

    async def require_answer(self, run_id: str) -> None:
        """Look whether a worker answers for a run, whatever it says."""
        with suppress(exits.OutOfReach):
            await self.view(run_id)

    async def checkpoint(self, run_id: str) -> dict[str, Any]:
        document: dict[str, Any] = await self._query_run(run_id, CHECKPOINT)
        require_readable(document, f"the checkpoint of run {run_id}")
        return document

    async def _query_run(self, run_id: str, name: str, limit: timedelta | None = None) -> Any:
        within = limit or ANSWER_TIME
        async with self._by_worker(run_id, within):
            return await self.handle(run_id).query(name, rpc_timeout=within)

    async def update(
        self, run_id: str, name: str, message: BaseModel, answer: type[Message]
    ) -> Message:
        async with self._by_worker(run_id, ANSWER_TIME):
            result: Message = await self.handle(run_id).execute_update(
                name, message, result_type=answer
            )
        return result

    async def signal(self, run_id: str, name: str, message: BaseModel) -> None:
        """Put a message into the run's history; needs no worker."""
        with self.translated(run_id):
            await self.handle(run_id).signal(name, message)

    async def listed(
        self, query: str, limit: int | None = None, *, every_tenant: bool = False
    ) -> AsyncIterator[temporalio.client.WorkflowExecution]:
        """Yield this tenant's runs: those that go on, then the ended ones; the latest first."""
        conditions = [
            IS_RUN,
            *([] if every_tenant else [f"{TENANT.name} = '{self.settings.tenant}'"]),
            "ExecutionStatus != 'ContinuedAsNew'",
            *([query] if query else []),
        ]
        with self.translated(""):
            async for run in self.client.list_workflows(" AND ".join(conditions), limit=limit):
                yield run

    @asynccontextmanager
    async def _by_worker(self, run_id: str, within: timedelta) -> AsyncIterator[None]:
        """Translate errors; if no worker answers in time, name the task queue that the run is on.

        The limit is around the SDK's calls, because it repeats them within limits of its own.
        """
        limit = asyncio.timeout(within.total_seconds())
        late = asyncio.create_task(self._look_for_a_worker(run_id, limit))
        try:
            with self.translated(run_id):
                async with limit:
                    yield
        except exits.NoWorker as error:
            found = await self.describe(run_id)
            queue = f"task queue {found.task_queue}"
            if found.status in _CUT_OFF:
                raise exits.NoWorker(
                    f"no worker ({queue}) can tell where it stood: {self._end_of(found)}"
                ) from error
            stuck = await self.stuck(found)
            if stuck is not None:
                raise exits.TaskFails(stuck) from error
            remedy = f"start one with `{command('worker')}`, or see in its log what holds it up"
            raise exits.NoWorker(f"{error} ({queue}): {remedy}") from error
        finally:
            late.cancel()

    async def _look_for_a_worker(self, run_id: str, limit: asyncio.Timeout) -> None:
        """End what takes long if no worker polls the run's task queue; else say what it waits for.

        A dead worker is known as polling for a minute: only that none is known is proof.
        """
        await asyncio.sleep(SAID_AFTER.total_seconds())
        with suppress(exits.SurehandError, RPCError):
            newest = (await self.polling((await self.describe(run_id)).task_queue)).newest
            if newest is None or datetime.now(UTC) - newest > LONGEST_POLL:
                limit.reschedule(asyncio.get_running_loop().time())
                return
        # Once: of many runs that are asked, each would say it.
        if not self._told:
            self._told = True
            self._tell(f"waiting for a worker that answers for run {run_id} (Ctrl-C ends it)")

    async def polling(self, task_queue: str) -> Polling:
        asked = DescribeTaskQueueRequest(
            namespace=self.client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        found = await self.client.workflow_service.describe_task_queue(asked)
        times = [one.last_access_time.ToDatetime(UTC) for one in found.pollers]
        return Polling(
            current=found.versioning_info.current_deployment_version.build_id,
            seen=sorted({one.deployment_options.build_id for one in found.pollers}),
            newest=max(times, default=None),
        )

    async def ping_worker(self, task_queue: str) -> timedelta | None:
        """Return how long a worker took to answer on a task queue; ``None`` if none did in time.

        A workflow that does nothing is started there, and ends when a worker takes it up. The
        server's own list of pollers cannot tell: it keeps a dead worker for minutes.
        """
        came = time.monotonic()
        handle = await self.client.start_workflow(
            PING,
            id=upkeep_id(DEFAULT_TENANT, f"ping-{secrets.token_hex(8)}"),
            task_queue=task_queue,
            # The server ends it, so that nothing waits for a worker that may come tomorrow.
            execution_timeout=PING_LIMIT,
        )
        try:
            await handle.result()
        except WorkflowFailureError:
            return None
        finally:
            # Nobody who lists runs should find it; who may not delete leaves it to the retention.
            pinged = WorkflowExecution(workflow_id=handle.id, run_id=handle.result_run_id or "")
            asked = DeleteWorkflowExecutionRequest(
                namespace=self.client.namespace, workflow_execution=pinged
            )
            with suppress(RPCError):
                await self.client.workflow_service.delete_workflow_execution(asked)
        return timedelta(seconds=time.monotonic() - came)

    async def unwind(self, asked: UnwindRun) -> Unwound:
        """Have a stopped run undone, or only say what would be undone of any run."""
        queue = self.settings.task_queue
        with self.translated(""):
            if await self.ping_worker(queue) is None:
                raise exits.NoWorker(f"no worker answers (task queue {queue}); nothing was undone")
            try:
                done: Unwound = await self.client.execute_workflow(
                    UNWIND,
                    asked,
                    id=unwind_id(asked.run_id) + (".dry-run" if asked.dry_run else ""),
                    task_queue=queue,
                    result_type=Unwound,
                )
            except WorkflowAlreadyStartedError as error:
                what = "looked at" if asked.dry_run else "unwound"
                raise exits.Refused(f"run {asked.run_id} is being {what} already") from error
            except WorkflowFailureError as error:
                # The activity's own, or what the workflow itself has raised.
                for cause in (error.cause.__cause__, error.cause):
                    if isinstance(cause, ApplicationError):
                        unknown = cause.type == ErrorType.RUN_NOT_FOUND
                        kind = exits.NoSuchRun if unknown else exits.Refused
                        raise kind(cause.message) from error
                raise exits.Refused(f"run {asked.run_id} was not unwound: {error.cause}") from error
        return done

    @contextmanager
    def translated(self, run_id: str) -> Iterator[None]:
        """Turn what the server refuses into one line with the right exit code."""
        try:
            yield
        except RPCError as error:
            raise self._of_rpc(error, run_id) from error
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            raise _no_worker(run_id) from error
        except KeyErased as error:
            raise exits.NotFound(str(error)) from error
        except (StoreUnavailable, KeyUnavailable, NotDecrypted) as error:
            raise exits.NotReachable(str(error)) from error
        except WorkflowQueryFailedError as error:
            if "is not registered on this worker" in str(error):
                raise exits.NotReachable(
                    f"run {run_id} is of a workflow that its worker does not have: name the"
                    " workflow's module in the worker's SUREHAND_WORKFLOW_MODULES"
                ) from error
            raise exits.SurehandError(f"run {run_id} cannot be read: {error}") from error
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise exits.Refused(f"run {run_id} refused it: {reason}") from error

    def _end_of(self, run: WorkflowExecutionDescription) -> str:
        over = "nothing can be sent to it any more"
        if run.status not in _CUT_OFF:
            return f"run {run.id} has ended: {over}"
        todo = self.what_to_do(run.id)
        return f"run {run.id} has ended, it {_CUT_OFF[run.status]}: {over}. {todo}"

    def what_to_do(self, run_id: str) -> str:
        command = self.settings.command
        return (
            f"Nothing more of it is undone by itself: `{command('effects', run_id)}` lists what it"
            f" did, `{command('unwind', run_id)}` undoes it, `{command('reconcile')}` settles what"
            " is in doubt, or asks a human"
        )

    def _of_rpc(self, error: RPCError, run_id: str) -> exits.SurehandError:
        code, text = error.status, error.message
        if code is RPCStatusCode.NOT_FOUND and text.startswith("Namespace "):
            return exits.NotReachable(
                f"namespace {self.target.namespace!r} does not exist at {self.target.address} "
                "(TEMPORAL_NAMESPACE): create it; `doctor` says how"
            )
        if code is RPCStatusCode.NOT_FOUND and "already completed" in text:
            return exits.WrongUse(f"run {run_id} has ended: nothing can be sent to it any more")
        if code is RPCStatusCode.NOT_FOUND:
            return exits.NoSuchRun(f"run not found: {run_id}")
        if code is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in text:
            return exits.NotReachable(
                f"the server lacks a search attribute ({text}): `doctor` says how to add it"
            )
        if code is RPCStatusCode.FAILED_PRECONDITION and "closed before" in text:
            return exits.NeverTakenUp(f"run {run_id} has ended before any worker took it up")
        if code is RPCStatusCode.RESOURCE_EXHAUSTED and "query buffer" in text:
            return _no_worker(run_id)  # earlier queries wait for a worker, too
        late = code in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
        if run_id and (late or code is RPCStatusCode.FAILED_PRECONDITION):
            return _no_worker(run_id)
        if late or code is RPCStatusCode.UNAVAILABLE:
            return exits.NotReachable(
                f"the Temporal server at {self.target.address} does not answer "
                "(TEMPORAL_ADDRESS): see whether it runs"
            )
        if code in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
            return exits.NotReachable(
                f"the Temporal server at {self.target.address} refuses us: {text} "
                "(TEMPORAL_API_KEY, TEMPORAL_TLS_*)"
            )
        # A server's trouble, and no mistake of ours: it is overloaded, or has a fault.
        trouble = code in (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.INTERNAL)
        return exits.SurehandError(
            f"Temporal server: {text}",
            code=exits.ExitCode.NOT_REACHABLE if trouble else exits.ExitCode.UNEXPECTED,
        )


def require_readable(value: Any, what: str) -> None:
    """Refuse what stands for a payload that cannot be fetched."""
    unreadable = as_unreadable(value)
    if unreadable is not None:
        raise exits.OutOfReach(what, unreadable)


def understood(value: Any, model: type[Message], what: str) -> Message:
    require_readable(value, what)
    return model.model_validate_json(json.dumps(value))


def _no_worker(run_id: str) -> exits.NoWorker:
    return exits.NoWorker(f"no worker answers for run {run_id}")


#: The last event of an execution.
ENDS: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)


async def every_event(client: Client, run_id: str) -> AsyncIterator[HistoryEvent]:
    """Yield the events of a run: those of its newest execution, then of the one before, ..."""
    handle = client.get_workflow_handle(run_id)
    while True:
        before = ""
        async for event in handle.fetch_history_events():
            started = event.workflow_execution_started_event_attributes
            before = before or started.continued_execution_run_id
            yield event
        if not before:
            return
        handle = client.get_workflow_handle(run_id, run_id=before)
        try:
            await handle.describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return
            raise


async def first_events(client: Client, run_id: str) -> AsyncIterator[HistoryEvent]:
    """Yield the events of a run's first execution, which says what it was started with."""
    handle = client.get_workflow_handle(run_id)
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        if started.continued_execution_run_id:
            first = started.first_execution_run_id
            handle = client.get_workflow_handle(run_id, run_id=first)
        break
    async for event in handle.fetch_history_events(page_size=1):
        yield event


#: What is true of a message that no worker has taken.
LEFT: Final = (
    "it is with the server, counts as soon as a worker can record it, and cannot be taken back"
)


async def deliver(
    connection: Connection,
    run_id: str,
    name: str,
    message: BaseModel,
    answer: type[Message],
    *,
    leave: bool | None,
) -> Message:
    """Send something to a run and return its answer; nothing is sent that nobody answers.

    The run is looked at first: what is sent while no worker is there cannot be taken back, and
    counts whenever one comes.

    Raises:
        WrongUse: The run has ended.
        Refused: With the run's reason.
        NoWorker: No worker answers, and nothing was sent.
        Left: No worker answers, and it was left with the server, as was wished.
        Unanswered: The worker has gone in the middle of it: sent, and it counts later.
    """
    await connection.open_run(run_id)
    try:
        await connection.require_answer(run_id)
    except exits.NoWorker as error:
        if not leave:
            hint = "" if leave is None else "; `--leave` (`leave=True`) leaves it with the server"
            raise exits.NoWorker(f"{error}; nothing was sent{hint}") from error
        await connection.signal(run_id, name, message)
        raise exits.Left(f"run {run_id}: nobody has answered yet; {LEFT}", run_id) from error
    try:
        return await connection.update(run_id, name, message, answer)
    except exits.NoWorker as error:
        # An update that nobody has taken does not outlive the server; a signal is in the run's
        # history. The run takes the same thing once.
        await connection.signal(run_id, name, message)
        if leave:
            raise exits.Left(f"run {run_id}: nobody has answered yet; {LEFT}", run_id) from error
        raise exits.Unanswered(
            f"run {run_id}: {await _why_not(connection, run_id)}; {LEFT}: look with "
            f"`{connection.settings.command('show', run_id)}`"
        ) from error


async def _why_not(connection: Connection, run_id: str) -> str:
    """Return why what was sent is not answered: its worker has gone, or cannot record it."""
    try:
        await connection.require_answer(run_id)
    except exits.NoWorker:
        return "no worker has answered yet"
    return (
        "its worker answers, and has not recorded it yet (its log says whether the ledger is away)"
    )
