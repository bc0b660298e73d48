"""G4: what a run and its child runs have done is undone as one, from the ledger."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from surehand.activities import runs
from surehand.activities.ledger.effects import run_tree
from surehand.workflows.contracts.base import RunState
from tests.e2e.executions import called, inside
from tests.e2e.papers import FAILS, TOOLS, WAITS, files, paper, told
from tests.e2e.plans import child, plan
from tests.e2e.runs import Run, until
from tests.e2e.stage import Stage
from tests.e2e.stopped_runs import until_found, unwind
from tests.ledger_databases import DATABASES

#: A child run that has one of its own, between steps of its parent.
TREE = ["a", "b", "c", "d"]


def tree(stage: Stage) -> list[dict[str, Any]]:
    below = {"id": "below", "plan": {"name": "below", "steps": [files(stage, "c")]}}
    return [files(stage, "a"), child(files(stage, "b"), below), files(stage, "d")]


def known(stage: Stage, run: Run) -> None:
    """Have the audit after the test look at the child runs, too."""
    inside(stage, inside(stage, run), "below")


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_standing_tree_is_not_asked_at_close(stage: Stage, durability: str) -> None:
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(*tree(stage)), durability=durability)
        result = await run.result()
        known(stage, run)

    assert (result.state, told(stage, "take out")) == (RunState.COMPLETED, [])
    for one in stage.started:
        called_ = [called(event) async for event in one.handle.fetch_history_events()]
        assert (called_.count("find_remaining"), called_.count("close_run")) == (0, 1), one.run_id


@pytest.mark.parametrize("database", DATABASES)
async def test_child_runs_of_a_terminated_run_are_listed_and_unwound_with_it(stage: Stage) -> None:
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(*tree(stage), WAITS))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.terminate("by hand")
        [found] = await until_found(stage, run)
        done = await unwind(stage, run)
        again = await unwind(stage, run)
        known(stage, run)

    assert told(stage, "file") == TREE
    stands = [(view.key, view.run_id) for view in found.remaining]
    pay, below = f"{run.run_id}~pay", f"{run.run_id}~pay~below"
    owners = [None, below, pay, None]
    names = [f"paper:{paper(stage, name)}" for name in reversed(TREE)]
    assert stands == list(zip(names, owners, strict=True))
    assert done.undone == ["file-d", f"{below}/file-c", f"{pay}/file-b", "file-a"]
    assert told(stage, "take out") == TREE[::-1]
    assert (done.left, again.undone, again.left) == ([], [], [])


@pytest.mark.parametrize("nested", [False, True])
async def test_undos_follow_commits_not_claims(stage: Stage, tmp_path: Path, nested: bool) -> None:
    gate = tmp_path / "gate"
    steps = [files(stage, "first", once=gate, after=[]), files(stage, "second", after=[])]
    begun = ["file-first", "file-second"]
    fails = {**FAILS, "after": ["pay"] if nested else begun}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(*([child(*steps)] if nested else steps), fails))
        maker = inside(stage, run) if nested else run

        async def committed() -> list[str]:
            rows = await stage.events(maker, "effect.committed")
            return [row["step_id"] for row in rows]

        async def claimed() -> list[str]:
            return sorted(row["step_id"] for row in await stage.events(maker, "effect.claimed"))

        await until(lambda: opened(stage, maker), bool)
        await until(claimed, lambda found: found == begun)
        await until(committed, lambda found: found == ["file-second"])
        gate.touch()
        await run.result()

    assert told(stage, "file") == ["second", "first"]
    assert told(stage, "take out") == ["first", "second"]


def opened(stage: Stage, run: Run) -> bool:
    return bool(stage.run_rows(run))


async def test_large_child_runs_leave_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands is told in pages, and an end lists the newest effects: both small ones here."""
    monkeypatch.setattr(run_tree, "list_remaining", partial(run_tree.list_remaining, limit=5))
    monkeypatch.setattr(runs, "MOST_EFFECTS", 5)

    def items(name: str, numbers: range) -> dict[str, Any]:
        each = {"for_each": f"${{input.{name}}}", "item": "n"}
        return {**each, "id": name, "tool": "papers.file", "params": {"name": paper(stage, "${n}")}}

    low, high = range(7), range(7, 14)
    below = {"name": "pay", "steps": [items("low", low), items("high", high)]}
    below |= {"input": {"low": list(low), "high": list(high)}}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan({"id": "pay", "plan": below}, FAILS), durability="exit")
        result = await run.result()
        inside(stage, run)

    numbers = [str(number) for number in range(14)]
    assert told(stage, "file") == numbers
    assert told(stage, "take out") == numbers[::-1]
    assert (result.state, result.uncompensated) == (RunState.FAILED, [])
    assert (len(result.effects), result.more_effects) == (5, 2 * 14 - 5)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_parent_undoes_its_terminated_child_run(stage: Stage, goes_on: bool) -> None:
    more = {"on_failure": "continue"} if goes_on else {}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(child(files(stage, "a"), WAITS, **more)))
        inner = inside(stage, run)
        await until(lambda: asked(inner), bool)
        await inner.handle.terminate("by hand")
        result = await run.result()

    assert result.state is (RunState.COMPLETED if goes_on else RunState.FAILED)
    assert (told(stage, "take out"), result.uncompensated) == (["a"], [])
    assert [view.id for view in result.steps] == ["pay"]


async def asked(run: Run) -> bool:
    return (await run.view()).result.state is RunState.WAITING_INPUT


async def test_a_child_does_nothing_while_its_parent_unwinds(stage: Stage, tmp_path: Path) -> None:
    """It ends when its parent does, or is stopped; until it has heard of that, the ledger does."""
    gate = tmp_path / "gate"
    steps = [files(stage, "a"), files(stage, "b", once=gate), files(stage, "c")]
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(child(*steps)))
        inner = inside(stage, run)
        await until(lambda: opened(stage, inner), bool)

        async def claimed() -> list[str]:
            return [row["step_id"] for row in await stage.events(inner, "effect.claimed")]

        await until(claimed, lambda found: "file-b" in found)
        await run.handle.terminate("by hand")
        unwinding = asyncio.create_task(unwind(stage, run))
        await until(lambda: barred(stage, inner), bool)
        gate.touch()
        await unwinding
        ended = await inner.handle.describe()

    assert ended.status is not WorkflowExecutionStatus.RUNNING
    assert told(stage, "file") == ["a", "b"]
    assert sorted(told(stage, "take out")) == ["a", "b"]


async def barred(stage: Stage, run: Run) -> bool:
    return bool(await stage.events(run, "run.barred"))
