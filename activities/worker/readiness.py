"""Whether a worker lives and can work, for whoever watches its process: ``/livez``, ``/readyz``.

The event loop answers itself, so a worker whose loop hangs does not answer. It takes no library:
two paths, no bodies to read, and each connection is closed behind its answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.worker.telemetry import AddressError

#: What does not answer within this time does not answer; whoever asks waits for some seconds.
PATIENCE: Final = timedelta(seconds=2)
#: How long a request may take to come in, and bytes of its head.
_REQUEST_PATIENCE: Final = timedelta(seconds=5)
_LONGEST_REQUEST: Final = 8192
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
    for kind in (
        TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    ):
        asked = DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=kind,
        )
        try:
            found = await client.workflow_service.describe_task_queue(asked, timeout=PATIENCE)
        except RPCError as error:
            raise NotReady(f"task queue {task_queue}: {error.message}") from error
        if all(poller.identity != client.identity for poller in found.pollers):
            raise NotReady(f"task queue {task_queue}: the server has seen no poll of this worker")


@asynccontextmanager
async def answering(address: str, readiness: Readiness) -> AsyncIterator[None]:
    """Answer whoever asks at an address, for as long as the block lasts; empty: nobody.

    Raises:
        AddressError: It is taken, or not this machine's.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(
            partial(_answer, readiness), host.strip("[]"), int(port), limit=_LONGEST_REQUEST
        )
    except OSError as error:
        raise AddressError("health", address, error.strerror or str(error)) from error
    try:
        yield
    finally:
        server.close()


async def _answer(
    readiness: Readiness, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        async with asyncio.timeout(_REQUEST_PATIENCE.total_seconds()):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.decode("latin-1").partition(" ")
        status, document = await _judge(readiness, method, rest.partition(" ")[0].partition("?")[0])
        body = json.dumps(document).encode() + b"\n"
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if method == "HEAD" else body))
        await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # Whoever has asked so gets no answer.
    finally:
        writer.close()


async def _judge(
    readiness: Readiness, method: str, path: str
) -> tuple[HTTPStatus, dict[str, object]]:
    if method not in ("GET", "HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD"}
    if path == "/livez":
        return HTTPStatus.OK, {"live": True}
    if path != "/readyz":
        return HTTPStatus.NOT_FOUND, {"error": "only /livez and /readyz"}
    found = await readiness.look()
    ready = all(said == OK for said in found.values())
    return (HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE), {"ready": ready, **found}
