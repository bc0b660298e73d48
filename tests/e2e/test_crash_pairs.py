"""A pairwise sample of the interrupt matrix of ``refund.yaml`` (G1, G2, G5).

Which call dies x at which point x on which database x whether another worker is there already x
which durability. The refund's own points are all played in ``test_crash_points.py``; ``make
drill-full`` plays the rest.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import pytest

from surehand.activities.worker.crash_points import READ_POINTS, CrashPoint
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.durability import Durability
from tests.e2e.kinds import (
    CERTAIN,
    DEDUPES,
    LOOKUP,
    NEITHER,
    SHOPS,
    human_settles_refund,
    one_of_each,
)
from tests.e2e.runs import example_plan, step
from tests.e2e.stage import Stage
from tests.pairwise import Case, pairwise

pytestmark = pytest.mark.crash


@dataclass(frozen=True)
class Call:
    """The call whose worker dies."""

    step: str
    tool: str
    modules: str = LOOKUP
    reads: bool = False

    def __str__(self) -> str:
        return f"{self.step}-{self.modules.rpartition('_')[2]}" if self.is_refund else self.step

    @property
    def is_refund(self) -> bool:
        return self.step == "refund"


REFUNDS: Final = [Call("refund", "payments.refund", kind) for kind in (LOOKUP, DEDUPES, NEITHER)]
CALLS: Final = [
    Call("order", "orders.read", reads=True),
    Call("amount", "refunds.calculate", reads=True),
    *REFUNDS,
    Call("restock", "inventory.restock"),
    Call("mail", "mail.send"),
]
ALONE, BOTH_ARMED = "one worker, then another", "two workers at once"
MODES: Final = list(Durability)
FACTORS: Final = (CALLS, list(CrashPoint), ("sqlite", "postgresql"), (ALONE, BOTH_ARMED), MODES)
PLAYED_ELSEWHERE: Final = [
    (call, point, "sqlite", ALONE, Durability.SYNC) for call in REFUNDS for point in CrashPoint
]


def possible(case: Case) -> bool:
    call, point, *_ = case
    return not call.reads or point in READ_POINTS


def parameters() -> list[object]:
    found = []
    for call, point, database, workers, mode in pairwise(FACTORS, possible, PLAYED_ELSEWHERE):
        marks = [pytest.mark.postgres] if database == "postgresql" else []
        name = f"{call}, {point}, {database}, {workers}, {mode}"
        found.append(pytest.param(call, point, database, workers, mode, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("call", "point", "database", "workers", "mode"), parameters())
async def test_a_worker_killed_at_any_step_leaves_one_effect_of_each_kind(
    stage: Stage, order_id: str, call: Call, point: CrashPoint, workers: str, mode: Durability
) -> None:
    stage.shop.fault("refunds", **SHOPS[call.modules])
    stage.shop.fault("restocks", ignore_keys=True)
    stage.shop.fault("mails", ignore_lookup=True)
    settings = {
        "tool_modules": call.modules,
        "crash_at": f"{call.tool}:{point}@{call.step}",
        "crash_once": str(stage.folder / "crashed"),
    }
    async with AsyncExitStack() as running:
        armed = [
            running.enter_context(stage.worker(**settings))
            for _ in range(2 if workers == BOTH_ARMED else 1)
        ]
        for worker in armed:
            worker.wait_ready()
        plan = example_plan("refund.yaml", order_id=order_id)
        run = await stage.start(plan, durability=mode)
        approving = asyncio.create_task(run.approve())
        if workers == ALONE:
            await asyncio.to_thread(armed[0].wait_killed)
            await running.enter_async_context(stage.worker_here(tool_modules=call.modules))
        await approving
        asked = call.modules == NEITHER and point not in CERTAIN
        if asked:
            await human_settles_refund(stage, run, order_id)
        result = await run.result()
        assert sum(worker.killed for worker in armed) == 1

    assert result.state is RunState.COMPLETED
    if mode is Durability.SYNC:  # elsewhere a crash may begin the counting anew
        view = step(result, call.step)
        assert view.attempts > 1 or (view.replayed and call.reads)  # recorded: not read again
    await one_of_each(stage, run, order_id)
    assert len(stage.intervention_rows(run)) == asked
