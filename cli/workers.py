"""``versions``, and what can be asked of a Temporal server and a worker: do they answer?"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from temporalio.api.enums.v1 import TaskQueueType, WorkerDeploymentVersionStatus
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    PollActivityTaskQueueRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from surehand.cli import options
from surehand.cli.options import Caller
from surehand.cli.printer import Lines, Reply, Table
from surehand.cli.shapes import Shape
from surehand.client.connection import Connection
from surehand.process.exits import NoWorker
from surehand.process.program import command
from surehand.workflows.identity import DEFAULT_TENANT, upkeep_id
from surehand.workflows.names import IS_RUN, PING, SEARCH_ATTRIBUTES


class VersionShown(Shape):
    """One version of the workers."""

    build_id: str
    status: str
    """``current``: new runs begin on it; ``draining``: open runs end on it; ``drained``;
    ``inactive``: it never was current; ``ramping``."""
    open_runs: int
    """Of all tenants."""


class VersionList(Shape):
    """``versions``: the newest first."""

    deployment: str
    versions: list[VersionShown]


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


#: A version is known to the server once a worker of it has polled. One that was just started does
#: so within seconds.
KNOWN_WITHIN: Final = timedelta(seconds=30)
#: No worker of that version or deployment has polled, or not yet for all that the current one does.
_NOT_YET: Final = (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION)

_STATUS: Final = "WORKER_DEPLOYMENT_VERSION_STATUS_"


async def versions(
    caller: options.Anybody,
    use: Annotated[
        str | None,
        typer.Option("--use", metavar="BUILD_ID", help="Have new runs begin on this version."),
    ] = None,
) -> Reply:
    """Show the workers' versions with the runs that are open on them, or change the current one.

    A version is what SUREHAND_BUILD_ID names; its runs, of all tenants, end on it.

    Example: python starter.py versions --use 2026-11-21
    """
    connection = await caller.connection()
    with connection.translated(""):
        if use is not None:
            await _use(caller, connection, use)
        shown = await all_versions(connection)
    return Reply(shown, _lines(shown))


def _lines(shown: VersionList) -> Lines:
    if not shown.versions:
        yield (
            f"No worker of the deployment {shown.deployment} has a version"
            " (SUREHAND_BUILD_ID): any worker takes any run"
        )
        return
    rows = [[one.build_id, one.status, str(one.open_runs)] for one in shown.versions]
    yield Table(("build id", "status", "open runs"), rows)
    if not any(one.status == "current" for one in shown.versions):
        newest = command("versions", "--use", shown.versions[0].build_id)
        yield f"None is current, so new runs wait for workers without a version: {newest}"
    for one in shown.versions:
        if one.open_runs and one.status != "current":
            yield f"Keep workers of {one.build_id} until its runs have ended"


async def _use(caller: Caller, connection: Connection, build_id: str) -> None:
    deployment = connection.settings.deployment_name
    asked = SetWorkerDeploymentCurrentVersionRequest(
        namespace=connection.client.namespace,
        deployment_name=deployment,
        build_id=build_id,
        identity=connection.settings.user,
    )
    limit, told = KNOWN_WITHIN.total_seconds(), False
    deadline = time.monotonic() + limit
    while True:
        try:
            await connection.client.workflow_service.set_worker_deployment_current_version(asked)
            return
        except RPCError as error:
            if error.status not in _NOT_YET:
                raise
            if time.monotonic() > deadline:
                raise NoWorker(
                    f"version {build_id} of the deployment {deployment} cannot become current"
                    f" ({error.message}): start a worker with SUREHAND_BUILD_ID={build_id}"
                ) from error
            if not told:
                told = True
                caller.printer.say(f"Waiting up to {limit:g} s for a worker of version {build_id}")
        await asyncio.sleep(_PAUSE)


async def all_versions(connection: Connection, queue: str | None = None) -> VersionList:
    """Return the deployment's versions with the runs that are open on them, the newest first."""
    deployment = connection.settings.deployment_name
    asked = DescribeWorkerDeploymentRequest(
        namespace=connection.client.namespace, deployment_name=deployment
    )
    try:
        found = await connection.client.workflow_service.describe_worker_deployment(asked)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND or error.message.startswith("Namespace "):
            raise
        found = DescribeWorkerDeploymentResponse()
    versions = []
    for one in found.worker_deployment_info.version_summaries:
        build_id = one.deployment_version.build_id
        status = WorkerDeploymentVersionStatus.Name(one.status).removeprefix(_STATUS).lower()
        query = (
            f"{IS_RUN} AND ExecutionStatus = 'Running'"
            f" AND TemporalWorkerDeploymentVersion = '{deployment}:{build_id}'"
        )
        query += f" AND TaskQueue = {json.dumps(queue)}" if queue else ""
        counted = await connection.client.count_workflows(query)
        versions.append(VersionShown(build_id=build_id, status=status, open_runs=counted.count))
    return VersionList(deployment=deployment, versions=versions)
