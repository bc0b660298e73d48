"""Runs that are paused, limited steps, and modes with fewer rows in the history."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from surehand.activities.worker.crash_points import CrashPoint
from surehand.client.messages import new_token, read_token
from surehand.client.outcome import call_progress
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb, Way
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.plan import Plan
from tests.e2e import executions
from tests.e2e.interceptors import Pause
from tests.e2e.messages import told
from tests.e2e.plans import mail_step, plan, refund_step
from tests.e2e.runs import (
    Run,
    decision_on,
    refund_plan,
    states,
    step,
    timeline,
    until,
)
from tests.e2e.stage import Stage


async def test_a_resume_token_outlasts_a_call_under_way(stage: Stage, order_id: str) -> None:
    calling = Pause("execute_tools")
    look = {"id": "look", "tool": "orders.read", "params": {"order_id": order_id}}
    async with stage.worker_here(client=calling.client(stage.client)):
        run = await stage.start(plan(refund_step(order_id), look))
        await run.decide(decision_on(await run.asks()))
        await calling.reached()
        text, key = new_token(DEFAULT_TENANT, run.run_id, "uma")
        await told(run, Verb.PAUSE, PauseRun(actor="uma", resume_key=key))
        calling.go_on()
        await run.in_state(RunState.PAUSED_USER)
        token = read_token(text, DEFAULT_TENANT, run.run_id)
        await told(run, Verb.RESUME, token.proof_of(ResumeRun(actor="uma")))
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1


#: An attempt is made at once, the next one long after the limit.
PATIENT = {"retries_in_doubt": "60s", "retries_dependency_down": "60s", "retries_transient": "60s"}
OVER = "its time limit (1 s) is over"


def plan_for(order_id: str, refund: dict[str, Any]) -> Plan:
    """Return a plan of a refund within a second, and a mail after it."""
    return plan(refund_step(order_id, time_limit="1s", **refund), mail_step(order_id, "note"))


async def refunding(
    stage: Stage, order_id: str, *, durability: str | None = None, **refund: Any
) -> Run:
    """Start a run that refunds an order, and approve it."""
    run = await stage.start(plan_for(order_id, refund), durability=durability)
    await run.approve()
    return run


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_call_at_the_limit_is_kept(stage: Stage, order_id: str, durability: str) -> None:
    stage.shop.fault("refunds", delay_before_s=2.5, times=1)
    async with stage.worker_here(**PATIENT):
        run = await refunding(stage, order_id, durability=durability)
        result = await run.completed()

    assert step(result, "refund").attempts == 1
    assert stage.paid(order_id) == (1, 0)
    assert (await stage.effect_states(run))["payments.refund"] == "committed"


@pytest.mark.parametrize(
    ("on_failure", "ends", "mails"),
    [("continue", RunState.COMPLETED, 1), ("compensate", RunState.FAILED, 0)],
)
async def test_what_a_step_may_have_done_when_its_time_is_over_is_undone(
    stage: Stage, order_id: str, on_failure: str, ends: RunState, mails: int
) -> None:
    # Given a refund that is made, while nobody hears of it and would ask for a minute
    stage.shop.fault("refunds", fail="drop_after", times=1)
    async with stage.worker_here(**PATIENT):
        run = await refunding(stage, order_id, on_failure=on_failure)
        result = await run.result()
        view = await run.view()

    assert result.state is ends
    assert OVER in (step(result, "refund").error or "")
    assert "compensated" in timeline(view, "refund")
    assert stage.paid(order_id) == (1, 1)
    assert stage.shop.counts(order_id)["mails"] == mails
    assert (await stage.effect_states(run))["payments.refund"] == "compensated"


async def test_a_retried_step_has_its_time_again(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", fail="drop_after", times=1)
    async with stage.worker_here(**PATIENT):
        run = await refunding(stage, order_id, on_failure="pause")
        await run.in_state(RunState.PAUSED_FAILURE)
        await run.handle.execute_update(
            "resume", ResumeRun(actor="uma", step="refund", way=Way.RETRY)
        )
        await run.approve()
        await run.completed()

    assert stage.paid(order_id) == (1, 0)


async def test_a_reads_time_is_over_and_people_have_theirs(stage: Stage, order_id: str) -> None:
    # Given a read that would be tried again in a minute, and an approval that comes late
    stage.shop.fault("orders", fail="before", status=503)
    before = stage.shop.requests("orders")["received"]
    reads = {"id": "order", "tool": "orders.read", "params": {"order_id": order_id}}
    limited = reads | {"time_limit": "1s", "on_failure": "continue", "approval": "required"}
    async with stage.worker_here(**PATIENT):
        run = await stage.start(Plan.model_validate([limited]))
        await run.asks()
        late = stage.now() + timedelta(seconds=1.2)
        await until(stage.now, lambda now: now > late)
        await run.approve()
        result = await run.completed()

    assert (states(result)["order"], step(result, "order").error) == ("failed", OVER)
    assert stage.shop.requests("orders")["received"] == before + 1


MODES = ["async", "exit"]


async def called(run: Run) -> Counter[str]:
    """Return how often a run has begun an activity of each name; "local": a tool's, here."""
    found: Counter[str] = Counter()
    async for event in run.handle.fetch_history_events():
        name = executions.called(event)
        here = event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED
        found["local" if here and name == "execute_tools" else name] += 1
    return found


async def at_step(run: Run) -> str | None:
    """Return the step that the run's batch is at, as `show` tells it."""
    return (await call_progress(await run.handle.describe())).under_way


async def restocking(stage: Stage, order_id: str, mode: str) -> Run:
    """Return a run whose refund is committed and whose restock is under way in the shop."""
    # A local activity lets no message through for 2.4 s; then its workflow task is written.
    stage.shop.fault("restocks", delay_after_s=4)
    restocks = stage.shop.counts()["restocks"]
    run = await stage.start(refund_plan(order_id), durability=mode)
    await run.approve()
    await asyncio.to_thread(stage.shop.wait_effects, "restocks", restocks + 1)
    return run


@pytest.mark.parametrize(
    ("mode", "calls"),
    # All five steps; and those before the approval, then it and those behind it.
    [("async", {"local": 5}), ("exit", {"execute_tools": 2})],
)
async def test_a_run_ends_as_in_sync_with_fewer_rows_in_its_history(
    stage: Stage, order_id: str, mode: str, calls: dict[str, int]
) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id), durability=mode)
        await run.approve()
        result = await run.result()
        assert (await run.view()).durability == mode

    assert result.state is RunState.COMPLETED
    assert set(states(result).values()) == {"succeeded"}
    assert stage.made(order_id) == (1, 1, 1)
    found = await called(run)
    assert {name: found[name] for name in ("local", "execute_tools") if found[name]} == calls


@pytest.mark.crash
@pytest.mark.parametrize("mode", MODES)
async def test_an_unreported_read_keeps_its_answer(stage: Stage, order_id: str, mode: str) -> None:
    run = await stage.die_at(
        f"refunds.calculate:{CrashPoint.BEFORE_REPORT}",
        refund_plan(order_id),
        durability=mode,
    )
    # What a write may rest on already is not read anew.
    stage.shop.edit_order(order_id, status="shipped")
    async with stage.worker_here():
        await run.asks()
        await run.cancel()
        result = await run.result()

    order = step(result, "order")
    assert isinstance(order.output, dict)
    assert (order.output["status"], order.replayed) == ("paid", True)
    reads = [row for row in stage.step_rows(run) if row["step_id"] == "order"]
    assert [row["output"] for row in reads] == [order.output]


async def test_a_paused_batch_goes_on_where_it_was(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await restocking(stage, order_id, "exit")
        assert await until(lambda: at_step(run), lambda at: at == "restock")
        await run.handle.execute_update(Verb.PAUSE, PauseRun(actor="olga"))
        await run.in_state(RunState.PAUSED_USER)
        await run.handle.execute_update(Verb.RESUME, ResumeRun(actor="olga"))
        await run.completed()

    assert stage.made(order_id) == (1, 1, 1)
    assert len(await stage.events(run, "effect.claimed")) == 3


@pytest.mark.crash
async def test_a_cancel_undoes_what_only_the_ledger_knows(stage: Stage, order_id: str) -> None:
    run = await stage.die_at(
        f"mail.send:{CrashPoint.BEFORE_CLAIM}",
        refund_plan(order_id),
        durability="exit",
        approve=True,
    )
    # The batch has refunded and restocked, and nobody has heard of it.
    await run.handle.signal("cancel", {"actor": "oscar"})
    result = await stage.finish(run)

    assert result.state is RunState.CANCELLED
    counts = stage.shop.counts(order_id)
    assert (counts["restocks"], counts["restock_undos"], counts["mails"]) == (1, 1, 0)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)
