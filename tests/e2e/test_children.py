"""Child runs: seen, answered, steered and undone through the run that has started them."""

from __future__ import annotations

import pytest

from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.steering import CancelMode, PauseRun, ResumeRun, Verb
from tests.e2e.executions import inside
from tests.e2e.messages import answered, refusal, told
from tests.e2e.plans import UNGATED, child, plan, read, refund_step
from tests.e2e.runs import decision_on, step
from tests.e2e.stage import Stage
from tests.e2e.test_interrupts import refused


async def test_a_parent_shows_and_answers_its_childs_requests(stage: Stage, order_id: str) -> None:
    number = {"question": "How many?", "answer": {"type": "integer"}}
    async with stage.worker_here():
        run = await stage.start(plan(child({"id": "many", "ask": number}, refund_step(order_id))))
        view = await run.in_state(RunState.WAITING_INPUT)
        assert [(w.kind, w.id) for w in view.result.waiting_for] == [("question", "pay/many.1")]
        assert "is not of type 'integer'" in await refused(run, answers={"pay/many.1": "two"})
        await answered(run, answers={"pay/many.1": 2})
        view = await run.in_state(RunState.WAITING_APPROVAL)
        [waiting] = view.result.waiting_for
        assert (waiting.kind, waiting.id) == ("approval", f"{run.run_id}~pay/refund/1")
        request = await inside(stage, run).asks()
        verdict = await run.decide(decision_on(request))
        assert verdict.code == "held"
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1
    assert step(await inside(stage, run).result(), "many").output == 2


async def test_a_childs_failure_is_resumed_in_the_child(stage: Stage, order_id: str) -> None:
    wrong = read("order-404", on_no="fail", on_failure="pause")
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(child(wrong)))
        inner = inside(stage, run)
        await inner.in_state(RunState.PAUSED_FAILURE)
        view = await run.in_state(RunState.PAUSED_FAILURE)
        [waiting] = view.result.waiting_for
        right, there = {"order_id": order_id}, f"in run {inner.run_id}: resume it"
        assert there in await refusal(run, Verb.RESUME, ResumeRun(actor="olga", step="pay"))
        assert there in await refusal(run, Verb.RESUME, ResumeRun(actor="olga"))
        await told(inner, Verb.RESUME, ResumeRun(actor="olga", step="order", params=right))
        await run.completed()

    assert (waiting.kind, waiting.step_id, waiting.run_id) == (
        *("failure", "pay/order"),
        inner.run_id,
    )


@pytest.mark.parametrize("mode", [CancelMode.COMPENSATE, CancelMode.KEEP])
async def test_cancelling_reaches_the_child(stage: Stage, order_id: str, mode: CancelMode) -> None:
    wait = {"id": "wait", "ask": "Go on?"}
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(child(refund_step(order_id), wait)))
        await run.in_state(RunState.WAITING_INPUT)
        await run.cancel(mode=mode)
        result = await run.result()
        inner = await inside(stage, run).result()

    assert (result.state, inner.state) == (RunState.CANCELLED, RunState.CANCELLED)
    undone = mode is CancelMode.COMPENSATE
    assert stage.shop.counts(order_id)["refund_cancellations"] == int(undone)
    assert len(inner.uncompensated) == int(not undone)


async def test_a_child_pauses_and_resumes_with_its_parent(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(plan(child(refund_step(order_id))))
        await run.in_state(RunState.WAITING_APPROVAL)
        request = await inside(stage, run).asks()
        await run.handle.execute_update("pause", PauseRun(actor="olga"))
        await inside(stage, run).in_state(RunState.PAUSED_USER)
        await inside(stage, run).decide(decision_on(request))
    async with stage.worker_here():
        await run.in_state(RunState.PAUSED_USER)
        assert stage.shop.counts(order_id)["refunds"] == 0
        await run.handle.execute_update("resume", ResumeRun(actor="olga"))
        await run.completed()
        await inside(stage, run).result()
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_nobody_steers_a_child_in_its_parents_name(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(plan(child(refund_step(order_id))))
        await run.in_state(RunState.WAITING_APPROVAL)
        forged = {"steering_id": f"{run.run_id}#x.s1", "verb": "cancel"}
        inner = inside(stage, run)
        await inner.handle.signal("forwarded", {**forged, "content": {"actor": "eve"}})
        view = await inner.until(lambda view: bool(view.refused_signals))
        assert "has not taken this" in view.refused_signals[-1].reason
        assert view.result.state is RunState.WAITING_APPROVAL
        await run.cancel()
        await run.result()
        await inner.result()


async def test_a_failed_child_is_tried_again_as_another_run(stage: Stage, order_id: str) -> None:
    read = {"id": "read", "tool": "orders.read", "params": {"order_id": "${input.order}"}}
    pay = child(read, params={"order": "order-404"}, on_failure="pause")
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(pay))
        await run.in_state(RunState.PAUSED_FAILURE)
        right = ResumeRun(actor="olga", params={"order": order_id})
        await run.handle.execute_update("resume", right)
        result = await run.result()
        failed = await inside(stage, run).result()
        again = await inside(stage, run, "pay.2").result()

    assert (result.state, failed.state) == (RunState.COMPLETED, RunState.FAILED)
    assert (again.state, step(result, "pay").child) == (RunState.COMPLETED, again.run_id)
