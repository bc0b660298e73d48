"""Guarantee G4: what a failed run has done is undone last first and once, or a human is asked."""

from __future__ import annotations

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import RunState
from tests.e2e.runs import Run, example_plan, states, step, timeline
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES

CANCEL, UNDO = "payments.cancel_refund", "inventory.undo_restock"
UNDONE_ONCE = {
    "refunds": 1,
    "refund_cancellations": 1,
    "restocks": 1,
    "restock_undos": 1,
    "mails": 0,
    "ticket_closures": 0,
}


async def undone_last_first(stage: Stage, run: Run, result: RunResult, order_id: str) -> None:
    assert result.state is RunState.FAILED
    assert states(result)["close"] == "failed"
    assert "ToolFailed" in (step(result, "close").error or "")
    assert result.uncompensated == []
    assert {view.id: view.undone for view in result.steps if view.undone} == {
        "refund": f"by {CANCEL}",
        "restock": f"by {UNDO}",
    }
    assert stage.shop.counts(order_id) == UNDONE_ONCE
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
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        result = await run.result()
    await undone_last_first(stage, run, result, order_id)


@pytest.mark.crash
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.BEFORE_CLAIM,
        CrashPoint.AFTER_CLAIM,
        pytest.param(CrashPoint.AFTER_CALL, marks=pytest.mark.fast),
        CrashPoint.AFTER_OUTCOME,
        CrashPoint.BEFORE_REPORT,
    ],
)
@pytest.mark.parametrize("tool", [CANCEL, UNDO])
async def test_a_worker_killed_while_it_undoes_leaves_everything_undone_once(
    stage: Stage, order_id: str, tool: str, point: CrashPoint
) -> None:
    # The undo of a restock can only be looked up: a second one would be applied, and counted.
    stage.shop.fault("restock_undos", ignore_keys=True)
    with stage.worker(crash_at=f"{tool}:{point}") as doomed:
        doomed.wait_ready()
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        doomed.wait_killed()
    with stage.worker():
        result = await run.result()
    await undone_last_first(stage, run, result, order_id)


async def test_an_undo_that_fails_for_good_is_put_in_front_of_a_human(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("restock_undos", fail="before", status=422)
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        [question] = view.result.waiting_for
        assert (question.kind, question.step_id) == ("intervention", "restock")
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


async def test_an_undo_that_fails_for_a_moment_is_tried_again(stage: Stage, order_id: str) -> None:
    stage.shop.fault("restock_undos", fail="before", status=503, times=1)
    stage.shop.fault("refund_cancellations", retry_after=1, times=1)
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        result = await run.result()
    await undone_last_first(stage, run, result, order_id)


async def test_an_undo_whose_answer_is_lost_is_looked_up_and_not_repeated(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("restock_undos", ignore_keys=True, fail="drop_after")
    async with stage.worker_here():
        run = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await run.approve()
        result = await run.result()
    await undone_last_first(stage, run, result, order_id)


async def test_after_an_undo_another_run_may_refund_the_order_and_the_same_step_may_not(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        failed = await stage.start(example_plan("refund_fails.yaml", order_id=order_id))
        await failed.approve()
        await failed.result()
        second = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await second.approve()
        result = await second.result()
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 2
    [refund] = [row for row in await stage.effects(second) if row["tool"] == "payments.refund"]
    assert (refund["generation"], refund["state"]) == (2, "committed")
