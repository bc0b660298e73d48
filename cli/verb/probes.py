"""What can be asked of a Temporal server about itself, and a worker: do they answer?"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    PollActivityTaskQueueRequest,
)
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from surehand.workflows.identity import DEFAULT_TENANT, upkeep_id
from surehand.workflows.names import PING, SEARCH_ATTRIBUTES

#: A queue on which nothing is ever put: polling it makes the server note its own time.
_CLOCK_QUEUE: Final = "surehand-clock"
#: The server refuses polls that are too short to be worth it; ours is cancelled long before.
_POLL: Final = timedelta(seconds=10)
#: A worker answers within milliseconds, a busy one or one that has just taken over within seconds.
PING_LIMIT: Final = timedelta(seconds=5)
_LOOKS: Final = 20
_PAUSE: Final = 0.1  # seconds


async def namespace_exists(client: Client) -> bool:
    """Say whether the client's namespace exists."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request)
    except RPCError as error:
        if error.status.name == "NOT_FOUND":
            return False
        raise
    return True


async def missing_attributes(client: Client) -> list[SearchAttributeKey[Any]]:
    """Return the search attributes that are not registered, or not with the right type."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    answer = await client.operator_service.list_search_attributes(request)
    there = answer.custom_attributes
    return [key for key in SEARCH_ATTRIBUTES if there.get(key.name) != int(key.indexed_value_type)]


async def ping(client: Client, task_queue: str) -> timedelta | None:
    """Return how long a worker took to answer on a task queue; ``None`` if none did in time.

    A workflow that does nothing is started there, and ends when a worker takes it up. The server's
    own list of pollers cannot tell: it keeps a dead worker for minutes.
    """
    came = time.monotonic()
    handle = await client.start_workflow(
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
    return timedelta(seconds=time.monotonic() - came)


@dataclass(frozen=True)
class Polling:
    """Which versions of workers a task queue has, as the server knows it."""

    current: str
    """Build id of the version that new runs begin on; empty: workers without one take them."""
    seen: list[str]
    """Build ids of the workers that have polled within minutes; empty for those without one."""


async def polling(client: Client, task_queue: str) -> Polling:
    """Return whose workers poll a task queue; dead ones count for some minutes."""
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    found = await _describe(client, task_queue, kind)
    return Polling(
        current=found.versioning_info.current_deployment_version.build_id,
        seen=sorted({one.deployment_options.build_id for one in found.pollers}),
    )


async def clock_difference(client: Client) -> timedelta | None:
    """Return how far the server's clock is ahead of ours; ``None`` if it does not tell.

    No call returns the server's time, but the server notes when each poller came: we come, and
    look at what it noted. The answer is exact to one round trip.
    """
    identity = f"surehand-doctor-{secrets.token_hex(4)}"
    poll = PollActivityTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=_CLOCK_QUEUE), identity=identity
    )
    came = time.time()
    polling = asyncio.create_task(
        client.workflow_service.poll_activity_task_queue(poll, timeout=_POLL)
    )
    try:
        for _ in range(_LOOKS):
            await asyncio.sleep(_PAUSE)
            kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
            for poller in (await _describe(client, _CLOCK_QUEUE, kind)).pollers:
                if poller.identity == identity:
                    noted = poller.last_access_time.ToMicroseconds() / 1e6
                    return timedelta(seconds=noted - came)
        return None
    finally:
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError, RPCError):
            await polling


async def _describe(
    client: Client, task_queue: str, kind: TaskQueueType.ValueType
) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=task_queue), task_queue_type=kind
    )
    return await client.workflow_service.describe_task_queue(request)
