"""Interrupts of whole runs: asked, waited for without a process, answered once by whoever may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunView
from tests.e2e.interceptors import Pause
from tests.e2e.messages import answered
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import Run, decision_on, step
from tests.e2e.stage import Stage

ASKING = "tests.variants.refund_asking"


async def refused(run: Run, **answer: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await answered(run, **answer)
    return str(error.value.cause)


async def asks(run: Run, *ids: str) -> RunView:
    """Wait until exactly these questions wait."""
    return await run.until(lambda view: {i.interrupt_id for i in view.interrupts} == set(ids))


async def test_an_answer_is_the_output_of_the_step_that_asks(stage: Stage, order_id: str) -> None:
    whom = {"id": "whom", "ask": {"question": "Refund what?", "answer": {"enum": ["EUR", "USD"]}}}
    pay = refund_step(order_id, approval=None)
    pay["params"]["currency"] = "${whom}"
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(plan(whom, pay))
        view = await run.in_state(RunState.WAITING_INPUT)
        assert [(w.kind, w.id) for w in view.result.waiting_for] == [("question", "whom.1")]
        assert "'CHF' is not one of" in await refused(run, answer="CHF")
        assert await answered(run, answer="EUR") == "answered whom.1"
        result = await run.completed()

    assert step(result, "whom").output == "EUR"
    [event] = await stage.events(run, "interrupt.answered")
    assert event["body"]["actor"] == "ann"
    rows = {row["step_id"]: row for row in stage.step_rows(run)}
    assert (rows["whom"]["state"], rows["whom"]["output"]) == ("succeeded", "EUR")
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_an_answer_before_its_questions_report_counts(stage: Stage) -> None:
    # People are told in the transaction that records a question, before the run knows of that.
    opening = Pause("record_interrupt")
    async with stage.worker_here(client=opening.client(stage.client)):
        run = await stage.start(plan({"id": "whom", "ask": "Who?"}))
        await opening.reached()
        answering = asyncio.create_task(answered(run, answers={"whom.1": "ann"}))
        await run.history_has("workflow_execution_update_accepted")
        opening.go_on()
        assert await answering == "answered whom.1"
        await run.completed()


async def test_several_questions_are_answered_by_id_whole_or_not_at_all(stage: Stage) -> None:
    number = {"type": "integer"}
    both = [
        {"id": name, "ask": {"question": f"{name}?", "answer": number}, "after": []}
        for name in ("a", "b", "c")
    ]
    async with stage.worker_here():
        run = await stage.start(plan(*both))
        await asks(run, "a.1", "b.1", "c.1")
        assert "no answer is given" in await refused(run, answers={})
        assert "waiting are a.1, b.1, c.1" in await refused(run, answer=1)
        assert "waiting are a.1, b.1, c.1" in await refused(run, answers={"a.1": 1, "x.1": 2})
        assert "b.1: 'two' is not" in await refused(run, answers={"a.1": 1, "b.1": "two"})
        await asks(run, "a.1", "b.1", "c.1")
        await answered(run, answers={"a.1": 1, "b.1": 2})
        await asks(run, "c.1")
        assert "no question a.1 waits" in await refused(run, answers={"a.1": 7})
        await answered(run, answer=3)
        result = await run.result()

    assert [view.output for view in result.steps] == [1, 2, 3]
    assert len(await stage.events(run, "steering.refused")) == 5


async def test_a_tool_that_asks_twice_gets_its_answers_in_order_over_a_crash(stage: Stage) -> None:
    async with stage.worker_here(tool_modules=ASKING):
        run = await stage.start(plan({"id": "notes", "tool": "notes.ask_twice"}))
        await asks(run, "notes.1")
        await answered(run, answer="first")
        await asks(run, "notes.2")
    async with stage.worker_here(tool_modules=ASKING):
        assert "is not of type 'integer'" in await refused(run, answer="second")
        await answered(run, answer=2)
        result = await run.result()

    assert step(result, "notes").output == ["first", 2]


async def test_a_write_that_asks_applies_nothing_before(stage: Stage, order_id: str) -> None:
    async with stage.worker_here(tool_modules=ASKING):
        run = await stage.start(plan(refund_step(order_id)))
        first = await run.asks()
        await run.decide(decision_on(first))
        await asks(run, "refund.1")
        assert stage.shop.counts(order_id)["refunds"] == 0
        await answered(run, answer="sent twice")
        request = await run.asks(but=first)
        assert request.params_hash != first.params_hash
        assert "sent twice" in request.description
        assert (await run.decide(decision_on(request))).state == "approved"
        result = await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1
    assert [effect.state for effect in result.effects] == ["committed"]


@pytest.mark.parametrize("answer", ["accept", "reject"])
async def test_a_rejected_look_calls_nothing(stage: Stage, order_id: str, answer: str) -> None:
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(plan(refund_step(order_id), interrupts={"before": ["payments.*"]}))
        view = await asks(run, "refund.1")
        assert view.interrupts[0].value == refund_step(order_id)["params"]
        assert stage.shop.counts(order_id)["refunds"] == 0
        assert "is not one of ['accept', 'reject']" in await refused(run, answer={"replace": 1})
        await answered(run, answer=answer)
        result = await run.result()

    done = answer == "accept"
    assert result.state is (RunState.COMPLETED if done else RunState.FAILED)
    assert stage.shop.counts(order_id)["refunds"] == int(done)
    assert step(result, "refund").state == ("succeeded" if done else "skipped")


async def test_a_human_replaces_an_output(stage: Stage, order_id: str) -> None:
    read = {"id": "order", "tool": "orders.read", "params": {"order_id": order_id}}
    read["interrupt"] = "after"
    note = {"id": "note", "ask": "Is ${order.order_id} right?"}
    async with stage.worker_here():
        run = await stage.start(plan(read, note))
        view = await asks(run, "order.1")
        original = view.interrupts[0].value
        await answered(run, answer={"replace": {"order_id": "order-77"}})
        view = await asks(run, "note.1")
        assert view.interrupts[0].question == "Is order-77 right?"
        await answered(run, answer=True)
        result = await run.result()

    shown = step(result, "order")
    assert (shown.output, shown.original) == ({"order_id": "order-77"}, original)


async def test_a_rejected_effect_is_undone_and_plans_go_on(stage: Stage, order_id: str) -> None:
    pay = refund_step(order_id, interrupt="after", on_reject={"goto": "end"})
    between = {"id": "between", "ask": "never asked"}
    end = {"id": "end", "ask": "Done?", "after": ["between"]}
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(plan(pay, between, end))
        await asks(run, "refund.1")
        assert stage.shop.counts(order_id)["refunds"] == 1
        await answered(run, answer={"reject": "wrong order"})
        await asks(run, "end.1")
        assert stage.shop.counts(order_id)["refund_cancellations"] == 1
        await answered(run, answer="yes")
        result = await run.completed()

    assert {view.id: view.state.value for view in result.steps} == {
        "refund": "failed",
        "between": "skipped",
        "end": "succeeded",
    }


async def test_a_rejected_call_may_be_skipped(stage: Stage, order_id: str) -> None:
    after = {"id": "after", "ask": "Rejected because: ${refund.rejected.reason}. All well?"}
    async with stage.worker_here():
        run = await stage.start(plan(refund_step(order_id, on_reject="skip"), after))
        request = await run.asks()
        await run.decide(decision_on(request, outcome="reject", reason="too much"))
        view = await asks(run, "after.1")
        assert "too much" in view.interrupts[0].question
        await answered(run, answer="ok")
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 0


@pytest.mark.parametrize("otherwise", [True, False])
async def test_a_question_that_nobody_answers_ends_in_time(stage: Stage, otherwise: bool) -> None:
    ask: dict[str, Any] = {"question": "Anybody?", "expires_in": "1s"}
    if otherwise:
        ask["otherwise"] = "nobody"
    run, result = await stage.play(plan({"id": "call", "ask": ask}))

    view = step(result, "call")
    assert (result.state, view.state, view.output) == (
        (RunState.COMPLETED, "succeeded", "nobody")
        if otherwise
        else (RunState.FAILED, "skipped", None)
    )
    assert len(await stage.events(run, "interrupt.expired")) == 1
