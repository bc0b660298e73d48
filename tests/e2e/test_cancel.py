"""Guarantee G4: what a stopped, failed or terminated run has done is undone once, or kept."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from surehand.activities import maintenance
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.runs import steering
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts import effects as maintenance_contracts
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import CarriedUnwinding, Unwound
from surehand.workflows.contracts.runs import RunResult, RunView
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.identity import unwind_id
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import executions, reset_before
from tests.e2e.papers import TOOLS, WAITS, files, paper, told
from tests.e2e.plans import HUMAN, plan
from tests.e2e.runs import (
    Run,
    decision_on,
    failing_plan,
    refund_plan,
    states,
    step,
    timeline,
)
from tests.e2e.stage import Stage
from tests.e2e.stopped_runs import reconciled, terminated, until_found, unwind
from tests.ledger_databases import DATABASES


async def cancelled_by_temporal(run: Run) -> RunView:
    """Wait until the run is closed as cancelled and return its last view."""
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(run.handle.result(), 60)
    assert isinstance(failure.value.cause, CancelledError)
    assert (await run.handle.describe()).status is WorkflowExecutionStatus.CANCELED
    view = await run.view()
    assert view.result.state is RunState.CANCELLED
    return view


async def cancel(run: Run, by: str) -> None:
    if by == "update":
        await run.cancel()
    else:
        await run.handle.cancel()
        await run.history_has("workflow_execution_cancel_requested")


async def test_cancelling_a_waiting_run_calls_nothing(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        assert "keep" in await run.cancel(mode="keep", reason="changed my mind")
        result = await run.result()
        view = await run.view()

    assert result.state is RunState.CANCELLED
    assert "cancelled by oscar" in (result.error or "")
    assert "changed my mind" in (result.error or "")
    assert set(stage.shop.counts(order_id).values()) == {0}
    assert (result.effects, result.uncompensated, view.pending) == ([], [], [])
    # Nobody has called it, so it has not failed.
    assert states(result)["refund"] == "skipped"
    assert "not called: cancelled by oscar" in (step(result, "refund").error or "")
    assert ("refund", "skipped") in {(row["step_id"], row["state"]) for row in stage.step_rows(run)}
    [approval] = stage.approval_rows(run)
    assert (approval["approval_id"], approval["state"]) == (request.approval_id, "void")


@pytest.mark.parametrize("by", ["update", "temporal"])
async def test_cancelling_does_not_stop_unwinding(stage: Stage, order_id: str, by: str) -> None:
    stage.shop.fault("restock_undos", hold="after")
    async with stage.worker_here():
        run = await stage.start(failing_plan(order_id))
        await run.approve()
        await run.in_state(RunState.COMPENSATING)
        if by == "update":
            assert "ending already" in await run.cancel(mode="keep")
            stage.shop.clear_faults()
            view_result = await run.result()
            assert view_result.state is RunState.FAILED
        else:
            await run.handle.cancel()
            stage.shop.clear_faults()
            with pytest.raises(WorkflowFailureError):
                await asyncio.wait_for(run.handle.result(), 60)

    counts = stage.shop.counts(order_id)
    assert (counts["restock_undos"], counts["refund_cancellations"]) == (1, 1)
    assert [event["type"] for event in await stage.events(run)][-1] == "run.failed"


async def test_a_cancel_that_is_sent_before_the_last_step_ends_undoes_it(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, ended = stage.ledger.record, asyncio.Event()

    async def judge_late(tenant: str, run_id: str, work: Any, *asked: Any) -> Any:
        if work is steering.judge_steering:
            await ended.wait()
        return await record(tenant, run_id, work, *asked)

    monkeypatch.setattr(stage.ledger, "record", judge_late)
    stage.shop.fault("restocks", hold="after")
    lines = [{"sku": "sku-1", "quantity": 1}]
    restock = {"tool": "inventory.restock", "params": {"order_id": order_id, "lines": lines}}
    async with stage.worker_here():
        run = await stage.start(plan({"id": "restock", **restock}))
        await run.until(lambda view: states(view.result)["restock"] == "running")
        await run.handle.signal(Verb.CANCEL, {"actor": "oscar"})
        stage.shop.clear_faults()
        await run.until(lambda view: states(view.result)["restock"] == "succeeded")
        ended.set()
        result = await run.result()

    assert result.state is RunState.CANCELLED
    counts = stage.shop.counts(order_id)
    assert (counts["restocks"], counts["restock_undos"]) == (1, 1)


async def test_a_doubtful_call_is_not_repeated_after_a_cancel(stage: Stage, order_id: str) -> None:
    # The call's answer is lost, and only a human can tell what became of it.
    stage.shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail="drop_after", times=1)
    async with stage.worker_here(tool_modules=HUMAN):
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        await run.in_state(RunState.NEEDS_INTERVENTION)
        await run.cancel(mode="compensate")
        await run.until(lambda view: view.result.error is not None)
        question = await run.asks_a_human()
        await stage.no_call_may_arrive(run)
        [refund] = stage.shop.world(order_id)["refunds"]
        assert refund["cancellations"] == 0
        await run.resolve(intervention_id=question.id, outcome="compensated")
        result = await run.result()
    assert step(result, "refund").undone == "as a human says"
    assert result.state is RunState.CANCELLED
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert result.uncompensated == []


CANCEL, UNDO = "payments.cancel_refund", "inventory.undo_restock"


async def undone_last_first(stage: Stage, run: Run, result: RunResult, order_id: str) -> None:
    assert result.state is RunState.FAILED
    assert states(result)["close"] == "failed"
    assert "ToolFailed" in (step(result, "close").error or "")
    assert result.uncompensated == []
    assert {view.id: view.undone for view in result.steps if view.undone} == {
        "refund": f"by {CANCEL}",
        "restock": f"by {UNDO}",
    }
    assert stage.paid(order_id) == (1, 1)
    counts = stage.shop.counts(order_id)
    assert (counts["restocks"], counts["restock_undos"]) == (1, 1)
    undone = await stage.events(run, "effect.compensated")
    assert [event["step_id"] for event in undone] == ["restock", "refund"]
    entries = await stage.effects(run)
    assert {row["tool"]: row["state"] for row in entries} == {
        "payments.refund": "compensated",
        "inventory.restock": "compensated",
        "tickets.close": "failed",
        UNDO: "committed",
        CANCEL: "committed",
    }
    by_tool = {row["tool"]: row for row in entries}
    assert by_tool[CANCEL]["undoes"] == by_tool["payments.refund"]["entry_id"]
    assert by_tool[UNDO]["undoes"] == by_tool["inventory.restock"]["entry_id"]


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("database", DATABASES)
async def test_a_run_that_fails_for_good_is_undone_last_first(stage: Stage, order_id: str) -> None:
    run, result = await stage.play(failing_plan(order_id), approve=True)
    await undone_last_first(stage, run, result, order_id)


@pytest.mark.crash
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize(
    ("tool", "point"),
    [
        (UNDO, CrashPoint.BEFORE_CLAIM),
        (UNDO, CrashPoint.AFTER_CLAIM),
        pytest.param(CANCEL, CrashPoint.AFTER_CALL, marks=pytest.mark.fast),
        (UNDO, CrashPoint.AFTER_CALL),
        (CANCEL, CrashPoint.AFTER_OUTCOME),
        (CANCEL, CrashPoint.BEFORE_REPORT),
    ],
)
async def test_a_worker_killed_while_it_undoes_leaves_everything_undone_once(
    stage: Stage, order_id: str, tool: str, point: CrashPoint
) -> None:
    # The undo of a restock can only be looked up: a second one would be applied, and counted.
    stage.shop.fault("restock_undos", ignore_keys=True)
    run = await stage.die_at(f"{tool}:{point}", failing_plan(order_id), approve=True)
    with stage.worker():
        result = await run.result()
    await undone_last_first(stage, run, result, order_id)


async def test_a_failed_undo_is_put_in_front_of_a_human(stage: Stage, order_id: str) -> None:
    stage.shop.fault("restock_undos", fail="before", status=422)
    async with stage.worker_here():
        run = await stage.start(failing_plan(order_id))
        await run.approve()
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        [question] = view.result.waiting_for
        assert (question.kind, question.step_id) == ("intervention", "restock")
        assert set(question.answers) == {"compensated", "give_up"}
        # The rest is undone meanwhile.
        await run.until(lambda view: "compensated" in timeline(view, "refund"))
        await run.resolve(intervention_id=question.id, outcome="give_up", evidence="sold already")
        result = await run.result()

    assert result.state is RunState.FAILED
    [left] = result.uncompensated
    assert (left.tool, left.state) == ("inventory.restock", "committed")
    assert "sold already" in (left.reason or "")
    counts = stage.shop.counts(order_id)
    assert (counts["restock_undos"], counts["refund_cancellations"]) == (0, 1)


@pytest.mark.parametrize("database", DATABASES)
async def test_the_reaper_closes_a_terminated_run(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await terminated(stage, order_id)
        [found] = await until_found(stage, run)
        again = await reconciled(stage)

    assert [view.tool for view in found.remaining] == ["inventory.restock", "payments.refund"]
    assert again.stopped == []
    [row] = stage.run_rows(run)
    assert (row["state"], row["error"]) == ("failed", "stopped from outside")
    states = {one["approval_id"]: one["state"] for one in stage.approval_rows(run)}
    assert states == {f"{run.run_id}/refund/1": "approved", f"{run.run_id}/close/1": "void"}
    # Found, and offered: nothing is undone before somebody says so.
    counts = stage.shop.counts(order_id)
    assert (counts["refund_cancellations"], counts["restock_undos"]) == (0, 0)


async def test_a_round_finds_every_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a page; those that are closed already are in front."""
    monkeypatch.setattr(maintenance, "_PAGE", 2)
    monkeypatch.setattr(maintenance, "_BATCH", 1)
    asks = Plan.model_validate([{"id": "wait", "ask": "Go on?"}])
    async with stage.worker_here():
        for _ in range(2):
            runs = [await stage.start(asks) for _ in range(3)]
            for run in runs:
                await run.in_state(RunState.WAITING_INPUT)
                await run.handle.terminate("by hand")
            # The server's list of runs lags a little: it has them once it has a later one.
            await until_found(stage, await terminated(stage, stage.shop.new_order()))
            await reconciled(stage)

            errors = [(stage.run_rows(run))[0]["error"] for run in runs]
            assert errors == ["stopped from outside"] * 3


async def test_unwinding_takes_executions(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tree, "list_remaining", partial(run_tree.list_remaining, limit=4))
    stays = {"name": paper(stage, "stays")}
    names = [str(number) for number in range(12)]
    steps = [files(stage, name) for name in names]
    steps.insert(8, {"id": "stays", "tool": "papers.take_out", "params": stays})
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(*steps, WAITS))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.terminate("by hand")
        done = await unwind(stage, run, continue_after=20)
        unwinding_id = unwind_id(run.run_id)
        unwinding = Run(unwinding_id, stage.client.get_workflow_handle(unwinding_id))
        histories = await executions(stage, unwinding)

    assert len(histories) >= 4
    assert told(stage, "take out") == ["stays", *reversed(names)]
    assert done.undone == [f"file-{name}" for name in reversed(names)]
    assert [(one.step_id, one.reason) for one in done.left] == [("stays", "irreversible")]
    [unwinding] = await stage.events(run, "run.unwinding")
    assert unwinding["body"]["actor"] == "oscar"


async def test_unlisted_undos_are_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance_contracts, "MOST_LISTED", 1)
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(*(files(stage, name) for name in "abc"), WAITS))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.terminate("by hand")
        done = await unwind(stage, run, continue_after=1)

    assert (done.undone, done.more_undone) == (["file-c"], 2)


async def test_nobody_begins_in_the_middle_of_an_unwinding(stage: Stage) -> None:
    done = Unwound(run_id="r", undone=[], left=[])
    carried = CarriedUnwinding(after=None, tried=[], done=done)
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(files(stage, "a"), WAITS))
        await run.in_state(RunState.WAITING_INPUT)
        with pytest.raises(WorkflowFailureError) as refused:
            await unwind(stage, run, carried=carried)
        await run.handle.terminate("done with")

    cause = refused.value.cause
    assert isinstance(cause, ApplicationError) and cause.type == "RunIdInvalid"
    assert told(stage, "take out") == []


async def test_a_reset_run_is_not_taken_for_a_stopped_one(stage: Stage, order_id: str) -> None:
    """A reset terminates the execution before; the run itself goes on under the same id."""
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        await run.asks("refund")
        again = await reset_before(stage, run, "request_approval", 1)
        request = await again.asks("refund")
        # What the server's list shows of a later one, it shows of this one, too.
        await until_found(stage, await terminated(stage, stage.shop.new_order()))
        await again.decide(decision_on(request))
        await again.completed()

    [row] = stage.run_rows(run)
    assert row["state"] == "completed"
