"""Orders are paid back by processes that are killed, at a payment service that drops answers.

``orders.yaml`` says what was changed.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.e2e.stage import Stage
from tests.proof.cells import SEED, Cell, Show, assert_kept, call, dying_workers, seldom, shop_of

pytestmark = [pytest.mark.crash, pytest.mark.slow]

PROCESSES = 12
#: Longer than the caller waits.
UNANSWERED = [{"fail": "drop_before"}, {"fail": "drop_after"}, {"delay_after_s": 3.0}]


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.mark.parametrize("orders", [30, *seldom(300)])
async def test_orders_are_paid_once_by_twelve_processes_that_die(
    stage: Stage, show: Show, orders: int
) -> None:
    with shop_of(stage, refunds=(0.5, UNANSWERED), **{"refunds.lookup": (0.3, UNANSWERED)}) as shop:
        stage = replace(stage, shop=shop)
        cell = Cell(stage, shop, {"processes": f"{PROCESSES}"}, "lookup", ("refunds",))
        async with AsyncExitStack() as working:
            killed = [
                await working.enter_async_context(
                    dying_workers(stage, 1 + orders // 60, random.Random(f"{SEED} {process}"))
                )
                for process in range(PROCESSES)
            ]
            for _ in range(orders):
                cell.orders.append(order := shop.new_order())
                await cell.start(call("nothing", order, tool="pay.right"))
            await cell.end()
            cell.kills = sum(map(len, killed))
        assert_kept(cell.judge(show))
        assert cell.state() == {"completed"}
