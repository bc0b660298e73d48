"""What may have happened stops a plan, whatever the plan says; what has ended stays ended."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.worker import ExecuteActivityInput

from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import reset_to
from tests.e2e.interceptors import Between, Execute, Pause
from tests.e2e.runs import Run, decision_on, refund_plan, states
from tests.e2e.stage import Stage
from tests.variants import odd

ODD = "tests.variants.odd"
GOTO: dict[str, str] = {"goto": "after"}


@pytest.fixture(autouse=True)
def counted_anew() -> None:
    odd.CALLS.clear()


def going_on(tool: str, on_failure: Any) -> Plan:
    """A plan that would go on after its write has failed."""
    write = {"id": "it", "tool": tool, "on_failure": on_failure}
    between = {"id": "between", "tool": "read.fine"}
    return Plan.model_validate({"steps": [write, between, {**between, "id": "after"}]})


class LosesItsAnswer(Between):
    """Has a call's activity end for good although the call's outcome is in doubt."""

    def __init__(self, type_: str) -> None:
        self._type = type_

    async def around(self, input: ExecuteActivityInput, execute: Execute) -> Any:
        result = await execute(input)
        doubted = [one.report.outcome.kind for one in getattr(result, "steps", ())]
        if doubted == ["human_needed"]:
            raise ApplicationError("ended", type=self._type, non_retryable=True)
        return result


@pytest.mark.parametrize(
    ("type_", "on_failure"),
    [("ToolChanged", "continue"), ("ToolNotFound", GOTO), ("Whatever", "continue")],
)
async def test_no_plan_goes_on_over_a_doubt(stage: Stage, on_failure: Any, type_: str) -> None:
    loses = LosesItsAnswer(type_).client(stage.client)
    async with stage.worker_here(client=loses, tool_modules=ODD):
        run = await stage.start(going_on("write.lost", on_failure))
        question = await run.asks_a_human()
        await run.resolve(intervention_id=question.id, outcome="give_up")
        result = await run.result()
    assert result.state is RunState.FAILED
    assert states(result) == {"it": "failed", "between": "skipped", "after": "skipped"}
    assert odd.CALLS == {"write.lost": 1}
    [left] = result.uncompensated
    assert (left.tool, left.state) == ("write.lost", "in_doubt")


@pytest.mark.parametrize(("on_failure", "reads"), [("continue", 2), (GOTO, 1)])
async def test_a_plan_goes_on_over_a_proven_no(stage: Stage, on_failure: Any, reads: int) -> None:
    _, result = await stage.play(going_on("write.refused", on_failure), tool_modules=ODD)
    assert result.state is RunState.COMPLETED
    assert {"read.fine": reads} == odd.CALLS
    assert result.uncompensated == []


async def test_undoing_bars_late_attempts_of_the_failed_write(stage: Stage) -> None:
    run, result = await stage.play(going_on("write.refused", "compensate"), tool_modules=ODD)
    assert result.state is RunState.FAILED
    assert len(await stage.events(run, "run.barred")) == 1


async def test_a_cancellation_while_a_completed_run_is_closed_changes_nothing(stage: Stage) -> None:
    closing = Pause("close_run")
    async with stage.worker_here(client=closing.client(stage.client), tool_modules=ODD):
        run = await stage.start(Plan.model_validate({"steps": [{"id": "it", "tool": "read.fine"}]}))
        await closing.reached()
        await run.handle.cancel()
        await run.history_has("workflow_execution_cancel_requested")
        closing.go_on()
        await run.completed()
    assert (await run.handle.describe()).status is WorkflowExecutionStatus.COMPLETED
    assert (await stage.events(run))[-1]["type"] == "run.completed"


async def reset(stage: Stage, run: Run, *, forget_decisions: bool) -> Run:
    """Have Temporal begin a run anew from one of its tasks; return what goes on in its place."""
    done: list[int] = []
    decided = 0
    async for event in run.handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            done.append(event.event_id)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            decided = decided or event.event_id
    # The update came with the task right before its acceptance.
    before = [id_ for id_ in done if id_ < decided - 1]
    task = max(before if forget_decisions else done)
    begun = await reset_to(stage.client, run.run_id, task, again=False)
    return Run(run.run_id, stage.client.get_workflow_handle(run.run_id, run_id=begun))


@pytest.mark.parametrize("forget_decisions", [True, False], ids=["before", "after"])
async def test_after_a_reset_a_decision_is_judged_by_what_it_says_now(
    stage: Stage, order_id: str, forget_decisions: bool
) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        wrong = decision_on(await run.asks(), params_hash="sha256:" + "0" * 64)
        refused = await run.decide(wrong)
        again = await reset(stage, run, forget_decisions=forget_decisions)
        accepted = await again.decide(decision_on(await again.asks()))
        result = await again.result()
    assert refused.code == "wrong_hash"
    assert accepted.code == "accepted"
    assert accepted.decision_id != refused.decision_id
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
