"""G3: whoever starts a run in another's name gains nothing by it, and unsigned starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError
from temporalio.worker import Worker

from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Parent, StartRun
from surehand.workflows.names import WORKFLOW
from tests.e2e.executions import inside, reset_before
from tests.e2e.papers import TOOLS, WAITS, paper, told, which
from tests.e2e.plans import UNGATED, child, plan, refund_step
from tests.e2e.runs import decision_on
from tests.e2e.stage import Stage
from tests.e2e.test_policies import refund, signed
from tests.e2e.test_refund import refusal
from tests.e2e.test_reset import GO
from tests.ledger.people import key_of, person


async def started(stage: Stage, order_id: str, **changes: Any) -> StartRun:
    """The start of a refund for uma, as anybody can send it."""
    values = {"run_id": f"foreign-{order_id}", "tenant": "default", "user": "uma"}
    return StartRun(**{**values, "plan": refund(order_id), **changes})


async def test_nobody_but_a_run_itself_starts_its_child_runs(stage: Stage, order_id: str) -> None:
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(plan({"id": "go", "ask": "Go on?"}), key=umas)
        await run.in_state(RunState.WAITING_INPUT)
        parent = Parent(run_id=run.run_id, step_id="go")
        start = await started(stage, order_id, run_id=f"{run.run_id}~go", parent=parent)

        cause = await refusal(stage, start.run_id, start)

        assert (cause.type, "has not started run" in cause.message) == ("StartRefused", True)
        await run.handle.terminate("done with")
    assert set(stage.shop.counts(order_id).values()) == {0}


@workflow.defn(name="Impostor", sandboxed=False)
class Impostor:
    """A workflow of somebody's own, under the id of a run that has ended."""

    @workflow.run
    async def run(self, child_run: StartRun, queue: str) -> str:
        """Start a "child run" of it, and return why that has failed."""
        try:
            await workflow.execute_child_workflow(
                WORKFLOW, child_run, id=child_run.run_id, task_queue=queue
            )
        except ChildWorkflowError as error:
            return str(error.cause)
        return "completed"


async def test_no_impostor_under_an_ended_id_starts_children(stage: Stage, order_id: str) -> None:
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed", tool_modules=UNGATED):
        run = await stage.start(plan(WAITS), key=umas)
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.terminate("done with")
        pay = plan(refund_step(order_id))
        parent = Parent(run_id=run.run_id, step_id="pay")
        start = await started(stage, order_id, run_id=f"{run.run_id}~pay", plan=pay, parent=parent)
        queue = f"{stage.task_queue}-impostors"
        async with Worker(stage.client, task_queue=queue, workflows=[Impostor]):
            why = await stage.client.execute_workflow(
                *(Impostor.run,), args=[start, stage.task_queue], id=run.run_id, task_queue=queue
            )

    assert f"run {run.run_id} has not started it" in why
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_every_life_of_a_run_starts_its_child_runs(stage: Stage, tmp_path: Path) -> None:
    umas = key_of(stage, person(stage, "uma"))
    meant = tmp_path / "meant"
    meant.write_text(paper(stage, "a"))
    read, _ = which(meant)
    write = {"id": "file", "tool": "papers.file", "params": {"name": "${input.name}"}}
    pay = child(write, params={"name": "${which.name}"})
    async with stage.worker_here(decisions="signed", **TOOLS):
        run = await stage.start(plan(read, pay, GO), key=umas)
        await run.in_state(RunState.WAITING_EVENT)
        meant.write_text(paper(stage, "b"))
        again = await reset_before(stage, run, "execute_tools", 1)
        await again.in_state(RunState.WAITING_EVENT)
        second = await inside(stage, run, "pay.2").result()
        await again.handle.terminate("done with")

    assert (second.state, told(stage, "file")) == (RunState.COMPLETED, ["a", "b"])


async def test_a_child_run_goes_by_who_has_started_its_parent(stage: Stage, order_id: str) -> None:
    mallorys = key_of(stage, person(stage, "mallory"))
    anns = key_of(stage, person(stage, "ann"))
    pay = refund_step(order_id, approval={"four_eyes": True})
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(plan(child(pay)), started_by="mallory", key=mallorys)
        inner = inside(stage, run)
        request = await inner.asks()
        own = signed(decision_on(request, approver="mallory"), inner, mallorys)
        assert (await inner.decide(own)).code == "four_eyes"
        await inner.decide(signed(decision_on(request, approver="ann"), inner, anns))
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_start_is_judged_by_when_the_server_took_it(stage: Stage, order_id: str) -> None:
    umas = key_of(stage, person(stage, "uma"))
    run = await stage.start(refund(order_id), key=umas)
    taken = (await run.handle.describe()).start_time
    async with stage.worker_here(decisions="signed"):
        await run.asks()
        [row] = stage.run_rows(run)
        assert row["start_ms"] == int(taken.timestamp() * 1000)
        await run.handle.terminate("done with")
