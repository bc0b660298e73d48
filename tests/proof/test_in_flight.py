"""Each run pays back, restocks and tells its customer, and its worker dies in one of its calls.

``in_flight.yaml`` says what was changed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.plan.plan import Durability
from tests.e2e.stage import Stage
from tests.proof.cells import (
    SEED,
    TOOLS,
    Cell,
    Show,
    assert_kept,
    call,
    dying_workers,
    shop_of,
)

# Two hundred workers start, one after another in each mode.
pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]

#: What is claimed and has no outcome yet: not sent, on the wire, or answered.
IN_FLIGHT = (CrashPoint.AFTER_CLAIM, CrashPoint.DURING_CALL, CrashPoint.AFTER_CALL)


def steps_for(order: str) -> list[dict[str, Any]]:
    paid = call("nothing", order, tool="pay.right")
    steps = [paid, call("lookup", order), call("key", order)]
    return [{**step, "id": f"{number}-{order}"} for number, step in enumerate(steps)]


@pytest.mark.parametrize(
    ("database", "kills"),
    [
        ("sqlite", 9),
        pytest.param("sqlite", 200, marks=pytest.mark.exhaustive),
        pytest.param("postgresql", 209, marks=[pytest.mark.exhaustive, pytest.mark.postgres]),
    ],
)
async def test_no_kill_in_flight_doubles_or_loses_anything(
    stage: Stage, show: Show, database: str, kills: int
) -> None:
    async def kill(cell: Cell, times: int) -> None:
        own, draw = cell.stage, random.Random(f"{SEED} {database} {cell.labels}")
        for _ in range(times):
            cell.orders.append(order := shop.new_order())
            steps = steps_for(order)
            struck, point = draw.choice(steps), draw.choice(IN_FLIGHT)
            at = f"{struck['tool']}:{point}@{struck['id']}"
            with own.worker(crash_at=at, **TOOLS) as doomed:
                await asyncio.to_thread(doomed.wait_ready)
                await cell.start(*steps, durability=cell.labels["durability"])
                await asyncio.to_thread(doomed.wait_killed)
                cell.kills += 1
        async with dying_workers(own, 0, draw):
            await cell.end()

    endpoints = ("refunds", "restocks", "mails")
    slow = [{"delay_before_s": 0.4}, {"delay_after_s": 0.4}]
    with shop_of(stage, "first", **dict.fromkeys(endpoints, (0.5, slow))) as shop:
        cells = []
        for mode in Durability:
            queue, folder = f"{stage.task_queue}-{mode}", stage.folder / mode
            own = replace(stage, shop=shop, task_queue=queue, folder=folder)
            labels = {"ledger": database, "durability": mode.value}
            cells.append(Cell(own, shop, labels, "lookup, key", endpoints))
        shares = [len(range(kills)[number :: len(cells)]) for number in range(len(cells))]
        await asyncio.gather(*map(kill, cells, shares))
        for cell in cells:
            assert_kept(cell.judge(show))
            assert cell.state() == {"completed"}
        assert sum(cell.kills for cell in cells) == kills
