"""Taking over from a dead worker: its death is noticed, and what it had in hand is given to others.

Each worker notes the runs that it has in hand where others find them
(``activities/ledger/core/presence.py``), and waits for the death of one other worker. Then Temporal
says which attempts the dead one was making. Each is failed, and its run is taken from the queue
that only the dead worker served. So the next attempt begins at once, and not after a time-out.

Nothing rests on this but the time that it takes. Whether the next attempt may call, leases and
fencing tokens decide, as after a time-out: a false alarm costs an attempt, and no effect.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog
from google.protobuf.duration_pb2 import Duration
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    ResetStickyTaskQueueRequest,
    RespondActivityTaskFailedByIdRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from surehand.activities.ledger.core.engine import LedgerUnavailable
from surehand.activities.ledger.core.presence import Pooled, Presence
from surehand.activities.worker.context import ActivityInterceptor
from surehand.workflows.names import ErrorType

log = structlog.get_logger()
T = TypeVar("T")

#: How long a lock has to be free where that proves no death: its worker takes it again meanwhile.
_SECOND_LOOK: Final = timedelta(milliseconds=100)
#: How often a worker looks whose death it has to notice, and forgets what it has no more in hand.
_LOOK: Final = timedelta(seconds=1)
#: Between two notes of what is in hand: what changes meanwhile is noted together.
_NOTE_PAUSE: Final = timedelta(milliseconds=20)
#: Before what could not reach the ledger is tried again. Who lives has to be first to come back.
_AGAIN: Final = timedelta(milliseconds=100)
_WATCH_AGAIN: Final = timedelta(seconds=2)
#: How long a run stays noted when nothing of it is here any more: its next call may come here.
_LINGER: Final = 10.0  # seconds
#: Runs that are given to others at once.
_AT_ONCE: Final = 20
_RPC_LIMIT: Final = timedelta(seconds=5)
#: Temporal keeps it with the attempt: the Web UI and the next attempt's start show it.
_DIED: Final = Failure(
    message="its worker has died",
    source="surehand",
    application_failure_info=ApplicationFailureInfo(
        type=ErrorType.WORKER_DIED, next_retry_delay=Duration(nanos=1_000_000)
    ),
)


def worker_identity() -> str:
    """Return a name for this process that no other has or will have."""
    return f"{os.getpid()}@{socket.gethostname()}@{secrets.token_hex(4)}"


class InHand(ActivityInterceptor):
    """Knows the runs of which a worker has an activity, or the workflow in memory."""

    def __init__(self) -> None:
        self.on_news: Callable[[], None] = lambda: None
        """Called from any thread when there is another run."""
        self._held: dict[str, int] = {}
        self._idle: dict[str, float] = {}
        """Since when nothing of a run is here, oldest first."""
        self._added: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, workflow_id: str) -> Iterator[None]:
        """Have something of a run in hand for as long as the block lasts."""
        with self._lock:
            held = self._held.get(workflow_id, 0)
            self._held[workflow_id] = held + 1
            new = not held and self._idle.pop(workflow_id, None) is None
            if new:
                self._added.append(workflow_id)
        if new:
            self.on_news()
        try:
            yield
        finally:
            with self._lock:
                self._held[workflow_id] -= 1
                if not self._held[workflow_id]:
                    del self._held[workflow_id]
                    self._idle[workflow_id] = time.monotonic()

    def all(self) -> list[str]:
        """Return all runs, those that came last at the end."""
        with self._lock:
            return [*self._idle, *self._held]

    def changes(self) -> tuple[list[str], list[str]]:
        """Return what was added and dropped since the last time."""
        now, dropped = time.monotonic(), []
        with self._lock:
            added, self._added = self._added, []
            for run, since in self._idle.items():
                if now - since < _LINGER:
                    break
                dropped.append(run)
            for run in dropped:
                del self._idle[run]
        return added, dropped

    async def around(self, input: ExecuteActivityInput, call: Callable[[], Awaitable[Any]]) -> Any:
        with self.holding(activity.info().workflow_id or ""):
            return await call()

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        """Wrap its workflows, from when they are loaded until they are dropped from memory."""
        in_hand = self

        class Workflow(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                with in_hand.holding(workflow.info().workflow_id):
                    return await super().execute_workflow(input)

        return Workflow


@asynccontextmanager
async def taking_over(client: Client, presence: Presence | None) -> AsyncIterator[InHand]:
    """Be there for other workers, and take over from one that dies, while the block lasts.

    Without a presence nobody else can see this worker.
    """
    in_hand = InHand()
    if presence is None:
        yield in_hand
        return
    # Of its own, because a wait for a lock keeps a thread.
    threads = ThreadPoolExecutor(2, thread_name_prefix="takeover")
    taking = _TakeOver(client, presence, in_hand, threads)
    tasks = [asyncio.create_task(taking.stay()), asyncio.create_task(taking.watch())]
    for task in tasks:
        task.add_done_callback(_tell_if_broken)
    try:
        yield in_hand
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await taking.leave()
        threads.shutdown(wait=False)


def _tell_if_broken(task: asyncio.Task[None]) -> None:
    """Log what nobody expected: the worker goes on without, as time-outs notice deaths, too."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("takeover.broken", exc_info=error)


@dataclass
class _TakeOver:
    client: Client
    presence: Presence
    in_hand: InHand
    threads: ThreadPoolExecutor
    _under_way: asyncio.Future[Any] | None = field(default=None, init=False)

    async def stay(self) -> None:
        """Hold the own lock, and note what is in hand."""
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        readable: int | None = None

        def heard() -> None:
            # Once: it is readable until somebody reads it.
            assert readable is not None
            loop.remove_reader(readable)
            wake.set()

        def news() -> None:
            loop.call_soon_threadsafe(wake.set)

        self.in_hand.on_news = news
        while True:
            try:
                readable = await self._one_by_one(self.presence.enter, self.in_hand.all())
                while True:
                    if readable is not None:
                        loop.add_reader(readable, heard)
                    try:
                        async with asyncio.timeout(_LOOK.total_seconds()):
                            await wake.wait()
                    except TimeoutError:
                        pass
                    finally:
                        if readable is not None:
                            loop.remove_reader(readable)
                    added, dropped = self.in_hand.changes()
                    if added or dropped or wake.is_set():
                        wake.clear()
                        await self._one_by_one(self.presence.write, added, dropped)
                        await asyncio.sleep(_NOTE_PAUSE.total_seconds())
            except Pooled:
                log.info(
                    "takeover.off",
                    meaning="PostgreSQL is reached through a pooler, so no session shows that this"
                    " worker lives: its death is noticed by time-outs",
                )
                return
            except LedgerUnavailable as error:
                log.info("takeover.lost", error=str(error))
                await asyncio.sleep(_AGAIN.total_seconds())

    async def leave(self) -> None:
        """Free the own lock, with nothing left in hand."""
        if self._under_way is not None:
            await asyncio.wait({self._under_way})
        await self._one_by_one(self.presence.leave)

    async def watch(self) -> None:
        """Wait for the death of the worker that comes before this one, again and again.

        So each is watched by one, and when that dies, too, by the one after it.
        """
        presence = self.presence
        while True:
            try:
                others = await self._in_thread(presence.others)
                worker = worker_before(self.client.identity, others)
                if worker is None:
                    await asyncio.sleep(_LOOK.total_seconds())
                elif await self._in_thread(presence.wait_free, worker, _LOOK):
                    await self._take_over(worker)
            except Pooled:
                return
            except LedgerUnavailable:
                await asyncio.sleep(_WATCH_AGAIN.total_seconds())

    async def _take_over(self, worker: str) -> None:
        if not self.presence.certain:
            await asyncio.sleep(_SECOND_LOOK.total_seconds())
        loop = asyncio.get_running_loop()

        def take() -> None:
            with self.presence.taken(worker) as runs:
                if runs is not None:
                    giving = self._give_to_others(worker, runs)
                    asyncio.run_coroutine_threadsafe(giving, loop).result()

        await self._in_thread(take)

    async def _give_to_others(self, worker: str, runs: Collection[str]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def give(workflow_id: str) -> int:
            async with limit:
                try:
                    return await self._give(worker, workflow_id)
                except RPCError as error:
                    # It has ended. Or time-outs notice.
                    if error.status is not RPCStatusCode.NOT_FOUND:
                        log.warning("takeover.failed", run_id=workflow_id, error=error.message)
                    return 0

        # Those that came last are the likeliest to be under way.
        attempts = sum(await asyncio.gather(*map(give, reversed([*runs]))))
        log.warning("worker.died", worker=worker, runs=len(runs), attempts=attempts)

    async def _give(self, worker: str, workflow_id: str) -> int:
        service, namespace = self.client.workflow_service, self.client.namespace
        found = await service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(
                namespace=namespace, execution=WorkflowExecution(workflow_id=workflow_id)
            ),
            timeout=_RPC_LIMIT,
        )
        execution = found.workflow_execution_info.execution
        lost = [one for one in found.pending_activities if _is_lost(one, worker)]
        for one in lost:
            await service.respond_activity_task_failed_by_id(
                RespondActivityTaskFailedByIdRequest(
                    namespace=namespace,
                    workflow_id=workflow_id,
                    run_id=execution.run_id,
                    activity_id=one.activity_id,
                    failure=_DIED,
                    identity=self.client.identity,
                ),
                timeout=_RPC_LIMIT,
            )
        await service.reset_sticky_task_queue(
            ResetStickyTaskQueueRequest(namespace=namespace, execution=execution),
            timeout=_RPC_LIMIT,
        )
        return len(lost)

    async def _one_by_one(self, do: Callable[..., T], *args: Any) -> T:
        # Also when the task that waits for it is cancelled: the next one waits for its end.
        self._under_way = asyncio.ensure_future(self._in_thread(do, *args))
        return await asyncio.shield(self._under_way)

    async def _in_thread(self, do: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, do, *args)


def worker_before(worker: str, others: Collection[str]) -> str | None:
    """Return the worker before this one, in a ring of all by their names."""
    return max((one for one in others if one < worker), default=max(others, default=None))


def _is_lost(one: PendingActivityInfo, worker: str) -> bool:
    """Return whether an attempt was a worker's, and another one follows if it fails.

    The time-outs end what was cancelled, or is never tried again: its run is told as before.
    """
    return (
        one.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        and one.last_worker_identity == worker
        and (not one.maximum_attempts or one.attempt < one.maximum_attempts)
    )
