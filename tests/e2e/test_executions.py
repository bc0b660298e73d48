"""G1 and G4 across a reset: of a run's executions the newest acts, and is looked after."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests import freezing_worker
from tests.e2e.executions import reset_before
from tests.e2e.messages import answered
from tests.e2e.papers import FAILS, TOOLS, WAITS, files, told
from tests.e2e.plans import mail_step, plan
from tests.e2e.runs import Run
from tests.e2e.stage import SHOP_TOOLS, Stage
from tests.e2e.stopped_runs import until_found, unwind
from tests.ledger_databases import DATABASES


@pytest.mark.crash
async def test_an_earlier_life_makes_nothing(stage: Stage, order_id: str, tmp_path: Path) -> None:
    meant = tmp_path / "meant"
    meant.write_text("a mail")
    read = {"id": "which", "tool": "papers.which", "params": {"file": str(meant)}}
    mail = mail_step(order_id, "late", when="which.name == 'a mail'")
    tools = f"{SHOP_TOOLS},{TOOLS['tool_modules']}"
    crash_at = f"mail.send:{CrashPoint.BEFORE_CLAIM}"
    with stage.freezing_worker(tool_modules=tools, crash_at=crash_at) as frozen:
        frozen.wait_ready()
        run = await stage.start(Plan.model_validate([read, mail]))
        await asyncio.to_thread(frozen.wait_said, freezing_worker.CALLS)
        frozen.signal(signal.SIGTERM)  # it takes no more work, which would be lost with it
        frozen.wait_said("worker.stopping")
        (stage.folder / freezing_worker.GO_ON).touch()
        frozen.wait_said(freezing_worker.FREEZES)
        meant.write_text("nothing")
        with stage.worker(tool_modules=tools):
            again = await reset_before(stage, run, "execute_tools", 1)
            result = await again.result(timeout_s=200)
            frozen.signal(signal.SIGCONT)
            assert await asyncio.to_thread(frozen.wait_exit) == 0

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["mails"] == 0
    assert await stage.effects(run) == []


async def lived_again(stage: Stage, *then: dict[str, object]) -> Run:
    """Return a run that had completed, was reset, and waits."""
    run = await stage.start(plan(files(stage, "a"), WAITS, *then))
    await run.in_state(RunState.WAITING_INPUT)
    await answered(run, answer="yes")
    assert (await run.result()).state is RunState.COMPLETED
    again = await reset_before(stage, run, "execute_tools", 1)
    await again.in_state(RunState.WAITING_INPUT)
    return again


@pytest.mark.parametrize("database", DATABASES)
async def test_a_reset_and_terminated_run_is_found_and_unwound(
    stage: Stage,
) -> None:
    async with stage.worker_here(**TOOLS):
        again = await lived_again(stage)
        await again.handle.terminate("by hand")
        [found] = await until_found(stage, again)
        done = await unwind(stage, again)

    assert [view.tool for view in found.remaining] == ["papers.file"]
    assert (done.undone, done.left) == (["file-a"], [])
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], ["a"])


async def test_a_reset_run_that_fails_is_on_record_so(stage: Stage, tmp_path: Path) -> None:
    meant = tmp_path / "meant"
    meant.write_text("well")
    read = {"id": "which", "tool": "papers.which", "params": {"file": str(meant)}}
    async with stage.worker_here(**TOOLS):
        again = await lived_again(stage, read, {**FAILS, "when": "which.name == 'badly'"})
        meant.write_text("badly")
        await answered(again, answer="yes")
        assert (await again.result()).state is RunState.FAILED

    [row] = stage.run_rows(again)
    assert (row["state"], row["execution"]) == ("failed", again.handle.run_id)
    ends = ("run.completed", "run.reopened", "run.failed")
    assert [event["type"] for event in await stage.events(again, *ends)] == list(ends)
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], ["a"])


async def test_what_a_cancel_has_kept_stays_when_the_run_is_reset_and_fails(stage: Stage) -> None:
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(files(stage, "a"), WAITS, files(stage, "b")))
        await run.in_state(RunState.WAITING_INPUT)
        await run.cancel(mode="keep")
        assert (await run.result()).state is RunState.CANCELLED
        # Of the cancel, too, this life is not told.
        again = await reset_before(stage, run, "execute_tools", 1, again=False)
        await again.in_state(RunState.WAITING_INPUT)
        await answered(again, answer="yes")
        result = await again.result()

    assert result.state is RunState.FAILED
    assert [view.reason for view in result.uncompensated] == ["kept on cancel"]
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], [])
