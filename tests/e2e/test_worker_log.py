"""The worker's log as somebody reads it who is paged: one line for one thing."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import Any

import pytest

from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import decision_on, example_plan, step
from tests.e2e.stage import Stage
from tests.worker_process import WorkerProcess


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


@pytest.mark.parametrize(
    ("tool", "error"), [("read.broken", "KeyError: 'nope'"), ("write.broken", "ValueError: ")]
)
async def test_a_bug_in_a_tool_is_logged_with_its_traceback_and_the_step_names_its_line(
    stage: Stage, tool: str, error: str
) -> None:
    odd = {"tool_modules": "tests.variants.odd", "retries_transient": "1ms,1ms,1ms"}
    with stage.worker(log_format="json", **odd) as worker:
        run = await stage.start(Plan.model_validate({"steps": [{"id": "it", "tool": tool}]}))
        ended = (RunState.FAILED, RunState.NEEDS_INTERVENTION)
        view = await run.until(lambda view: view.result.state in ended)
        log = lines(worker)

    raised = [line for line in log if line["event"] == "tool.raised"]
    assert raised and {line["tool"] for line in raised} == {tool}
    assert (raised[0]["run_id"], raised[0]["step_id"]) == (run.run_id, "it")
    assert "tests/variants/odd.py" in raised[0]["exception"]
    assert error in raised[0]["exception"]
    said = [view.result.steps[0].error or "", *(w.question for w in view.result.waiting_for)]
    assert any(re.search(rf"{error}.* \(variants/odd\.py:\d+\)", text) for text in said), said


async def test_a_worker_without_tool_modules_says_what_follows(stage: Stage) -> None:
    with stage.worker(log_format="json", tool_modules="") as worker:
        worker.wait_ready()
        [warned] = [line for line in lines(worker) if line["event"] == "worker.no_tools"]

    assert warned["setting"] == "SUREHAND_TOOL_MODULES"
    assert "every plan is refused" in warned["meaning"]


@pytest.mark.parametrize(("origins", "told"), [("", 1), ("https://approvals.example.com", 0)])
async def test_a_worker_says_that_no_passkey_counts_and_that_it_is_to_kill_itself(
    stage: Stage, origins: str, told: int
) -> None:
    drill = {"log_format": "json", "crash_at": "payments.refund:after_call"}
    tools = "tests.variants.refund_passkey"
    with stage.worker(**drill, tool_modules=tools, passkey_origins=origins) as worker:
        worker.wait_ready()
        log = lines(worker)

    warned = [line for line in log if line["event"] == "worker.no_passkeys"]
    assert [line["tools"] for line in warned] == [["payments.refund"]] * told
    [warned_too] = [line for line in log if line["event"] == "worker.crashes"]
    assert (warned_too["level"], warned_too["setting"]) == ("warning", "SUREHAND_CRASH_AT")
    assert "payments.refund:after_call" in warned_too["meaning"]


# A deploy: a worker that is told to stop ends its call, and the next one goes on.


async def test_a_worker_told_to_stop_ends_its_call_and_nothing_is_repeated(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    before = stage.shop.requests("refunds")["received"]
    with stage.worker() as leaving:
        leaving.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        stage.shop.wait_requests("refunds", before + 1)
        leaving.signal(signal.SIGTERM)
        leaving.wait_said("worker.stopping")
        with stage.worker() as next_one:
            next_one.wait_ready()
            stage.shop.clear_faults()
            assert await asyncio.to_thread(leaving.stop) == 0
            result = await run.result()

    assert result.state is RunState.COMPLETED
    assert step(result, "refund").attempts == 1
    assert stage.shop.requests("refunds")["received"] == before + 1
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)


async def test_a_run_that_waits_for_approval_survives_a_deploy(stage: Stage, order_id: str) -> None:
    # With workflows in memory, as in production: the next worker has none of this one's.
    with stage.worker() as leaving:
        leaving.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        assert leaving.stop() == 0
    await run.send(decision_on(request))  # nobody is there to take it
    with stage.worker():
        result = await run.result()
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
