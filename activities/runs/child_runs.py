"""Child runs as the server has them: who has started one, what has become of it, its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.runs import terminated
from surehand.activities.ledger.runs.lifecycle import plan_of
from surehand.activities.worker.context import WorkerContext
from surehand.workflows.contracts.children import ChildFound, LookAtChild
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.errors import ErrorType
from surehand.workflows.plan.plan import Plan

_ENDED_ABOVE: Final = "what it is a child of undoes it, or has ended"


class ChildActivities:
    """``look_at_child``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="look_at_child")
    async def look_at_child(self, asked: LookAtChild) -> ChildFound:
        """Return whether a child run is open, how it has ended, and whether it is the same one."""
        recorded = await self._worker.ledger.transact(asked.tenant, plan_of, asked.run_id)
        same = recorded is None or _plain(recorded) == asked.plan.model_dump(mode="json")
        client = activity.client()
        try:
            newest = await client.get_workflow_handle(asked.run_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return ChildFound(same=same, why="the server does not know it any more")
        if newest.status is WorkflowExecutionStatus.RUNNING:
            return ChildFound(open=True, same=same)
        # Of this very execution: it is the end of the run.
        ended = client.get_workflow_handle(
            asked.run_id, run_id=newest.run_id, result_type=RunResult
        )
        try:
            result: RunResult = await ended.result(follow_runs=False)
        except WorkflowFailureError as error:
            cause = error.cause
            if (
                isinstance(cause, ApplicationError)
                and cause.type == ErrorType.RUN_FAILED
                and cause.details
            ):
                result = RunResult.model_validate(cause.details[0])
                return ChildFound(same=same, result=result, why=str(cause))
            return ChildFound(same=same, why=str(cause))
        return ChildFound(same=same, result=result, why=result.error or result.state)


async def started_in(server: Client, run_id: str, execution: str) -> str | None:
    """Return the first execution of the run that has started this execution of a child run.

    As the server has it, not as a message says: another workflow may have been given that run's id
    since it has ended. ``None``: it knows of none.

    Raises:
        RPCError: The server is away.
    """
    try:
        own = await server.get_workflow_handle(run_id, run_id=execution).describe()
        if own.parent_id is None:
            return None
        above = server.get_workflow_handle(own.parent_id, run_id=own.parent_run_id)
        parent = await above.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    return parent.raw_description.workflow_execution_info.first_run_id or None


async def stop_child_runs(
    server: Client, ledger: Ledger, tenant: str, run_ids: Iterable[str]
) -> None:
    """Stop child runs that nobody waits for: after a reset the server does not end them.

    They are barred already. What they have done is undone, or kept, by whoever asks for this; a
    cancelled one would undo itself meanwhile, in another order.

    Raises:
        RPCError: The Temporal server is away.
    """
    for run_id in run_ids:
        try:
            await server.get_workflow_handle(run_id).terminate(reason=_ENDED_ABOVE)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        # Afterwards: as long as the ledger has it as open, somebody comes to it again.
        await ledger.transact(tenant, terminated.close, run_id)


def _plain(recorded: Any) -> Any:
    """Return a recorded plan as this version of the code writes it."""
    return Plan.model_validate(recorded).model_dump(mode="json")
