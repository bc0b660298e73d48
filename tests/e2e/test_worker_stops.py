"""A deploy: a worker that is told to stop ends its call, and the next one goes on."""

from __future__ import annotations

import asyncio
import signal

from surehand.workflows.contracts.states import RunState
from tests.e2e.runs import decision_on, example_plan, step
from tests.e2e.stage import Stage


async def test_a_worker_told_to_stop_ends_its_call_and_nothing_is_repeated(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    before = stage.shop.requests("refunds")["received"]
    with stage.worker() as leaving:
        leaving.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        stage.shop.wait_requests("refunds", before + 1)
        leaving.signal(signal.SIGTERM)
        leaving.wait_said("worker.stopping")
        with stage.worker() as next_one:
            next_one.wait_ready()
            stage.shop.clear_faults()
            assert await asyncio.to_thread(leaving.stop) == 0
            result = await run.result()

    assert result.state is RunState.COMPLETED
    assert step(result, "refund").attempts == 1
    assert stage.shop.requests("refunds")["received"] == before + 1
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)


async def test_a_run_that_waits_for_approval_survives_a_deploy(stage: Stage, order_id: str) -> None:
    # With workflows in memory, as in production: the next worker has none of this one's.
    with stage.worker() as leaving:
        leaving.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        assert leaving.stop() == 0
    await run.send(decision_on(request))  # nobody is there to take it
    with stage.worker():
        result = await run.result()
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
