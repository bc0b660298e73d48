"""Short calls of the ledger are made by the run's own worker first: ``ports.Port.here``."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import ExecuteActivityInput

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import CancelRun, Verb
from tests.e2e.interceptors import Between, Execute
from tests.e2e.runs import Run, example_plan
from tests.e2e.stage import Stage


class FailsForNow(Between):
    """Fails the first attempts of one activity as a ledger does that cannot be reached."""

    def __init__(self, activity: str, attempts: int) -> None:
        self._activity = activity
        self._attempts = attempts

    async def around(self, input: ExecuteActivityInput, execute: Execute) -> Any:
        if input.fn.__name__ == self._activity and self._attempts:
            self._attempts -= 1
            raise ApplicationError("the ledger cannot be reached", type="LedgerUnavailable")
        return await execute(input)


async def calls(run: Run) -> dict[str, int]:
    """Return the attempts of each activity of a history, by name."""
    names, found = dict[int, str](), dict[str, int]()
    async for event in run.handle.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            names[event.event_id] = name
        elif event.HasField("activity_task_started_event_attributes"):
            started = event.activity_task_started_event_attributes
            found[names[started.scheduled_event_id]] = started.attempt
    return found


@pytest.mark.parametrize("activity", ["open_run", "request_approval", "verify_decision"])
async def test_a_ledger_that_is_away_for_a_while_adds_one_activity_to_a_history(
    stage: Stage, order_id: str, activity: str
) -> None:
    fails = FailsForNow(activity, attempts=4)
    async with stage.worker_here(client=fails.client(stage.client)):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    begun = await calls(run)
    assert begun == {"execute_tool": 1, "close_run": 1, activity: 4}
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["mails"]) == (1, 1)


@pytest.mark.crash
@pytest.mark.parametrize("by", ["signal", "temporal"])
async def test_what_a_run_asked_before_a_crash_waits_for_nobody_once_it_has_ended(
    stage: Stage, order_id: str, by: str
) -> None:
    with stage.worker(crash_at=f"request_approval:{CrashPoint.BEFORE_REPORT}") as doomed:
        doomed.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await asyncio.to_thread(doomed.wait_killed)
    assert [row["state"] for row in stage.approval_rows(run)] == ["pending"]
    if by == "signal":
        await run.handle.signal(Verb.CANCEL, CancelRun(actor="olga"))
    else:
        await run.handle.cancel()
    async with stage.worker_here():
        with pytest.raises(WorkflowFailureError) if by == "temporal" else nullcontext():
            assert (await run.result()).state is RunState.CANCELLED

    assert [row["state"] for row in stage.approval_rows(run)] == ["void"]
    assert set(stage.shop.counts(order_id).values()) == {0}
