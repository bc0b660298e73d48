"""The activity that looks for a child run which an earlier life of its parent has started."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.attempt import Resources
from activities.ledger.runs import plan_of
from workflows.contracts import ChildFound, LookAtChild, RunResult
from workflows.errors import ErrorType
from workflows.plan import Plan


class ChildActivities:
    """``look_at_child``."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="look_at_child")
    async def look_at_child(self, asked: LookAtChild) -> ChildFound:
        """Return whether a child run is open, how it has ended, and whether it is the same one."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            recorded = await plan_of(tx, asked.run_id)
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


def _plain(recorded: Any) -> Any:
    """Return a recorded plan as this version of the code writes it."""
    return Plan.model_validate(recorded).model_dump(mode="json")
