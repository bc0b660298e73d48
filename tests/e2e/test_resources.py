"""Two runs on one resource never overlap, by the record of the resource itself."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.worker.watchdog import EXIT_CODE
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, until
from tests.e2e.stage import Stage
from tests.variants import account
from tests.variants.account import Visit

ACCOUNT = "tests.variants.account"


@pytest.fixture
def visit(tmp_path: Path) -> Visit:
    folder = tmp_path / "account"
    folder.mkdir()
    return Visit(folder=str(folder))


def plan(tool: str, visit: Visit) -> Plan:
    step = {"id": "it", "tool": tool, "params": visit.model_dump()}
    return Plan.model_validate({"steps": [step]})


async def begun(visit: Visit, run: Run) -> None:
    """Wait until the account has seen a run's call begin."""

    async def look() -> list[str]:
        return account.record(visit)

    await until(look, lambda seen: f"begins {run.run_id}" in seen)


async def waits(stage: Stage, visit: Visit, run: Run) -> None:
    """Wait until a run's call waits for the account, or has begun although it should not."""

    async def look() -> list[Any]:
        try:
            waited = await stage.events(run, "resource.waited")
        except RunNotFound:
            return []  # not opened yet
        return [*waited, *account.record(visit)[1:]]

    await until(look, bool)


@pytest.mark.parametrize(
    ("database", "second"),
    [
        ("sqlite", "account.pay"),
        pytest.param("postgresql", "account.read", marks=pytest.mark.postgres),
    ],
)
async def test_two_runs_on_one_resource_never_overlap_whatever_their_tools(
    stage: Stage, visit: Visit, second: str
) -> None:
    async with stage.worker_here(tool_modules=ACCOUNT):
        first = await stage.start(plan("account.pay", visit))
        await begun(visit, first)
        other = await stage.start(plan(second, visit))
        await waits(stage, visit, other)
        account.let_go(visit)
        results = [await first.result(), await other.result()]

    assert [result.state for result in results] == [RunState.COMPLETED] * 2
    assert account.record(visit) == [
        f"begins {first.run_id}",
        f"ends {first.run_id}",
        f"begins {other.run_id}",
        f"ends {other.run_id}",
    ]


@pytest.mark.crash
async def test_what_a_killed_worker_held_its_own_run_takes_over_and_another_gets_after_the_limit(
    stage: Stage, visit: Visit
) -> None:
    crash_at = "account.pay:during_call"
    with stage.worker(tool_modules=ACCOUNT, crash_at=crash_at) as doomed:
        doomed.wait_ready()
        first = await stage.start(plan("account.pay", visit))
        doomed.wait_killed()
    account.let_go(visit)
    other = await stage.start(plan("account.pay", visit))
    async with stage.worker_here(tool_modules=ACCOUNT):
        results = [await first.result(), await other.result()]

    assert [result.state for result in results] == [RunState.COMPLETED] * 2
    dead, *others = account.record(visit)
    assert dead == f"begins {first.run_id}"
    assert sorted(others[0::2]) == sorted(f"begins {run.run_id}" for run in (first, other))
    assert [line.replace("begins", "ends") for line in others[0::2]] == others[1::2]
    [held] = (await stage.events(first, "resource.acquired"))[:1]
    [got] = (await stage.events(other, "resource.acquired"))[:1]
    assert got["at"] >= after_the_lease_of(held), "by the database's clock"


def after_the_lease_of(acquired: dict[str, Any]) -> str:
    limit: timedelta = account.ONE_AT_A_TIME["resource_lease"]
    return (datetime.fromisoformat(acquired["at"]) + limit).isoformat(timespec="milliseconds")


@pytest.mark.crash
async def test_a_tool_that_blocks_its_worker_past_the_lease_ends_it_before_others_may_have_it(
    stage: Stage, visit: Visit
) -> None:
    with stage.worker(tool_modules=ACCOUNT) as blocked:
        blocked.wait_ready()
        first = await stage.start(plan("account.block", visit))
        assert await asyncio.to_thread(blocked.wait_exit) == EXIT_CODE
    await first.handle.terminate()
    account.let_go(visit)
    other = await stage.start(plan("account.pay", visit))
    async with stage.worker_here(tool_modules=ACCOUNT):
        result = await other.result()

    assert result.state is RunState.COMPLETED
    assert account.record(visit) == [
        f"begins {first.run_id}",
        f"begins {other.run_id}",
        f"ends {other.run_id}",
    ]
