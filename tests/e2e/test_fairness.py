"""Tenants take turns: what one has queued keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from statistics import mean
from typing import Final, NoReturn

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from surehand.worker import workflow_runner
from surehand.workflows.contracts.runs import OpenRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.ports import OPEN_RUN
from surehand.workflows.run.agent_run import AgentRun
from tests.e2e.runs import Run, until
from tests.e2e.stage import Stage

#: Runs of the tenant that has started many, and then of the one that has started a few.
MANY: Final = 80
FEW: Final = 6


async def test_a_tenant_with_few_runs_has_its_turn_before_most_of_what_another_has_queued(
    stage: Stage,
) -> None:
    order: list[str] = []

    @activity.defn(name=OPEN_RUN.name)
    async def later(asked: OpenRun) -> NoReturn:
        raise ApplicationError("the run's own worker cannot: it goes into the queue")

    @activity.defn(name=OPEN_RUN.name)
    async def refuse(asked: OpenRun) -> NoReturn:
        order.append(activity.info().workflow_id or "")
        raise ApplicationError("not today", type="PlanInvalid", non_retryable=True)

    plan = Plan.model_validate([{"id": "any", "tool": "orders.read", "params": {}}])
    queue, client = stage.task_queue, stage.client
    runs: list[Run] = []
    async with Worker(
        client,
        task_queue=queue,
        workflows=[AgentRun],
        activities=[later],
        no_remote_activities=True,
        workflow_runner=workflow_runner(),
    ):
        for tenant, number in (("acme", MANY), ("default", FEW)):
            started = [await stage.start(plan, tenant=tenant) for _ in range(number)]
            await asyncio.gather(*(run.history_has("activity_task_scheduled") for run in started))
            runs += started
        # In the history an activity is before it is in the queue.
        await until(lambda: queued(stage), lambda found: found == MANY + FEW)
        async with Worker(
            client, task_queue=queue, activities=[refuse], max_concurrent_activities=1
        ):
            results = (run.handle.result() for run in runs)
            ends = await asyncio.gather(*results, return_exceptions=True)

    assert {type(end) for end in ends} == {WorkflowFailureError}
    places = [place for place, run_id in enumerate(order) if not run_id.startswith("acme/")]
    # In the order of their coming they are behind nearly all of the others. Exact it is not: the
    # server keeps a queue in several parts, each of which is fair by itself.
    assert mean(places) < MANY / 2, f"places {places} of {len(order)}"


async def queued(stage: Stage) -> int:
    """Return how many activities wait in the queue, in all parts of it."""
    said = await stage.client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=stage.client.namespace,
            task_queue=TaskQueue(name=stage.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            report_stats=True,
        )
    )
    return said.stats.approximate_backlog_count
