"""Guarantee G1 against attempts that are late: a worker that was frozen wakes up and goes on.

Nothing kills a frozen worker, so nothing stops it from finishing what it began. What it does after
its lease must not count, and a call that it has not begun must not be begun.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from surehand.activities.worker import watchdog
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.states import RunState
from tests import freezing_worker
from tests.e2e.runs import example_plan, step
from tests.e2e.stage import SHOP_TOOLS, Stage

pytestmark = pytest.mark.crash
DEDUPES = "tests.variants.refund_dedupes"


@pytest.mark.parametrize("tools", [SHOP_TOOLS, DEDUPES], ids=["lookup", "dedupes"])
async def test_a_worker_frozen_between_claim_and_call_does_not_call_when_it_wakes_up(
    stage: Stage, order_id: str, tools: str
) -> None:
    stage.shop.fault("refunds", ignore_keys=True)
    before = stage.shop.requests("refunds")["received"]
    crash_at = f"payments.refund:{CrashPoint.AFTER_CLAIM}"
    with stage.freezing_worker(tool_modules=tools, crash_at=crash_at) as frozen:
        frozen.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        await asyncio.to_thread(frozen.wait_said, freezing_worker.CALLS)
        frozen.signal(signal.SIGTERM)  # it takes no more work, which would be lost with it
        frozen.wait_said("worker.stopping")
        (stage.folder / freezing_worker.GO_ON).touch()
        frozen.wait_said(freezing_worker.FREEZES)
        with stage.worker(tool_modules=tools):
            result = await run.result(timeout_s=200)
            frozen.signal(signal.SIGCONT)
            assert await asyncio.to_thread(frozen.wait_exit) == 0

    assert result.state is RunState.COMPLETED
    assert step(result, "refund").attempts > 1
    assert stage.shop.requests("refunds")["received"] == before + 1
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert set((await stage.effect_states(run)).values()) == {"committed"}


async def test_a_worker_frozen_in_its_call_changes_nothing_when_it_wakes_up(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    before = stage.shop.requests("refunds")["received"]
    with stage.worker() as frozen:
        frozen.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        stage.shop.wait_requests("refunds", before + 1)
        frozen.signal(signal.SIGTERM)  # it takes no more work, which would be lost with it
        frozen.wait_said("worker.stopping")
        frozen.signal(signal.SIGSTOP)
        stage.shop.clear_faults()
        with stage.worker():
            # Where it froze before its polls had ended, Temporal hands work to it, and each time
            # gives it out again only three seconds later.
            result = await run.result(timeout_s=200)
            frozen.signal(signal.SIGCONT)
            # It loses its entry and stops; or its watchdog ends it, if it slept past the deadline.
            assert await asyncio.to_thread(frozen.wait_exit) in (0, watchdog.EXIT_CODE)

    assert result.state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + 1
    assert stage.shop.counts(order_id)["refunds"] == 1
    entries = {row["tool"]: row for row in await stage.effects(run)}
    assert entries["payments.refund"]["state"] == "committed"
    assert entries["payments.refund"]["receipt"] == step(result, "refund").output
    # Woken up, it may have read the shop's answer: that is kept as evidence.
    types = [event["type"] for event in await stage.events(run)]
    assert set(types[types.index("run.completed") + 1 :]) <= {"effect.late_receipt"}
