"""What people see in Temporal's own Web UI and command line, and that it is enough to decide."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata

from surehand.workflows.contracts.states import RunState
from surehand.workflows.names import OPEN_ITEMS, RUN_STATE, TENANT
from surehand.workflows.plain_text import markdown
from tests.e2e.runs import Run, decision_on, example_plan, until
from tests.e2e.stage import Stage


async def current_details(run: Run) -> str:
    """Return what the Web UI shows of the run."""
    metadata = await run.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(metadata.current_details)


async def shows(run: Run, state: str, tenant: str, pending: int) -> None:
    """Wait until the run can be found by these search attributes."""

    async def shown() -> tuple[str | None, str | None, int | None]:
        attributes = (await run.handle.describe()).typed_search_attributes
        return attributes.get(RUN_STATE), attributes.get(TENANT), attributes.get(OPEN_ITEMS)

    await until(shown, lambda seen: seen == (state, tenant, pending))


async def summaries(run: Run) -> list[str]:
    """Return what the Web UI shows beside each activity."""
    history = await run.handle.fetch_history()
    converter = run.handle._client.data_converter.payload_converter
    return [
        converter.from_payload(event.user_metadata.summary, str)
        for event in history.events
        if event.event_type
        in (
            EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
            EventType.EVENT_TYPE_MARKER_RECORDED,
        )
    ]


@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_a_run_shows_state_and_tenant(stage: Stage, order_id: str, tenant: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), tenant=tenant)
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
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        [question] = view.result.waiting_for
        details = await current_details(run)
        assert question.id in details and markdown(question.question) in details
        await shows(run, "needs_intervention", "default", 1)
        await run.cancel(mode="keep")
        await run.result()


async def test_the_activities_of_a_run_read_like_its_steps(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
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
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
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
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = stage.decision_rows(run)
    assert (decision["approver"], decision["verdict"]) == ("ann", "accepted")
    assert not decision["verified"]
