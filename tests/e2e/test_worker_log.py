"""The worker's log as somebody reads it who is paged: one line for one thing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.runs import example_plan
from tests.e2e.stage import Stage
from tests.worker_process import WorkerProcess
from workflows.contracts import RunState


def lines(worker: WorkerProcess) -> list[dict[str, Any]]:
    """The log, each line of which has to be JSON."""
    return [json.loads(line) for line in worker.output().splitlines()]


@pytest.mark.parametrize("mode", ["sync", "exit"])
async def test_a_failed_call_is_one_json_line_with_run_step_attempt_and_reason(
    stage: Stage, order_id: str, mode: str
) -> None:
    with stage.worker(log_format="json") as worker:
        plan = example_plan("refund_fails.yaml", order_id=order_id)
        run = await stage.start(plan, durability=mode)
        await run.approve()
        assert (await run.result()).state is RunState.FAILED
        assert worker.stop() == 0
        log = lines(worker)

    [failed] = [line for line in log if line["event"] == "activity.failed"]
    assert failed["error_type"] == "ToolFailed"
    assert "HTTP 422" in failed["error"]
    assert (failed["run_id"], failed["step_id"], failed["attempt"]) == (run.run_id, "close", 1)
    assert not any("exception" in line for line in log)


async def test_a_worker_without_tool_modules_says_what_follows(stage: Stage) -> None:
    with stage.worker(log_format="json", tool_modules="") as worker:
        worker.wait_ready()
        [warned] = [line for line in lines(worker) if line["event"] == "worker.no_tools"]

    assert warned["setting"] == "SUREHAND_TOOL_MODULES"
    assert "every plan is refused" in warned["meaning"]


async def test_a_worker_that_is_to_kill_itself_says_so(stage: Stage) -> None:
    with stage.worker(log_format="json", crash_at="payments.refund:after_call") as worker:
        worker.wait_ready()
        [warned] = [line for line in lines(worker) if line["event"] == "worker.crashes"]

    assert (warned["level"], warned["setting"]) == ("warning", "SUREHAND_CRASH_AT")
    assert "payments.refund:after_call" in warned["meaning"]


async def test_a_worker_that_takes_signed_decisions_only_is_never_to_kill_itself(
    stage: Stage,
) -> None:
    drill = {"crash_at": "payments.refund:after_call", "decisions": "signed"}
    with stage.worker(**drill) as worker:
        assert worker.wait_exit() == 2

    [line] = worker.output().splitlines()
    assert "SUREHAND_CRASH_AT" in line and "SUREHAND_DECISIONS=signed" in line
