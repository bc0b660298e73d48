"""G4 across a reset: what this life of a run goes on with is wanted, and stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surehand.workflows.contracts.states import RunState
from tests.e2e.executions import inside, reset_before
from tests.e2e.messages import answered
from tests.e2e.papers import FAILS, TOOLS, WAITS, files, paper, told
from tests.e2e.plans import child, plan
from tests.e2e.runs import Run, step
from tests.e2e.stage import Stage


def either(stage: Stage, meant: Path, first: dict[str, Any], second: dict[str, Any]) -> Any:
    """Return the steps that do one thing if paper `one` is meant, and the other if `two` is."""
    read = {"id": "which", "tool": "papers.which", "params": {"file": str(meant)}}
    one, two = (f"which.name == '{paper(stage, name)}'" for name in ("one", "two"))
    return plan(read, {**first, "when": one}, {**second, "when": two}, WAITS)


async def decided_anew(stage: Stage, meant: Path, run: Run) -> Run:
    await run.in_state(RunState.WAITING_INPUT)
    meant.write_text(paper(stage, "two"))
    again = await reset_before(stage, run, "execute_tools", 1)
    await again.in_state(RunState.WAITING_INPUT)
    await answered(again, answer="yes")
    return again


@pytest.mark.parametrize(
    "whose", ["its own", "of its child run, by itself", "its own, by its child run"]
)
async def test_an_effect_that_another_step_of_a_reset_run_goes_on_with_is_not_undone(
    stage: Stage, tmp_path: Path, whose: str
) -> None:
    meant = tmp_path / "meant"
    meant.write_text(paper(stage, "one"))
    one, two = files(stage, "a"), {**files(stage, "a"), "id": "anew"}
    if whose == "of its child run, by itself":
        one = child(files(stage, "a"))
    elif whose == "its own, by its child run":
        two = child(files(stage, "a"))
    async with stage.worker_here(**TOOLS):
        run = await stage.start(either(stage, meant, one, two))
        again = await decided_anew(stage, meant, run)
        result = await again.result()
        if whose != "its own":
            await inside(stage, run).result()

    assert result.state is RunState.COMPLETED
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], [])
    assert result.uncompensated == []


@pytest.mark.parametrize("whose", ["its own", "of its child run"])
async def test_a_run_does_not_complete_on_what_it_had_undone_before_it_was_reset(
    stage: Stage, tmp_path: Path, whose: str
) -> None:
    meant = tmp_path / "meant"
    meant.write_text(paper(stage, "one"))
    first = files(stage, "a") if whose == "its own" else child(files(stage, "a"))
    read = {"id": "which", "tool": "papers.which", "params": {"file": str(meant)}}
    fails = {**FAILS, "when": f"which.name == '{paper(stage, 'one')}'"}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(first, read, fails))
        assert (await run.result()).state is RunState.FAILED
        assert told(stage, "take out") == ["a"]
        meant.write_text(paper(stage, "two"))
        again = await reset_before(stage, run, "execute_tools", 2 if whose == "its own" else 1)
        result = await again.result()
        if whose != "its own":
            await inside(stage, run).result()

    assert result.state is RunState.FAILED
    assert "has been undone" in (result.error or "")
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], ["a"])


async def test_a_run_does_not_complete_on_what_an_earlier_life_of_it_made_and_a_later_one_undid(
    stage: Stage, tmp_path: Path
) -> None:
    meant = tmp_path / "meant"
    meant.write_text(paper(stage, "one"))
    steps = either(stage, meant, files(stage, "a"), {**files(stage, "a"), "id": "anew"})
    async with stage.worker_here(**TOOLS):
        run = await stage.start(steps)
        await run.in_state(RunState.WAITING_INPUT)
        meant.write_text(paper(stage, "two"))
        second = await reset_before(stage, run, "execute_tools", 1)
        view = await second.in_state(RunState.WAITING_INPUT)
        assert step(view.result, "anew").replayed
        meant.write_text(paper(stage, "neither"))
        third = await reset_before(stage, run, "execute_tools", 1)
        await third.in_state(RunState.WAITING_INPUT)
        await answered(third, answer="yes")
        assert (await third.result()).state is RunState.COMPLETED
        assert told(stage, "take out") == ["a"]
        fourth = await reset_before(stage, run, "record_interrupt", 1, second.handle.run_id)
        await fourth.in_state(RunState.WAITING_INPUT)
        await answered(fourth, answer="yes")
        result = await fourth.result()

    assert result.state is RunState.FAILED
    assert "what anew did has been undone" in (result.error or "")
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], ["a"])
