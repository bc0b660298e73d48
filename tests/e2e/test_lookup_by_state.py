"""G2: a write is not skipped because the world was so already, nor made twice (real kills)."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.states import RunState
from surehand.workflows.options import CALL_MARGIN
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, step
from tests.e2e.stage import Stage
from tests.variants.flights import now

pytestmark = pytest.mark.crash

TOOLS: Final = {"tool_modules": "tests.variants.flights"}
#: A worker that dies here leaves the call's outcome unknown.
UNKNOWN: Final = (CrashPoint.AFTER_CLAIM, CrashPoint.DURING_CALL, CrashPoint.AFTER_CALL)


@pytest.fixture
def booking(tmp_path: Path) -> str:
    """A booking for another flight than the one that is wanted."""
    path = tmp_path / "booking.json"
    path.write_text(json.dumps(["LH1"]))
    return str(path)


async def killed(stage: Stage, booking: str, point: CrashPoint, durability: str = "sync") -> Run:
    params: Any = {"booking": booking, "flight": "LH2"}
    plan = Plan.model_validate([{"id": "change", "tool": "flights.change", "params": params}])
    with stage.worker(**TOOLS, crash_at=f"flights.change:{point}") as doomed:
        doomed.wait_ready()
        run = await stage.start(plan, durability=durability)
        doomed.wait_killed()
    return run


@pytest.mark.parametrize(
    ("point", "durability"),
    [*((point, "sync") for point in UNKNOWN), (UNKNOWN[0], "async"), (UNKNOWN[-1], "exit")],
)
async def test_what_was_so_before_the_call_is_for_a_human_after_a_crash(
    stage: Stage, booking: str, point: CrashPoint, durability: str
) -> None:
    Path(booking).write_text(json.dumps(["LH2"]))
    run = await killed(stage, booking, point, durability)
    calls = len(now(booking))
    async with stage.worker_here(**TOOLS):
        await run.in_state(RunState.NEEDS_INTERVENTION)

        [asked] = stage.intervention_rows(run)
        assert "its lookup was true before the call" in asked["question"]
        assert len(now(booking)) == calls == (1 if point is CrashPoint.AFTER_CLAIM else 2)
        assert await stage.effect_states(run) == {"flights.change": "in_doubt"}
        [seen] = await stage.events(run, "effect.observed")
        assert seen["body"]["answer"] == "found"
        await run.cancel(mode="keep")


@pytest.mark.parametrize("point", [point for point in CrashPoint])
async def test_an_unmet_state_is_made_once(stage: Stage, booking: str, point: CrashPoint) -> None:
    run = await killed(stage, booking, point)
    async with stage.worker_here(**TOOLS):
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert now(booking) == ["LH1", "LH2"]
    assert stage.intervention_rows(run) == []


async def test_what_is_so_already_is_called_and_told(stage: Stage, booking: str) -> None:
    Path(booking).write_text(json.dumps(["LH2"]))
    params: Any = {"booking": booking, "flight": "LH2"}
    plan = Plan.model_validate([{"id": "change", "tool": "flights.change", "params": params}])
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan)
        result = await run.result()

    assert (result.state, now(booking)) == (RunState.COMPLETED, ["LH2", "LH2"])
    assert await stage.effect_states(run) == {"flights.change": "committed"}
    [seen] = await stage.events(run, "effect.observed")
    assert seen["body"]["answer"] == "found"


async def test_a_lookups_no_after_a_crash_is_the_steps_no(stage: Stage, booking: str) -> None:
    run = await killed(stage, booking, CrashPoint.AFTER_CLAIM)
    Path(booking).write_text(json.dumps(["LH1", "closed"]))
    async with stage.worker_here(**TOOLS):
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "answered no: the booking is closed" in (step(result, "change").error or "")
    assert await stage.effect_states(run) == {"flights.change": "failed"}
    assert now(booking) == ["LH1", "closed"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_an_attempt_has_time_for_looks(stage: Stage, booking: str, durability: str) -> None:
    params: Any = {"booking": booking, "flight": "LH2"}
    change: Any = {"id": "change", "tool": "flights.change", "params": params}
    back: Any = {**change, "id": "back", "params": {**params, "flight": "LH1"}}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(Plan.model_validate([change, back]), durability=durability)
        await run.result()

    calls = ["execute_tools", "execute_tools"] if durability == "sync" else ["execute_tools"]
    given = timedelta(seconds=4 * 2) / len(calls) + CALL_MARGIN
    limits = list[tuple[str, timedelta]]()
    async for event in run.handle.fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name in calls:
            limit = scheduled.start_to_close_timeout.ToTimedelta()
            limits.append((scheduled.activity_type.name, limit))
    assert limits == [(name, given) for name in calls]
