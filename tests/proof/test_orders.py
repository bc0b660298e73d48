"""Orders are paid back by processes that are killed, at a payment service that drops answers.

``orders.yaml`` says what was changed.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from surehand.process.children import Child, python
from tests.e2e.runs import until
from tests.e2e.stage import Stage
from tests.proof.__main__ import ROOT
from tests.proof.cells import (
    ENDED_S,
    SEED,
    Cell,
    Show,
    assert_kept,
    call,
    dying_workers,
    seldom,
    shop_of,
)
from tests.proof.packages import Package

pytestmark = [pytest.mark.crash, pytest.mark.slow]

PROCESSES = 12
ORDERS = 300
#: Longer than the caller waits.
UNANSWERED = [{"fail": "drop_before"}, {"fail": "drop_after"}, {"delay_after_s": 3.0}]
DISTURBED = {"refunds": (0.5, UNANSWERED), "refunds.lookup": (0.3, UNANSWERED)}
CALL4AGENTS = (
    "call4agents==0.5.0 "
    "--hash=sha256:9ef4cf674ed2a6c797716ee9d4cea4c0b46a831491c15bf74088cba874752695"
)


@pytest.fixture
def database() -> str:
    return "sqlite"


def count_deaths(orders: int) -> int:
    """Return how often each process dies."""
    return 1 + orders // 60


@pytest.mark.parametrize("orders", [30, *seldom(ORDERS)])
async def test_orders_are_paid_once_by_twelve_processes_that_die(
    stage: Stage, show: Show, orders: int
) -> None:
    with shop_of(stage, **DISTURBED) as shop:
        stage = replace(stage, shop=shop)
        cell = Cell(stage, shop, {"system": "Surehand"}, "lookup", ("refunds",))
        async with AsyncExitStack() as working:
            killed = [
                await working.enter_async_context(
                    dying_workers(stage, count_deaths(orders), random.Random(f"{SEED} {process}"))
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("system", ["call4agents", "nothing"])
async def test_the_same_orders_without_surehand(
    stage: Stage, show: Show, tmp_path: Path, system: str
) -> None:
    folder = Package.install(tmp_path, CALL4AGENTS).folder
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, folder)))}

    async def pay(process: int, orders: list[str]) -> tuple[int, int]:
        """Return how many processes were killed, and how many orders are left in doubt."""
        draw, log = random.Random(f"{SEED} {process}"), folder / f"{process}.log"
        command = python("tests.proof.order_payer", system, str(folder), shop.url, *orders)
        for deaths in range(count_deaths(ORDERS)):
            with Child(command, environment=environment, log=log) as doomed:
                await asyncio.to_thread(doomed.wait_said, "ready")
                await asyncio.sleep(draw.uniform(0.5, 2.5))
                if doomed.returncode is not None:
                    return deaths, log.read_text().count("in doubt")
                doomed.kill()
        with Child(command, environment=environment, log=log) as last:
            assert await until(lambda: last.returncode, lambda code: code is not None, ENDED_S) == 0
        return count_deaths(ORDERS), log.read_text().count("in doubt")

    with shop_of(stage, **DISTURBED) as shop:
        orders = [shop.new_order() for _ in range(ORDERS)]
        shares = [orders[process::PROCESSES] for process in range(PROCESSES)]
        ended = await asyncio.gather(*map(pay, range(PROCESSES), shares))
        labels = {"system": system}
        cell = Cell(stage, shop, labels, "lookup" if system != "nothing" else system, ("refunds",))
        cell.orders, cell.kills = orders, sum(kills for kills, _ in ended)
        row = cell.judge(show, **{"runs": ORDERS, "in doubt": sum(doubt for _, doubt in ended)})
        assert row["lost"] == 0
        assert (row["doubled"] > 0) >= (system == "nothing")
