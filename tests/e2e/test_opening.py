"""What a run refuses before its first step, so that nothing half right is ever begun."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError

from tests.e2e.runs import example_plan
from tests.e2e.stage import Stage
from workflows.contracts import RunState, StartRun
from workflows.names import WORKFLOW
from workflows.plan import Plan


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
