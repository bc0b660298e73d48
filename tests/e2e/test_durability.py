"""Durability ``async`` and ``exit``: fewer rows in the history, and all guarantees hold.

Killed workers are in ``test_crash_points.py``, which plays all modes.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from temporalio.api.enums.v1 import EventType

from surehand.activities.worker.crash_points import CrashPoint
from surehand.client.outcome import call_progress
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from tests.e2e import executions
from tests.e2e.runs import Run, example_plan, states, step, until
from tests.e2e.stage import Stage

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
    run = await stage.start(example_plan("refund.yaml", order_id=order_id), durability=mode)
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
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), durability=mode)
        await run.approve()
        result = await run.result()
        assert (await run.view()).durability == mode

    assert result.state is RunState.COMPLETED
    assert set(states(result).values()) == {"succeeded"}
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)
    found = await called(run)
    assert {name: found[name] for name in ("local", "execute_tools") if found[name]} == calls


@pytest.mark.crash
@pytest.mark.parametrize("mode", MODES)
async def test_an_unreported_read_keeps_its_answer(stage: Stage, order_id: str, mode: str) -> None:
    with stage.worker(crash_at=f"refunds.calculate:{CrashPoint.BEFORE_REPORT}") as doomed:
        doomed.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), durability=mode)
        doomed.wait_killed()
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
        result = await run.result()

    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)
    assert len(await stage.events(run, "effect.claimed")) == 3


@pytest.mark.crash
async def test_a_cancel_undoes_what_only_the_ledger_knows(stage: Stage, order_id: str) -> None:
    with stage.worker(crash_at=f"mail.send:{CrashPoint.BEFORE_CLAIM}") as doomed:
        doomed.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), durability="exit")
        await run.approve()
        doomed.wait_killed()
    # The batch has refunded and restocked, and nobody has heard of it.
    await run.handle.signal("cancel", {"actor": "oscar"})
    async with stage.worker_here():
        result = await run.result()

    assert result.state is RunState.CANCELLED
    counts = stage.shop.counts(order_id)
    assert (counts["restocks"], counts["restock_undos"], counts["mails"]) == (1, 1, 0)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)
