"""What a run refuses before its first step, and a worker that dies between the steps of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import pytest
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from surehand.workflows.names import WORKFLOW
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import called
from tests.e2e.runs import Run, example_plan
from tests.e2e.stage import Stage


async def refusal(stage: Stage, workflow_id: str, request: StartRun) -> ApplicationError:
    """Start a run that is refused, and return why."""
    handle = await stage.client.start_workflow(
        WORKFLOW,
        request,
        id=workflow_id,
        task_queue=stage.task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"tool": "payments.refnud"}, "unknown tool 'payments.refnud'"),
        ({"params": {"amount": "a lot"}}, "amount"),
        ({"params": {"order_id": "order-1001", "amount": "1.00", "colour": "red"}}, "colour"),
    ],
    ids=["unknown tool", "wrong type", "unknown param"],
)
async def test_a_plan_that_does_not_fit_its_tools_starts_nothing(
    stage: Stage, order_id: str, step: dict[str, Any], why: str
) -> None:
    plan = example_plan("refund.yaml", order_id=order_id).model_dump(mode="json")
    plan["steps"][2] |= step
    async with stage.worker_here():
        request = StartRun(
            run_id="bad-plan", tenant="default", user="uma", plan=Plan.model_validate(plan)
        )
        cause = await refusal(stage, "bad-plan", request)
    assert cause.type == "PlanInvalid"
    assert "steps.2 (refund)" in cause.message and why in cause.message
    assert set(stage.shop.counts(order_id).values()) == {0}


async def test_a_run_id_is_never_used_twice_even_if_temporal_would_allow_it(
    stage: Stage, order_id: str
) -> None:
    plan = example_plan("refund.yaml", order_id=order_id)
    async with stage.worker_here():
        run = await stage.start(plan)
        await run.approve()
        assert (await run.result()).state is RunState.COMPLETED
        before = await stage.events(run)
        request = StartRun(run_id=run.run_id, tenant="default", user="uma", plan=plan)
        cause = await refusal(stage, run.run_id, request)
    assert cause.type == "RunIdTaken"
    assert run.run_id in cause.message
    assert await stage.events(run) == before


@pytest.mark.parametrize(
    ("workflow_id", "run_id", "tenant"),
    [
        ("one-run", "another-run", "default"),
        ("acme/run", "acme/run", "default"),
        ("run", "run", "acme"),
        ("umbrella/run", "umbrella/run", "acme"),
    ],
)
async def test_a_run_cannot_pass_for_another_one_or_for_another_tenants(
    stage: Stage, order_id: str, workflow_id: str, run_id: str, tenant: str
) -> None:
    plan = example_plan("refund.yaml", order_id=order_id)
    async with stage.worker_here():
        request = StartRun(run_id=run_id, tenant=tenant, user="uma", plan=plan)
        cause = await refusal(stage, f"{workflow_id}-{order_id}", request)
        assert cause.type == "RunIdInvalid"
        cause = await refusal(stage, workflow_id, request.model_copy(update={"run_id": run_id}))
        assert cause.type == "RunIdInvalid"
    assert set(stage.shop.counts(order_id).values()) == {0}


async def test_the_same_order_in_another_tenant_is_another_effect(
    stage: Stage, order_id: str
) -> None:
    plan = example_plan("refund.yaml", order_id=order_id)
    async with stage.worker_here():
        for tenant in ("default", "acme"):
            run = await stage.start(plan, tenant=tenant)
            await run.approve()
            assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 2


#: How a worker is missed that dies in what a run's own worker does for it.
MOVED_ON: Final = ("workflow task", "TIMEOUT_TYPE_START_TO_CLOSE")
#: Runs that are opened at once.
MANY: Final = 24


async def deaths(run: Run) -> Counter[tuple[str, str]]:
    """Return by what was missed that never ended: activity or workflow task, and time-out."""
    found: Counter[tuple[str, str]] = Counter()
    names = dict[int, str]()
    async for event in run.handle.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            names[event.event_id] = called(event)
        elif event.HasField("activity_task_started_event_attributes"):
            started = event.activity_task_started_event_attributes
            last = started.last_failure
            if last.HasField("timeout_failure_info"):
                kind = TimeoutType.Name(last.timeout_failure_info.timeout_type)
                found[names[started.scheduled_event_id], kind] += 1
        elif event.HasField("workflow_task_timed_out_event_attributes"):
            timed_out = event.workflow_task_timed_out_event_attributes.timeout_type
            if timed_out == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE:
                found["workflow task", TimeoutType.Name(timed_out)] += 1
    return found


@pytest.mark.crash
@pytest.mark.parametrize(
    ("activity", "point", "missed"),
    [
        ("open_run", CrashPoint.BEFORE_CLAIM, MOVED_ON),
        ("open_run", CrashPoint.BEFORE_REPORT, MOVED_ON),
        ("request_approval", CrashPoint.BEFORE_REPORT, MOVED_ON),
        ("verify_decision", CrashPoint.BEFORE_REPORT, MOVED_ON),
        ("steer", CrashPoint.BEFORE_REPORT, ("steer", "TIMEOUT_TYPE_HEARTBEAT")),
        ("close_run", CrashPoint.BEFORE_CLAIM, ("close_run", "TIMEOUT_TYPE_HEARTBEAT")),
    ],
)
async def test_a_worker_that_dies_in_an_activity_of_the_ledger_is_missed_once(
    stage: Stage, order_id: str, activity: str, point: CrashPoint, missed: tuple[str, str]
) -> None:
    with stage.worker(crash_at=f"{activity}:{point}") as doomed:
        doomed.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        if activity in ("close_run", "verify_decision"):
            await run.approve()
        elif activity == "steer":
            await run.asks()
            await run.handle.signal(Verb.PAUSE, PauseRun(actor="olga"))
        doomed.wait_killed()
    async with stage.worker_here():
        if activity == "steer":
            await run.in_state(RunState.PAUSED_USER)
            await run.handle.signal(Verb.RESUME, ResumeRun(actor="olga"))
        if activity not in ("close_run", "verify_decision"):
            await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert await deaths(run) == {missed: 1}
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["mails"]) == (1, 1)


@pytest.mark.crash
async def test_a_worker_that_dies_while_many_runs_are_opened_is_missed_by_their_workflow_tasks(
    stage: Stage, order_id: str
) -> None:
    read = {"id": "read", "tool": "orders.read", "params": {"order_id": order_id}}
    plan = Plan.model_validate([read])
    with stage.worker(crash_at="open_run:before_report") as doomed:
        doomed.wait_ready()
        runs = await asyncio.gather(*(stage.start(plan) for _ in range(MANY)))
        doomed.wait_killed()
    async with stage.worker_here():
        results = await asyncio.gather(*(run.result() for run in runs))

    assert {result.state for result in results} == {RunState.COMPLETED}
    missed = sum([await deaths(run) for run in runs], Counter[tuple[str, str]]())
    assert set(missed) == {MOVED_ON}
    for run in runs:
        assert len(await stage.events(run, "run.opened")) == 1
