"""``versions``: which versions of the workers there are, and which one new runs begin on."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Annotated, Final

import typer
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.printer import Lines, Reply, Table
from surehand.cli.verb.shapes import VersionList, VersionShown
from surehand.client.connection import Connection
from surehand.process.exits import NoWorker
from surehand.process.program import command
from surehand.workflows.names import IS_RUN

#: A version is known to the server once a worker of it has polled. One that was just started does
#: so within seconds.
KNOWN_WITHIN: Final = timedelta(seconds=30)
_PAUSE: Final = 0.2  # seconds
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
    """Return the deployment's versions with the runs that are open on them, the newest first.

    Args:
        connection: Where they are.
        queue: Count the runs of this task queue only.

    Raises:
        RPCError: The server is away, or has no such namespace.
    """
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
