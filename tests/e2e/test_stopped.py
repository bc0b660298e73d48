"""A run that was terminated from outside: found by the sweep, and undone when somebody says so."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities import upkeep
from tests.e2e.runs import Run, decision_on, example_plan
from tests.e2e.stage import Stage
from tests.e2e.test_reset import reset_before
from tests.ledger_databases import DATABASES
from workflows.contracts import RunState, Sweep, Swept, UnwindRun, Unwound
from workflows.plan import Plan
from workflows.upkeep import Reconcile, Unwind


async def terminated(stage: Stage, order_id: str) -> Run:
    """Return a run that was terminated after its refund and restock, before a last approval."""
    steps = example_plan("refund_fails.yaml", order_id=order_id).model_dump(mode="json")
    steps["steps"][-1]["approval"] = "required"
    run = await stage.start(Plan.model_validate(steps))
    await run.decide(decision_on(await run.asks("refund")))
    await run.asks("close")
    await run.handle.terminate("by hand")
    return run


async def sweep(stage: Stage) -> Swept:
    return await stage.client.execute_workflow(
        Reconcile.run,
        Sweep(tenant="default"),
        id=f"sweep-{uuid.uuid4().hex}",
        task_queue=stage.task_queue,
    )


async def unwind(stage: Stage, run: Run) -> Unwound:
    asked = UnwindRun(tenant="default", run_id=run.run_id, actor="oscar")
    return await stage.client.execute_workflow(
        Unwind.run, asked, id=f"{run.run_id}.unwind", task_queue=stage.task_queue
    )


async def until_found(stage: Stage, run: Run) -> list[Any]:
    """Sweep until the server's list of runs, which lags a little, has shown the terminated one."""
    while True:
        found = [one for one in (await sweep(stage)).stopped if one.run_id == run.run_id]
        if found:
            return found


@pytest.mark.parametrize("database", DATABASES)
async def test_the_sweep_closes_a_terminated_run_and_lists_what_stands(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        run = await terminated(stage, order_id)
        [found] = await until_found(stage, run)
        again = await sweep(stage)

    assert [view.tool for view in found.standing] == ["inventory.restock", "payments.refund"]
    assert again.stopped == []
    [row] = await stage.run_rows(run)
    assert (row["state"], row["error"]) == ("failed", "stopped from outside")
    states = {one["approval_id"]: one["state"] for one in await stage.approval_rows(run)}
    assert states == {f"{run.run_id}/refund/1": "approved", f"{run.run_id}/close/1": "void"}
    # Found, and offered: nothing is undone before somebody says so.
    counts = stage.shop.counts(order_id)
    assert (counts["refund_cancellations"], counts["restock_undos"]) == (0, 0)


async def test_a_round_comes_to_every_run_of_a_batch_that_was_terminated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of a page; those that are closed already are in front."""
    monkeypatch.setattr(upkeep, "_PAGE", 2)
    asks = Plan.model_validate([{"id": "wait", "ask": "Go on?"}])
    async with stage.worker_here(sweep_batch="1"):
        for _ in range(2):
            runs = [await stage.start(asks) for _ in range(3)]
            for run in runs:
                await run.in_state(RunState.WAITING_INPUT)
                await run.handle.terminate("by hand")
            # The server's list of runs lags a little: it has them once it has a later one.
            await until_found(stage, await terminated(stage, stage.shop.new_order()))
            await sweep(stage)

            errors = [(await stage.run_rows(run))[0]["error"] for run in runs]
            assert errors == ["stopped from outside"] * 3


async def test_unwinding_a_terminated_run_undoes_its_effects_once_last_first(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here():
        run = await terminated(stage, order_id)
        done = await unwind(stage, run)
        again = await unwind(stage, run)

    assert (done.undone, done.left) == (["restock", "refund"], [])
    assert (again.undone, again.left) == ([], [])
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)
    assert (counts["restocks"], counts["restock_undos"]) == (1, 1)
    undone = await stage.events(run, "effect.compensated")
    assert [event["step_id"] for event in undone] == ["restock", "refund"]
    [unwinding, _] = await stage.events(run, "run.unwinding")
    assert unwinding["body"]["actor"] == "oscar"


async def test_a_run_that_is_open_is_not_unwound_from_outside(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.asks("refund")
        with pytest.raises(WorkflowFailureError) as refused:
            await unwind(stage, run)
        await run.cancel()
        await run.result()

    cause = refused.value.cause.cause  # type: ignore[union-attr]
    assert isinstance(cause, ApplicationError) and cause.type == "RunStillOpen"


async def test_a_run_that_was_reset_is_not_taken_for_the_stopped_one_before_it(
    stage: Stage, order_id: str
) -> None:
    """A reset terminates the execution before; the run itself goes on under the same id."""
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.asks("refund")
        again = await reset_before(stage, run, "request_approval", 1)
        request = await again.asks("refund")
        # What the server's list shows of a later one, it shows of this one, too.
        await until_found(stage, await terminated(stage, stage.shop.new_order()))
        await again.decide(decision_on(request))
        result = await again.result()

    assert result.state is RunState.COMPLETED
    [row] = await stage.run_rows(run)
    assert row["state"] == "completed"


async def test_a_run_that_has_ended_by_itself_is_not_unwound(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        await run.result()
        with pytest.raises(WorkflowFailureError) as refused:
            await unwind(stage, run)

    cause = refused.value.cause.cause  # type: ignore[union-attr]
    assert isinstance(cause, ApplicationError) and cause.type == "RunEnded"
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 0)
