"""Whether a worker lives and can work, for whoever watches its process: ``/livez``, ``/readyz``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    ListTaskQueuePartitionsRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.worker.endpoint import Answer, Answering

#: What does not answer within this time does not answer; whoever asks waits for some seconds.
PATIENCE: Final = timedelta(seconds=2)
LIVE: Final = "/livez"
READY: Final = "/readyz"
#: What is well.
OK: Final = "ok"

Check = Callable[[], Awaitable[None]]


class NotReady(Exception):
    """A check has found that the worker cannot work; the message says why."""


class Readiness:
    """Asks what a worker needs, each thing once at a time, however many want to know."""

    def __init__(
        self, checks: Mapping[str, Check], hide: Callable[[str], str] = lambda text: text
    ) -> None:
        """Ask these.

        Args:
            checks: What to ask, by its name; each raises if it is not well.
            hide: Returns a text without what nobody may read.
        """
        self._checks = checks
        self._hide = hide
        self._asked: dict[str, asyncio.Task[None]] = {}
        self.stopping = False
        """Whether the worker takes no more work."""

    @classmethod
    def of(
        cls, ledger: Ledger, client: Client, task_queue: str, hide: Callable[[str], str]
    ) -> Readiness:
        """Return what looks at ledger, server, and whether the server knows our polls."""
        checks = {
            "ledger": partial(ledger.ping, PATIENCE),
            "temporal": partial(_served, client),
            "polling": partial(_polls, client, task_queue),
        }
        return cls(checks, hide)

    async def look(self) -> dict[str, str]:
        """Return what each check says: ``ok``, or what is wrong."""
        for name, check in self._checks.items():
            if name not in self._asked:
                self._asked[name] = asyncio.ensure_future(check())
        asked = dict(self._asked)
        # Nothing is cut off: what is with the ledger comes to its end, and is asked again then.
        await asyncio.wait(asked.values(), timeout=PATIENCE.total_seconds())
        found = {name: self._hide(_said(task)) for name, task in asked.items()}
        self._asked = {name: task for name, task in self._asked.items() if not task.done()}
        if self.stopping:
            found["worker"] = "it is stopping"
        return found


def _said(task: asyncio.Task[None]) -> str:
    if not task.done():
        return f"does not answer within {PATIENCE.total_seconds():g} s"
    error = task.exception()
    return OK if error is None else f"{error or type(error).__name__}"


async def _served(client: Client) -> None:
    try:
        serving = await client.service_client.check_health(timeout=PATIENCE)
    except RPCError as error:
        raise NotReady(f"{client.service_client.config.target_host}: {error.message}") from error
    if not serving:
        raise NotReady(f"{client.service_client.config.target_host}: it does not serve")


async def _polls(client: Client, task_queue: str) -> None:
    """Make sure that the server has seen polls of this worker for both kinds of tasks.

    Each poll waits at one partition of the queue, so of several workers one may be at others than
    the one that has the queue's name, and only that one is asked by it.
    """
    for kind in (
        TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    ):
        try:
            if client.identity in await _pollers(client, task_queue, kind):
                continue
            for partition in await _partitions(client, task_queue, kind):
                if client.identity in await _pollers(client, partition, kind):
                    break
            else:
                raise NotReady(
                    f"task queue {task_queue}: the server has seen no poll of this worker"
                )
        except RPCError as error:
            raise NotReady(f"task queue {task_queue}: {error.message}") from error


async def _pollers(client: Client, partition: str, kind: TaskQueueType.ValueType) -> set[str]:
    asked = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=partition),
        task_queue_type=kind,
    )
    found = await client.workflow_service.describe_task_queue(asked, timeout=PATIENCE)
    return {poller.identity for poller in found.pollers}


async def _partitions(client: Client, task_queue: str, kind: TaskQueueType.ValueType) -> list[str]:
    """Return the queue's partitions but the one that has its name."""
    asked = ListTaskQueuePartitionsRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=task_queue)
    )
    found = await client.workflow_service.list_task_queue_partitions(asked, timeout=PATIENCE)
    of_workflows = kind == TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    all_ = (
        found.workflow_task_queue_partitions
        if of_workflows
        else found.activity_task_queue_partitions
    )
    return [one.key for one in all_ if one.key != task_queue]


def health_paths(readiness: Readiness) -> dict[str, Answering]:
    """Return what answers whoever watches the worker's process."""

    async def live() -> Answer:
        return Answer.document(HTTPStatus.OK, {"live": True})

    async def ready() -> Answer:
        found = await readiness.look()
        well = all(said == OK for said in found.values())
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer.document(status, {"ready": well, **found})

    return {LIVE: live, READY: ready}
