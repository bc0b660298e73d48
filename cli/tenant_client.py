"""The starter's only way to runs: every call is for one tenant, every failure is one line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from cli.connect import DEFAULT_ADDRESS, DEFAULT_NAMESPACE, Target
from cli.exits import ExitCode, NotFound, NotReachable, NoWorker, Refused, StarterError, WrongUse
from cli.settings import StarterSettings
from workflows.contracts import RunResult, RunView
from workflows.names import CHECKPOINT, TENANT, VIEW, WORKFLOW

#: A worker that was killed is replaced within seconds; longer than this, none is there.
ANSWER_TIME: Final = timedelta(seconds=15)

Message = TypeVar("Message", bound=BaseModel)


class TenantClient:
    """Runs of one tenant on one server."""

    def __init__(self, client: Client, target: Target, settings: StarterSettings) -> None:
        self.client = client
        self.target = target
        self.settings = settings

    def handle(self, run_id: str) -> WorkflowHandle[Any, RunResult]:
        """Return the handle of a run."""
        return self.client.get_workflow_handle(run_id, result_type=RunResult)

    def web_ui(self, run_id: str) -> str:
        """Return the run's page in the Web UI."""
        namespace = quote(self.target.namespace, safe="")
        return f"{self.settings.ui_url}/namespaces/{namespace}/workflows/{quote(run_id, safe='')}"

    def temporal_options(self) -> list[str]:
        """Return what the plain Temporal CLI needs to reach the same server."""
        options = []
        if self.target.address not in (DEFAULT_ADDRESS, f"127.0.0.1:{DEFAULT_ADDRESS[-4:]}"):
            options += ["--address", self.target.address]
        if self.target.namespace != DEFAULT_NAMESPACE:
            options += ["--namespace", self.target.namespace]
        return options

    async def describe(self, run_id: str) -> WorkflowExecutionDescription:
        """Return what the server knows about a run; needs no worker.

        Raises:
            NotFound: If there is no such run in this tenant.
        """
        with self.translated(run_id):
            found = await self.handle(run_id).describe()
        tenant = found.typed_search_attributes.get(TENANT)
        if found.workflow_type != WORKFLOW or tenant not in (None, self.settings.tenant):
            raise NotFound(f"run not found: {run_id}")
        return found

    async def view(self, run_id: str, limit: timedelta | None = None) -> RunView:
        """Return the run's own view.

        Args:
            run_id: The run.
            limit: How long a worker may take to answer, if not the usual time.

        Raises:
            NotFound: If there is no such run in this tenant.
            NoWorker: If no worker answers in time.
        """
        with self.translated(run_id):
            view: RunView = await self.handle(run_id).query(
                VIEW, result_type=RunView, rpc_timeout=limit or ANSWER_TIME
            )
        if view.tenant != self.settings.tenant:
            raise NotFound(f"run not found: {run_id}")
        return view

    async def checkpoint(self, run_id: str) -> dict[str, Any]:
        """Return the run's state as one document.

        Raises:
            NoWorker: If no worker answers in time.
        """
        with self.translated(run_id):
            document: dict[str, Any] = await self.handle(run_id).query(
                CHECKPOINT, rpc_timeout=ANSWER_TIME
            )
        return document

    async def update(
        self, run_id: str, name: str, message: BaseModel, answer: type[Message]
    ) -> Message:
        """Send an update and return the run's answer.

        Raises:
            Refused: With the run's reason.
            NoWorker: If no worker answers in time; sending it again is safe.
        """
        with self.translated(run_id):
            # The SDK asks twice within its own limit, so the limit is set around it.
            async with asyncio.timeout(ANSWER_TIME.total_seconds()):
                result: Message = await self.handle(run_id).execute_update(
                    name, message, result_type=answer
                )
        return result

    async def listed(self, query: str, limit: int) -> AsyncIterator[WorkflowExecution]:
        """Yield this tenant's runs, newest first.

        Args:
            query: A further condition, or nothing.
            limit: At most so many.
        """
        conditions = [
            f"WorkflowType = '{WORKFLOW}'",
            f"{TENANT.name} = '{self.settings.tenant}'",
            "ExecutionStatus != 'ContinuedAsNew'",
            *([query] if query else []),
        ]
        with self.translated(""):
            async for run in self.client.list_workflows(" AND ".join(conditions), limit=limit):
                yield run

    @contextmanager
    def translated(self, run_id: str) -> Iterator[None]:
        """Turn what the server refuses into one line with the right exit code."""
        try:
            yield
        except RPCError as error:
            raise self._of_rpc(error, run_id) from error
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            raise self._no_worker(run_id) from error
        except WorkflowQueryFailedError as error:
            raise StarterError(f"run {run_id} cannot be read: {error}") from error
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise Refused(f"run {run_id} refused it: {reason}") from error

    def _of_rpc(self, error: RPCError, run_id: str) -> StarterError:
        code, text = error.status, error.message
        if code is RPCStatusCode.NOT_FOUND and text.startswith("Namespace "):
            return NotReachable(
                f"namespace {self.target.namespace!r} does not exist at {self.target.address} "
                "(TEMPORAL_NAMESPACE): create it; `doctor` says how"
            )
        if code is RPCStatusCode.NOT_FOUND and "already completed" in text:
            return WrongUse(f"run {run_id} has ended: nothing can be sent to it any more")
        if code is RPCStatusCode.NOT_FOUND:
            return NotFound(f"run not found: {run_id}")
        if code is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in text:
            return NotReachable(
                f"the server lacks a search attribute ({text}): `doctor` says how to add it"
            )
        if code is RPCStatusCode.FAILED_PRECONDITION and "closed before" in text:
            return WrongUse(f"run {run_id} has ended before any worker took it up")
        late = code in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
        if run_id and (late or code is RPCStatusCode.FAILED_PRECONDITION):
            return self._no_worker(run_id)
        if late or code is RPCStatusCode.UNAVAILABLE:
            return NotReachable(
                f"the Temporal server at {self.target.address} does not answer "
                "(TEMPORAL_ADDRESS): see whether it runs"
            )
        if code in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
            return NotReachable(
                f"the Temporal server at {self.target.address} refuses us: {text} "
                "(TEMPORAL_API_KEY, TEMPORAL_TLS_*)"
            )
        return StarterError(f"Temporal server: {text}", code=ExitCode.UNEXPECTED)

    def _no_worker(self, run_id: str) -> NoWorker:
        queue = self.settings.task_queue
        return NoWorker(
            f"no worker answers for run {run_id} (task queue {queue}): start one with "
            "`python worker.py`, then try again; sending the same thing twice is safe"
        )
