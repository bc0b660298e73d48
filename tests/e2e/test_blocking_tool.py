"""A call that cannot be stopped at its deadline takes its worker down, before it does harm (G1)."""

from __future__ import annotations

import pytest

from surehand.activities.worker.watchdog import EXIT_CODE
from surehand.workflows.contracts.states import RunState
from tests.e2e.runs import example_plan
from tests.e2e.stage import SHOP_TOOLS, Stage

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("what", ["refund", "read"])
async def test_a_tool_that_blocks_its_worker_ends_it_and_another_worker_goes_on(
    stage: Stage, order_id: str, what: str
) -> None:
    with stage.worker(tool_modules=f"tests.variants.{what}_blocks") as blocked:
        blocked.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        if what == "refund":
            await run.approve()
        assert blocked.wait_exit() == EXIT_CODE
    with stage.worker(tool_modules=SHOP_TOOLS):
        if what == "read":
            await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
