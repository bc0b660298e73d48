"""Runs whose steps are made by code, and what people see of runs in Temporal's own Web UI."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from surehand.cli.runs import outputs_before
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Amend, StartRun
from surehand.workflows.contracts.steering import ResumeRun, Verb, Way
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plain_text import markdown
from surehand.workflows.plan.plan import Plan
from surehand.workflows.ports import OPEN_ITEMS, RUN_STATE, TENANT
from tests.e2e.messages import answered, event, told
from tests.e2e.plans import UNGATED
from tests.e2e.runs import (
    PATIENCE_S,
    Run,
    decision_on,
    failing_plan,
    refund_plan,
    states,
    step,
    until,
)
from tests.e2e.stage import Stage
from tests.e2e.test_controls import refusal

#: Why a whole number above 2^53 is no output.
OUTSIDE_JSON: Final = (
    "what the code returns: no JSON: value has no canonical JSON form:"
    f" {2**60} exceeds safe integer domain for JSON floats"
)
NO_SCHEMA: Final = (
    "it cannot be asked: the answer's schema: is no JSON Schema: 'nombre' is not valid under any of"
    " the given schemas (InvalidParams)"
)
CODE: Final = "surehand.examples.late_orders,tests.e2e.code"


def code(name: str, **given: Any) -> Plan:
    return Plan.model_validate({"name": "code", "code": name, "input": given})


@pytest.fixture
def orders(stage: Stage) -> list[str]:
    return [stage.shop.new_order() for _ in range(3)]


async def refunds_decided(run: Run, orders: list[str], *, rejected: str | None = None) -> None:
    for order_id in orders:
        request = await run.asks(f"refund-{order_id}")
        outcome = "reject" if order_id == rejected else "approve"
        # A signal: an update that is not answered before the worker dies waits for another one.
        await run.send(decision_on(request, outcome=outcome))


@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
async def test_code_makes_each_effect_once(stage: Stage, orders: list[str], mode: str) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("LateOrders", orders=orders), durability=mode)
        await refunds_decided(run, orders, rejected=orders[1])
        await run.in_state(RunState.WAITING_INPUT)
        assert await answered(run, answer=True) == "answered tell.1"
        result = await run.result()

    kept = [orders[0], orders[2]]
    assert result.state is RunState.COMPLETED
    batch = step(result, "batch").output
    assert result.output == {"batch": batch, "refunded": kept}
    assert states(result)[f"refund-{orders[1]}"] == "failed"
    for order_id in orders:
        counts = stage.shop.counts(order_id)
        expected = int(order_id in kept)
        assert (counts["refunds"], counts["mails"]) == (expected, expected)
    assert len(await stage.events(run, "approval.consumed")) == 2


@pytest.mark.crash
# Of a call all points in all modes: test_crash_points.py.
@pytest.mark.parametrize(
    ("point", "mode"),
    [("before_claim", "async"), ("after_call", "sync"), ("before_report", "async")],
)
async def test_a_worker_killed_in_a_call_of_code_leaves_one_effect(
    stage: Stage, order_id: str, point: str, mode: str
) -> None:
    crash_at = f"payments.refund:{point}"
    with stage.ready_worker(workflow_modules=CODE, crash_at=crash_at) as doomed:
        run = await stage.start(code("LateOrders", orders=[order_id]), durability=mode)
        await refunds_decided(run, [order_id])
        doomed.wait_killed()
    async with stage.worker_here(workflow_modules=CODE):
        view = await run.in_state(RunState.WAITING_INPUT)
        batch = step(view.result, "batch").output
        await answered(run, answer=True)
        result = await run.completed()

    assert result.output == {"batch": batch, "refunded": [order_id]}
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["mails"]) == (1, 1)


@pytest.mark.parametrize(
    ("by", "error"),
    [
        ("failure", "the customer is a fraud (Fraud)"),
        ("time-out", "TimeoutError: "),
        ("group", "enough; enough"),
        ("output", OUTSIDE_JSON),
        ("schema", NO_SCHEMA),
    ],
)
async def test_given_up_code_is_undone(stage: Stage, order_id: str, by: str, error: str) -> None:
    _, result = await stage.play(
        code("Raises", order_id=order_id, by=by), tool_modules=UNGATED, workflow_modules=CODE
    )

    assert (result.state, result.error) == (RunState.FAILED, error)
    assert stage.paid(order_id) == (1, 1)


@pytest.mark.parametrize("mode", ["compensate", "keep"])
async def test_a_cancel_ends_and_undoes_code(stage: Stage, order_id: str, mode: str) -> None:
    async with stage.worker_here(tool_modules=UNGATED, workflow_modules=CODE):
        run = await stage.start(code("LateOrders", orders=[order_id]))
        await run.in_state(RunState.WAITING_INPUT)
        await run.cancel(mode=mode)
        result = await run.result()

    assert result.state is RunState.CANCELLED
    undone = int(mode == "compensate")
    assert stage.shop.counts(order_id)["refund_cancellations"] == undone
    assert result.output is None


async def test_code_that_catches_everything_stops_at_a_failure(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=UNGATED, workflow_modules=CODE):
        run = await stage.start(code("Careless", order_id=order_id))
        await run.in_state(RunState.PAUSED_FAILURE)
        await told(run, Verb.RESUME, ResumeRun(actor="uma", step="read", way=Way.COMPENSATE))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert result.output is None
    assert states(result) == {"read": "failed", "send": "skipped"}
    assert stage.shop.counts(order_id)["mails"] == 0


async def test_steps_nobody_waits_for_are_ended_too(stage: Stage, order_id: str) -> None:
    other = stage.shop.new_order()
    async with stage.worker_here(tool_modules=UNGATED, workflow_modules=CODE):
        good = await stage.start(code("Forgetful", order_id=order_id, other=other))
        assert (await good.result()).output == "done"
        bad = await stage.start(code("Forgetful", order_id=other, other="order-404"))
        result = await bad.result()

    assert stage.shop.counts(order_id)["refunds"] == 1
    assert result.state is RunState.FAILED
    assert (result.error or "").startswith("step read: ")
    assert stage.shop.counts(other)["refund_cancellations"] == 1


async def test_params_text_is_no_reference(stage: Stage, order_id: str, tmp_path: Path) -> None:
    # Without a cache the code runs again in each workflow task.
    async with stage.worker_here(workflow_modules=CODE, max_cached_workflows="0"):
        given = {"order_id": order_id, "count": str(tmp_path / "count"), "secret": "s3cret"}
        run = await stage.start(code("Literal", **given))
        await run.in_state(RunState.WAITING_EVENT)
        await told(run, Verb.EVENT, event("e1", 7, about=order_id))
        result = await run.result()

    assert result.output == {"count": 1, "same": True, "event": 7}
    assert list(states(result)) == ["record", "read", "read-2", "send", "wait"]
    [mail] = stage.shop.world(order_id)["mails"]
    assert mail["subject"] == "${input.secret}"


async def test_broken_code_stops_until_it_is_mended(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=UNGATED, workflow_modules="tests.e2e.code_broken"):
        run = await stage.start(code("Odd", order_id=order_id))
        await _task_failed(run)
        assert (await run.handle.describe()).status is WorkflowExecutionStatus.RUNNING
    result = await stage.finish(run, tool_modules=UNGATED, workflow_modules="tests.e2e.code_mended")

    assert result.output == "59.90"
    assert stage.paid(order_id) == (1, 0)


async def _task_failed(run: Run) -> None:
    async def types() -> set[int]:
        return {int(event.event_type) for event in (await run.handle.fetch_history()).events}

    await until(types, lambda found: EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED in found, PATIENCE_S)


async def test_a_run_of_code_is_listed_and_takes_no_other_plan(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("LateOrders", orders=[order_id]))
        await run.asks(f"refund-{order_id}")
        other = Plan.model_validate([{"id": "a", "ask": "?"}])
        with pytest.raises(WrongUse, match="the workflow LateOrders makes the steps"):
            outputs_before(await run.view(), f"refund-{order_id}")
        refused = await refusal(run, Verb.AMEND, Amend(actor="uma", plan=other, based_on=1))
        assert "where code makes the steps there is no plan to amend" in refused
        wrong = await stage.client.start_workflow(
            "AgentRun",
            StartRun(
                run_id=f"{run.run_id}-x", tenant=DEFAULT_TENANT, user="uma", plan=code("LateOrders")
            ),
            id=f"{run.run_id}-x",
            task_queue=stage.task_queue,
        )
        with pytest.raises(WorkflowFailureError, match="failed") as failure:
            await wrong.result()
        assert "its plan is one of LateOrders" in str(failure.value.__cause__)
        await run.cancel()
        await run.result()


async def test_tool_schemas_for_models_are_recorded_once(stage: Stage, order_id: str) -> None:
    # Without a cache the code runs again in each workflow task.
    loaded = {"tool_modules": UNGATED, "workflow_modules": CODE, "max_cached_workflows": "0"}
    async with stage.worker_here(**loaded):
        run = await stage.start(code("Offering", order_id=order_id))
        told: Any = (await run.result()).output

    assert stage.shop.counts(order_id)["refunds"] == 1
    refund = next(one for one in told if one["name"] == "payments.refund")
    assert (refund["effect"], refund["version"]) == ("WRITE", "1")
    assert "order_id" in refund["params_schema"]["required"]
    assert refund["output_schema"]["type"] == "object"
    asked = [
        event
        for event in (await run.handle.fetch_history()).events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "describe_tools"
    ]
    assert len(asked) == 1  # by the code: the run's start gets no schemas


async def test_code_that_names_an_unknown_tool_does_nothing(stage: Stage, order_id: str) -> None:
    _, result = await stage.play(
        code("Offering", order_id=order_id, tools=["payment.*"]),
        tool_modules=UNGATED,
        workflow_modules=CODE,
    )

    assert result.state is RunState.FAILED
    assert "tools: 'payment.*' names no tool; loaded are: " in (result.error or "")
    assert stage.shop.counts(order_id)["refunds"] == 0


async def current_details(run: Run) -> str:
    metadata = await run.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(metadata.current_details)


async def shows(run: Run, state: str, tenant: str, pending: int) -> None:
    """Wait until the run can be found by these search attributes."""

    async def shown() -> tuple[str | None, str | None, int | None]:
        attributes = (await run.handle.describe()).typed_search_attributes
        return attributes.get(RUN_STATE), attributes.get(TENANT), attributes.get(OPEN_ITEMS)

    await until(shown, lambda seen: seen == (state, tenant, pending))


async def summaries(run: Run) -> list[str]:
    history = await run.handle.fetch_history()
    converter = run.handle._client.data_converter.payload_converter
    return [
        converter.from_payload(event.user_metadata.summary, str)
        for event in history.events
        if event.event_type
        in (EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, EventType.EVENT_TYPE_MARKER_RECORDED)
    ]


@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_a_run_shows_state_and_tenant(stage: Stage, order_id: str, tenant: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id), tenant=tenant)
        request = await run.asks()
        await shows(run, "waiting_approval", tenant, 1)
        details = await current_details(run)
        assert request.approval_id in details
        assert request.params_hash in details
        assert '"amount": "120.00"' in details
        assert f"Refund 120.00 EUR for {order_id}" in details
        assert "undone by payments.cancel_refund" in details

        await run.decide(decision_on(request))
        await run.result()
        await shows(run, "completed", tenant, 0)
        details = await current_details(run)
        assert "completed" in details and request.params_hash not in details


async def test_a_run_that_needs_a_human_shows_the_question(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", half=True, times=1)
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        question = await run.asks_a_human()
        details = await current_details(run)
        assert question.id in details and markdown(question.question) in details
        await shows(run, "needs_intervention", "default", 1)
        await run.cancel(mode="keep")
        await run.result()


async def test_the_activities_of_a_run_read_like_its_steps(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(failing_plan(order_id))
        await run.approve()
        await run.result()
    assert await summaries(run) == [
        "open the run",
        "order: orders.read",
        "amount: refunds.calculate",
        "refund: ask for approval of payments.refund",
        "verify a decision",
        "refund: payments.refund",
        "restock: inventory.restock",
        "close: tickets.close",
        "look for what stands",
        "restock: undo inventory.restock",
        "refund: undo payments.refund",
        "look for what stands",
        "close the run",
    ]


async def test_shown_lines_approve(stage: Stage, order_id: str, temporal_cli: Path) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        await run.asks()
        details = await current_details(run)
        shown = re.search(
            r"^(temporal workflow signal .*?)\n```$", details, re.MULTILINE | re.DOTALL
        )
        assert shown is not None
        lines = shown[1].replace("YOUR-NAME", "ann")
        address = stage.client.service_client.config.target_host
        typed = f'temporal() {{ {temporal_cli} "$@" --address {address}; }}\n{lines}'
        command = ["bash", "-c", typed]
        signalled = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60
        )
        assert signalled.returncode == 0, signalled.stderr
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = stage.decision_rows(run)
    assert (decision["approver"], decision["verdict"]) == ("ann", "accepted")
    assert not decision["verified"]
