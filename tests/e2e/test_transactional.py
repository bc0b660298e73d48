"""A transactional tool in a run: killed anywhere, booked once, and never in doubt (G1, G2, G5)."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.base import RunState
from tests.e2e.plans import plan
from tests.e2e.runs import step
from tests.e2e.stage import Stage
from tests.variants.credits import TABLE

CREDITS = "tests.variants.credits"
#: Before its one transaction, in it, and behind it.
POINTS = (
    CrashPoint.AFTER_CLAIM,
    CrashPoint.DURING_CALL,
    CrashPoint.AFTER_CALL,
    CrashPoint.BEFORE_REPORT,
)
ADD = {"id": "add", "tool": "credits.add", "params": {"account": "ada", "amount": 5}}


def booked(stage: Stage) -> list[int]:
    with stage.ledger.transaction("default") as tx:
        rows = tx.all(text("SELECT amount FROM credits ORDER BY amount DESC"))
    return [row["amount"] for row in rows]


@pytest.fixture(autouse=True)
def credits_table(stage: Stage) -> None:
    with stage.ledger.transaction("default") as tx:
        tx.execute(text(TABLE))


@pytest.mark.crash
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_at_any_point_is_one_booking(stage: Stage, point: CrashPoint) -> None:
    run = await stage.die_at(f"credits.add:{point}", plan(ADD), tool_modules=CREDITS)
    with stage.worker(tool_modules=CREDITS):
        result = await run.completed()

    assert booked(stage) == [5]
    assert set((await stage.effect_states(run)).values()) == {"committed"}
    assert step(result, "add").attempts > 1


async def test_a_failed_run_books_back_and_keeps_nothing_of_its_failed_step(stage: Stage) -> None:
    refuse = {"id": "refuse", "tool": "credits.refuse", "params": {"account": "ada"}}
    _, result = await stage.play(plan(ADD, refuse), tool_modules=CREDITS)

    assert result.state is RunState.FAILED
    assert booked(stage) == [5, -5]
    assert result.uncompensated == []
