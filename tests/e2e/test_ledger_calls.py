"""Short calls of the ledger are made by the run's own worker first: ``ports.Port.here``."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import ExecuteActivityInput

from surehand import Client
from surehand.activities.ledger.core.migrate import migrate
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.history.reads import knows_run
from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.audit import history_heads
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Checkpoint
from surehand.workflows.contracts.steering import AnswerInterrupts, CancelRun, Verb
from tests.e2e.executions import called, inside
from tests.e2e.interceptors import Between, Execute, Pause
from tests.e2e.messages import event
from tests.e2e.plans import child, plan
from tests.e2e.runs import Run, decision_on, refund_plan, step
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
    async for one in run.handle.fetch_history_events():
        if one.HasField("activity_task_scheduled_event_attributes"):
            names[one.event_id] = called(one)
        elif one.HasField("activity_task_started_event_attributes"):
            started = one.activity_task_started_event_attributes
            found[names[started.scheduled_event_id]] = started.attempt
    return found


@pytest.mark.parametrize("activity", ["open_run", "request_approval", "verify_decision"])
async def test_a_lost_ledger_adds_one_activity(stage: Stage, order_id: str, activity: str) -> None:
    fails = FailsForNow(activity, attempts=4)
    run, result = await stage.play(
        refund_plan(order_id),
        approve=True,
        client=fails.client(stage.client),
    )

    assert result.state is RunState.COMPLETED
    begun = await calls(run)
    assert begun == {"execute_tools": 1, "close_run": 1, activity: 4}
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["mails"]) == (1, 1)


@pytest.mark.crash
@pytest.mark.parametrize("by", ["signal", "temporal"])
async def test_a_crashed_question_keeps_nobody(stage: Stage, order_id: str, by: str) -> None:
    run = await stage.die_at(
        f"request_approval:{CrashPoint.BEFORE_REPORT}",
        refund_plan(order_id),
    )
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


@pytest.mark.crash
async def test_a_decided_update_lends_no_verdict(stage: Stage, order_id: str) -> None:
    with stage.ready_worker(crash_at=f"verify_decision:{CrashPoint.BEFORE_REPORT}") as doomed:
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        deciding = asyncio.create_task(run.decide(decision_on(request, approver="ann")))
        await asyncio.to_thread(doomed.wait_killed)
    # It comes before an update that is in no history.
    await run.send(decision_on(request, approver="bob", outcome="reject"))
    async with stage.worker_here():
        assert (await deciding).code == "accepted"
        await run.completed()

    decided = [(row["approver"], row["verdict"]) for row in stage.decision_rows(run)]
    assert decided == [("ann", "accepted"), ("bob", "already_decided")]
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.crash
async def test_an_answer_without_a_name_is_to_what_waited_before_a_crash(stage: Stage) -> None:
    wait = {"id": "w", "wait": {"event": "returned", "about": "order-7"}}
    inner = child(wait, {"id": "many", "ask": "How many?"})
    with stage.ready_worker(crash_at=f"steer:{CrashPoint.BEFORE_REPORT}") as doomed:
        run = await stage.start(plan({"id": "end", "ask": "Done?"}, {**inner, "after": []}))
        await run.until(lambda view: bool(view.interrupts) and bool(step(view.result, "pay").child))
        below = inside(stage, run)
        await below.in_state(RunState.WAITING_EVENT)
        await run.handle.signal(Verb.ANSWER, AnswerInterrupts(actor="ann", answer="yes"))
        await asyncio.to_thread(doomed.wait_killed)
    async with stage.worker_here():
        # One more question waits meanwhile.
        await below.handle.signal(Verb.EVENT, event("e1"))
        view = await run.until(
            lambda view: (
                [one.id for one in view.result.waiting_for] == ["pay/many.1"]
                or bool(view.refused_signals)
            )
        )
        assert step(view.result, "end").output == "yes"
        await run.cancel()
        await run.result()


async def test_an_audit_compares_heads_of_calls_made_here(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        await run.asks()
        client = await Client.connect(
            temporal=stage.client, user="uma", task_queue=stage.task_queue
        )
        heads = await history_heads(client.connection, run.run_id)
        events = await stage.events(run)
        await run.cancel()
        await run.result()

    assert events[-1]["type"] == "approval.requested"
    assert max(one.head.seq for one in heads) == events[-1]["seq"]


# Guarantee G1 when its memory is gone: a run that the ledger does not know calls nothing.


@pytest.fixture
def empty_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    migrate(url)
    return url


async def test_an_unknown_run_waits(stage: Stage, empty_url: str, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        await run.asks()
    async with open_ledger(empty_url) as empty, replace(stage, ledger=empty).worker_here():
        await run.approve()
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        checkpoint = await run.handle.query("checkpoint", result_type=Checkpoint)
        assert stage.shop.counts(order_id)["refunds"] == 0
    assert f"the ledger does not know run {run.run_id}" in (view.result.error or "")
    assert checkpoint.last_error == view.result.error
    assert any("does not know run" in line.text for line in view.timeline)

    result = await stage.finish(run)
    assert (result.state, result.error) == (RunState.COMPLETED, None)
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_lost_run_makes_no_call(stage: Stage, empty_url: str, order_id: str) -> None:
    before = stage.shop.requests("refunds")["received"]
    calling = Pause("execute_tools", lambda batch: batch.first.step_id == "refund")
    async with stage.worker_here(client=calling.client(stage.client)):
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        await calling.reached()
        async with open_ledger(empty_url) as empty:
            kept, stage.ledger.engine = stage.ledger.engine, empty.engine
            calling.go_on()
            await run.in_state(RunState.NEEDS_INTERVENTION)
            assert stage.shop.requests("refunds")["received"] == before
            stage.ledger.engine = kept
        await run.completed()
    assert stage.shop.requests("refunds")["received"] == before + 1


async def test_a_ledger_without_its_tables_knows_no_run(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "no-tables.db"
    file.touch()
    async with open_ledger(f"sqlite:///{file}") as bare:
        assert not await bare.transact("default", knows_run, "run-1")
    assert not await ledger.transact("default", knows_run, "run-1")
