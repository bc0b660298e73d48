"""Guarantee G4, when people stop a run: what was done is undone, kept or listed, as they say."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import CancelledError

from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import RunState
from tests.e2e.interceptors import Pause
from tests.e2e.plans import NEITHER
from tests.e2e.runs import Run, example_plan, states, step
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES


async def cancelled_by_temporal(run: Run) -> RunView:
    """Wait until the run is closed as cancelled and return its last view."""
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(run.handle.result(), 60)
    assert isinstance(failure.value.cause, CancelledError)
    assert (await run.handle.describe()).status is WorkflowExecutionStatus.CANCELED
    view = await run.view()
    assert view.result.state is RunState.CANCELLED
    return view


async def cancel(run: Run, by: str) -> None:
    if by == "update":
        await run.cancel()
    else:
        await run.handle.cancel()
        await run.history_has("workflow_execution_cancel_requested")


async def refunded_and_restocking(stage: Stage, order_id: str) -> Run:
    """Return a run whose refund is committed and whose restock the shop holds."""
    stage.shop.fault("restocks", hold="after")
    run = await stage.start(example_plan("refund.yaml", order_id=order_id))
    await run.approve()
    await run.until(lambda view: states(view.result)["restock"] == "running")
    await asyncio.to_thread(stage.shop.wait_effects, "restocks", stage.shop.counts()["restocks"])
    return run


async def test_cancelling_a_waiting_run_calls_nothing(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        assert "keep" in await run.cancel(mode="keep", reason="changed my mind")
        result = await run.result()
        view = await run.view()

    assert result.state is RunState.CANCELLED
    assert "cancelled by oscar" in (result.error or "")
    assert "changed my mind" in (result.error or "")
    assert set(stage.shop.counts(order_id).values()) == {0}
    assert (result.effects, result.uncompensated, view.pending) == ([], [], [])
    # Nobody has called it, so it has not failed.
    assert states(result)["refund"] == "skipped"
    assert "not called: cancelled by oscar" in (step(result, "refund").error or "")
    assert ("refund", "skipped") in {(row["step_id"], row["state"]) for row in stage.step_rows(run)}
    [approval] = stage.approval_rows(run)
    assert (approval["approval_id"], approval["state"]) == (request.approval_id, "void")


@pytest.mark.parametrize("database", DATABASES)
async def test_cancelling_undoes_what_was_done_last_first(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await refunded_and_restocking(stage, order_id)
        await run.cancel(mode="compensate")
        stage.shop.clear_faults()
        result = await run.result()

    assert result.state is RunState.CANCELLED
    assert result.uncompensated == []
    assert stage.shop.counts(order_id) == {
        "refunds": 1,
        "refund_cancellations": 1,
        "restocks": 1,
        "restock_undos": 1,
        "mails": 0,
        "ticket_closures": 0,
    }
    undone = await stage.events(run, "effect.compensated")
    assert [event["step_id"] for event in undone] == ["restock", "refund"]


@pytest.mark.parametrize(
    ("mode", "reason"), [("keep", "kept on cancel"), ("cleanup", "no cleanup")]
)
async def test_cancel_without_compensation_keeps_the_effects_and_lists_them(
    stage: Stage, order_id: str, mode: str, reason: str
) -> None:
    async with stage.worker_here():
        run = await refunded_and_restocking(stage, order_id)
        await run.cancel(mode=mode)
        stage.shop.clear_faults()
        result = await run.result()

    assert result.state is RunState.CANCELLED
    listed = {view.tool: view.reason or "" for view in result.uncompensated}
    assert listed.keys() == {"payments.refund", "inventory.restock"}
    assert all(reason in why for why in listed.values())
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 0)
    assert (counts["restocks"], counts["restock_undos"], counts["mails"]) == (1, 0, 0)


async def test_temporals_cancellation_compensates(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await refunded_and_restocking(stage, order_id)
        await run.handle.cancel()
        stage.shop.clear_faults()
        view = await cancelled_by_temporal(run)

    assert view.result.uncompensated == []
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)
    assert (counts["restocks"], counts["restock_undos"], counts["mails"]) == (1, 1, 0)
    assert [event["type"] for event in await stage.events(run)][-1] == "run.cancelled"


@pytest.mark.parametrize("by", ["update", "temporal"])
async def test_cancelling_does_not_stop_unwinding(stage: Stage, order_id: str, by: str) -> None:
    stage.shop.fault("restock_undos", hold="after")
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        await run.in_state(RunState.COMPENSATING)
        if by == "update":
            assert "ending already" in await run.cancel(mode="keep")
            stage.shop.clear_faults()
            view_result = await run.result()
            assert view_result.state is RunState.FAILED
        else:
            await run.handle.cancel()
            stage.shop.clear_faults()
            with pytest.raises(WorkflowFailureError):
                await asyncio.wait_for(run.handle.result(), 60)

    counts = stage.shop.counts(order_id)
    assert (counts["restock_undos"], counts["refund_cancellations"]) == (1, 1)
    assert [event["type"] for event in await stage.events(run)][-1] == "run.failed"


async def test_cancelling_does_not_stop_a_retried_undo(stage: Stage, order_id: str) -> None:
    # The undo fails at first, so that the cancellation meets it between two attempts.
    stage.shop.fault("restock_undos", fail="before", status=503, times=1)
    before = stage.shop.requests("restock_undos")["finished"]
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        await asyncio.to_thread(stage.shop.wait_finished, "restock_undos", before + 1)
        await run.handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(run.handle.result(), 60)
    counts = stage.shop.counts(order_id)
    assert (counts["restock_undos"], counts["refund_cancellations"]) == (1, 1)
    assert [event["type"] for event in await stage.events(run)][-1] == "run.failed"


@pytest.mark.parametrize("by", ["update", "temporal"])
async def test_cancelling_while_opening_calls_nothing(stage: Stage, order_id: str, by: str) -> None:
    opening = Pause("open_run")
    async with stage.worker_here(client=opening.client(stage.client)):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await opening.reached()
        # By update it is answered once the run is open: only then can the ledger judge it.
        cancelling = asyncio.create_task(cancel(run, by))
        await run.history_has(
            "workflow_execution_update_accepted"
            if by == "update"
            else "workflow_execution_cancel_requested"
        )
        opening.go_on()
        await cancelling
        if by == "update":
            assert (await run.result()).state is RunState.CANCELLED
        else:
            await cancelled_by_temporal(run)
    assert {row["state"] for row in stage.step_rows(run)} == {"skipped"}
    assert stage.approval_rows(run) == []


@pytest.mark.parametrize("by", ["update", "temporal"])
async def test_cancelling_waits_for_no_request(stage: Stage, order_id: str, by: str) -> None:
    asking = Pause("request_approval")
    async with stage.worker_here(client=asking.client(stage.client)):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await asking.reached()
        await cancel(run, by)
        asking.go_on()
        if by == "update":
            assert (await run.result(timeout_s=30)).state is RunState.CANCELLED
        else:
            await cancelled_by_temporal(run)
        assert states((await run.view()).result)["refund"] == "skipped"
    assert set(stage.shop.counts(order_id).values()) == {0}
    # It may not have been written at all.
    assert {row["state"] for row in stage.approval_rows(run)} <= {"void"}


async def test_a_doubtful_call_is_not_repeated_after_a_cancel(stage: Stage, order_id: str) -> None:
    # The call's answer is lost, and only a human can tell what became of it.
    stage.shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail="drop_after", times=1)
    async with stage.worker_here(tool_modules=NEITHER):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        await run.in_state(RunState.NEEDS_INTERVENTION)
        await run.cancel(mode="compensate")
        view = await run.until(lambda view: view.result.error is not None)
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        [question] = view.result.waiting_for
        await stage.no_call_may_arrive(run)
        [refund] = stage.shop.world(order_id)["refunds"]
        assert refund["cancellations"] == 0
        await run.resolve(intervention_id=question.id, outcome="compensated")
        result = await run.result()
    assert step(result, "refund").undone == "as a human says"
    assert result.state is RunState.CANCELLED
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert result.uncompensated == []


async def test_a_lost_call_is_not_repeated_after_a_cancel(stage: Stage, order_id: str) -> None:
    # Cancelled while the call is under way; then its answer is lost.
    stage.shop.fault(
        "refunds", ignore_keys=True, ignore_lookup=True, hold="before", fail="drop_before"
    )
    before = stage.shop.requests("refunds")["received"]
    async with stage.worker_here(tool_modules=NEITHER):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        await asyncio.to_thread(stage.shop.wait_requests, "refunds", before + 1)
        await run.cancel(mode="compensate")
        stage.shop.clear_faults()
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        [question] = view.result.waiting_for
        await stage.no_call_may_arrive(run)
        await run.resolve(intervention_id=question.id, outcome="not_happened")
        result = await run.result()
    assert result.state is RunState.CANCELLED
    assert stage.shop.requests("refunds")["received"] == before + 1
    assert stage.shop.counts(order_id)["refunds"] == 0
