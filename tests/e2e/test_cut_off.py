"""G1, G5: a worker that is cut off from the Temporal server works on, and somebody else does too.

It can reach the ledger and the shop all the time: nobody but the ledger can tell it to stop.
"""

from __future__ import annotations

import asyncio

import pytest

from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.kinds import DEDUPES, LOOKUP, SHOPS, one_of_each
from tests.e2e.line import Line
from tests.e2e.runs import example_plan, step
from tests.e2e.stage import Stage
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("tools", "calls"),
    [
        # It keeps its lease, so another one waits for the outcome that it records.
        pytest.param(LOOKUP, 1, id="lookup"),
        # The shop knows the key, so another one takes over and calls again; the first one is late.
        pytest.param(DEDUPES, 2, id="dedupes"),
    ],
)
async def test_a_worker_cut_off_in_its_call_changes_nothing_when_it_is_back(
    stage: Stage, order_id: str, tools: str, calls: int
) -> None:
    # Longer than the server waits for a sign of life.
    stage.shop.fault("refunds", **SHOPS[tools], delay_after_s=4, times=1)
    before = stage.shop.requests("refunds")["received"]
    async with Line.to(stage.client.service_client.config.target_host) as line:
        environment = stage.environment(tool_modules=tools) | {"TEMPORAL_ADDRESS": line.address}
        with WorkerProcess(environment, stage.folder) as lonely:
            await asyncio.to_thread(lonely.wait_ready)
            run = await stage.start(example_plan("refund.yaml", order_id=order_id))
            await run.approve()
            await asyncio.to_thread(stage.shop.wait_requests, "refunds", before + 1)
            line.cut()
            async with stage.worker_here(tool_modules=tools):
                result = await run.result()
            line.mend()
            # It is back when it works; so all that it had to say has been said.
            look = {"id": "look", "tool": "orders.read", "params": {"order_id": order_id}}
            another = await stage.start(Plan.model_validate({"steps": [look]}))
            assert (await another.result()).state is RunState.COMPLETED
            assert await asyncio.to_thread(lonely.stop) == 0

    assert result.state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + calls
    assert step(result, "refund").attempts > 1
    await one_of_each(stage, run, order_id)
    # What it was told by the shop after it had lost its entry is kept as evidence.
    types = [event["type"] for event in await stage.events(run)]
    assert set(types[types.index("run.completed") + 1 :]) <= {"effect.late_receipt"}
