"""What a plan does with its tools' answers: "no" is a value, and what is ready runs in parallel."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowExecutionStatus

from surehand.workflows.contracts.base import RunState
from tests.e2e.plans import mail_step, plan, refund_step
from tests.e2e.runs import decision_on, states, step
from tests.e2e.stage import Stage


async def test_a_no_may_be_gone_on_from_and_later_steps_see_it(stage: Stage, order_id: str) -> None:
    note = mail_step(order_id, "note")
    note["params"]["body"] = "It says: ${refund.no.code}"
    _, result = await stage.play(
        plan(refund_step("no-such-order", on_no="continue"), note), approve=True
    )
    assert result.state is RunState.COMPLETED
    assert states(result) == {"refund": "succeeded", "note": "succeeded"}
    [mail] = stage.shop.world(order_id)["mails"]
    assert mail["body"] == "It says: order_not_found"


async def test_a_run_with_a_running_step_is_not_parked(stage: Stage, order_id: str) -> None:
    stage.shop.fault("mails", hold="before")
    async with stage.worker_here():
        run = await stage.start(plan(refund_step(order_id), mail_step(order_id, "hello", after=[])))
        await run.asks("refund")
        assert (await run.view()).result.state is RunState.RUNNING
        stage.shop.clear_faults()
        await run.in_state(RunState.WAITING_APPROVAL)
        await run.approve()
        await run.completed()


# In `async` the run fails while the ledger is being asked for the approval.
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_failing_run_waits_for_no_approval(stage: Stage, order_id: str, mode: str) -> None:
    async with stage.worker_here():
        close = {"id": "close", "tool": "tickets.close", "params": {"ticket_id": "ticket-78"}}
        hello = mail_step(order_id, "hello")
        run = await stage.start(
            plan(refund_step(order_id), {**hello, "after": []}, {**close, "after": ["hello"]}),
            durability=mode,
        )
        result = await run.result()
    assert result.state is RunState.FAILED
    assert states(result) == {"refund": "skipped", "hello": "succeeded", "close": "failed"}
    assert {row["state"] for row in stage.approval_rows(run)} <= {"void"}
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_a_rate_limited_run_says_so_and_goes_on(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", retry_after=2, times=1)
    async with stage.worker_here():
        run = await stage.start(plan(refund_step(order_id)))
        await run.approve()
        view = await run.in_state(RunState.WAITING_RATE_LIMIT)
        result = await run.result()
    assert step(view.result, "refund").state == "waiting_rate_limit"
    assert "rate limited until" in (step(view.result, "refund").error or "")
    assert result.state is RunState.COMPLETED
    assert step(result, "refund").error is None
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_too_long_pause_is_not_waited_for(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", retry_after=240)
    calls = stage.shop.requests("refunds")["received"]
    async with stage.worker_here():
        step_of = refund_step(order_id, on_failure="pause", time_limit="2m")
        run = await stage.start(plan(step_of))
        await run.approve()
        view = await run.in_state(RunState.PAUSED_FAILURE)
        await run.cancel()
        await run.result()
    shown = step(view.result, "refund")
    assert ("429" in (shown.error or ""), shown.attempts) == (True, 1)
    assert stage.shop.requests("refunds")["received"] == calls + 1
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_a_rate_limited_run_can_be_cancelled(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", retry_after=240, times=1)
    async with stage.worker_here():
        run = await stage.start(plan(refund_step(order_id)))
        await run.approve()
        await run.in_state(RunState.WAITING_RATE_LIMIT)
        await run.cancel()
        result = await run.result()
    assert result.state is RunState.CANCELLED
    assert stage.shop.counts(order_id)["refunds"] == 0


@pytest.mark.parametrize("how", ["rejected", "something left", "expired"])
async def test_temporal_shows_a_run_as_completed_only_if_people_rejected_it_and_nothing_is_left(
    stage: Stage, order_id: str, how: str
) -> None:
    before = [mail_step(order_id, "hello")] if how == "something left" else []
    pay = refund_step(order_id)
    if how == "expired":
        pay["approval"] = {"expires_in": "1ms"}
    async with stage.worker_here():
        run = await stage.start(plan(*before, pay))
        if how != "expired":
            asked = await run.asks("refund")
            await run.decide(decision_on(asked, outcome="reject", reason="too much"))
        result = await run.result()
        shown = await run.handle.describe()
    assert result.state is RunState.FAILED
    assert bool(result.uncompensated) is (how == "something left")
    assert shown.status is (
        WorkflowExecutionStatus.COMPLETED if how == "rejected" else WorkflowExecutionStatus.FAILED
    )
    assert stage.shop.counts(order_id)["refunds"] == 0
