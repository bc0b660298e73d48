"""Runs that continue as new: nothing is lost, nothing is doubled, and people notice nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import WorkflowExecutionStatus

from surehand.client.messages import new_token, read_token
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import TopUp
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from surehand.workflows.identity import DEFAULT_TENANT
from tests.e2e.executions import executions, reset_before
from tests.e2e.messages import answered, event, told
from tests.e2e.model_scripts import ALL, MODEL, asked, call, driven, refund, said
from tests.e2e.plans import UNGATED, plan, read, refund_step
from tests.e2e.runs import decision_on, states, step
from tests.e2e.stage import Stage
from tests.e2e.test_code_first import code

#: Events of history: some steps, so that a run of thirty continues several times.
SOON = 60


def reads(order_id: str, prefix: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return [read(order_id, f"{prefix}{n}", **more) for n in range(count)]


async def test_what_waits_for_people_survives_continue_as_new(stage: Stage, order_id: str) -> None:
    other = stage.shop.new_order()
    waits = [
        refund_step(order_id, after=[]),
        {"id": "ask", "ask": "Who?", "after": []},
        {"id": "back", "wait": {"event": "returned", "about": "order-7"}, "after": []},
        read("order-404", "lost", after=[], on_failure="pause"),
    ]
    first = reads(other, "r", 12)
    first[0]["after"] = []
    last = {**refund_step(other), "id": "last", "after": ["r11", "ask"]}
    async with stage.worker_here():
        run = await stage.start(plan(*waits, *first, last), continue_after=SOON)
        request = await run.asks("refund")
        # Before its request: it is held.
        early = decision_on(request, approval_id=f"{run.run_id}/last/1")
        assert (await run.decide(early)).code == "held"
        await run.until(lambda view: states(view.result)["r11"] == "succeeded")
        await run.until(lambda view: states(view.result)["lost"] == "paused_failure")
        assert len(await executions(stage, run)) >= 2
        view = await run.view()
        assert {one.kind for one in view.result.waiting_for} == {
            *("approval", "question", "event", "failure")
        }
        assert [one.approval_id for one in view.pending] == [request.approval_id]

        assert (await run.decide(decision_on(request))).state == "approved"
        assert await answered(run, answer="ann") == "answered ask.1"
        await told(run, Verb.EVENT, event("e1", {"at": 1}))
        right = ResumeRun(actor="olga", step="lost", params={"order_id": order_id})
        await told(run, Verb.RESUME, right)
        # The held one was for other params.
        asked = await run.asks("last")
        verdicts = (await run.view()).verdicts
        assert [v.code for v in verdicts if v.approval_id == asked.approval_id] == ["wrong_hash"]
        await run.decide(decision_on(asked))
        result = await run.completed()

    assert (step(result, "ask").output, step(result, "back").output) == ("ann", {"at": 1})
    assert [stage.shop.counts(one)["refunds"] for one in (order_id, other)] == [1, 1]
    assert len(stage.approval_rows(run)) == 2
    opened = await stage.events(run, "interrupt.opened")
    assert sorted(row["step_id"] for row in opened) == ["ask", "back", "lost"]


async def test_a_pause_and_its_token_outlive_the_execution(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(plan(refund_step(order_id)), continue_after=SOON)
        request = await run.asks()
        text, key = new_token(DEFAULT_TENANT, run.run_id, "uma")
        await told(run, Verb.PAUSE, PauseRun(actor="uma", resume_key=key))
        while len(await executions(stage, run)) < 3:
            await run.decide(decision_on(request, params_hash="sha256:" + "0" * 64))
        await run.decide(decision_on(request))
        assert (await run.in_state(RunState.PAUSED_USER)).pending == []
        assert stage.shop.counts(order_id)["refunds"] == 0
        token = read_token(text, DEFAULT_TENANT, run.run_id)
        await told(run, Verb.RESUME, token.proof_of(ResumeRun(actor="uma")))
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_child_start_is_asked_about_once(stage: Stage, order_id: str) -> None:
    inside = {"steps": [refund_step(order_id)]}
    ended = (RunState.COMPLETED, RunState.WAITING_INPUT)
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(
            plan({"id": "pay", "plan": inside, "interrupt": "before"}), continue_after=SOON
        )
        await run.in_state(RunState.WAITING_INPUT)
        await told(run, Verb.PAUSE, PauseRun(actor="uma"))
        await answered(run, answer="accept")
        await run.in_state(RunState.PAUSED_USER)
        before = len(await executions(stage, run))
        while len(await executions(stage, run)) < before + 1:
            await told(run, Verb.TOP_UP, TopUp(actor="olga", steps=1))
        await told(run, Verb.RESUME, ResumeRun(actor="uma"))
        view = await run.until(lambda view: view.result.state in ended)

        assert view.result.state is RunState.COMPLETED
    assert len(await stage.events(run, "interrupt.opened")) == 1
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_rejection_is_shown_once_while_its_undo_waits(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refund_cancellations", fail="before", status=422)
    pay = refund_step(order_id, interrupt="after", on_reject="skip")
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(pay), continue_after=SOON)
        await run.in_state(RunState.WAITING_INPUT)
        await answered(run, answer="reject")
        question = await run.asks_a_human()
        for _ in range(SOON // 4):
            await told(run, Verb.TOP_UP, TopUp(actor="olga", steps=1))
        await run.resolve(intervention_id=question.id, outcome="compensated", evidence="by hand")
        view = await run.until(lambda v: bool(v.interrupts) or v.result.state is RunState.COMPLETED)

        assert view.result.state is RunState.COMPLETED
    assert len(await stage.events(run, "interrupt.opened")) == 1
    assert (await stage.effect_states(run))["payments.refund"] == "compensated"


async def test_nobody_starts_a_run_with_carried_state(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(plan(*reads(order_id, "r", 14)), continue_after=SOON)
        await run.result()
        last = (await executions(stage, run))[-1]
        started = last.events[0].workflow_execution_started_event_attributes
        [value] = await stage.client.data_converter.decode(started.input.payloads)
        forged = f"{run.run_id}-forged"
        handle = await stage.client.start_workflow(
            "AgentRun", {**value, "run_id": forged}, id=forged, task_queue=stage.task_queue
        )
        try:
            await handle.result()
        except Exception as error:
            assert "only a continued one has" in str(error.__cause__)
        found = await handle.describe()

    assert found.status is WorkflowExecutionStatus.FAILED


async def test_a_run_that_is_reset_to_an_earlier_execution_continues_anew(stage: Stage) -> None:
    order_id, other = stage.shop.new_order(), stage.shop.new_order()
    steps = [refund_step(order_id), *reads(other, "r", 14), {**refund_step(other), "id": "last"}]
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(*steps), continue_after=SOON)
        await run.result()
        first = (await executions(stage, run))[0].run_id
        again = await reset_before(stage, run, "execute_tools", 4, first)
        result = await again.result()
        count = len(await executions(stage, run))

    assert result.state is RunState.COMPLETED
    assert count >= 2
    assert [stage.shop.counts(one)["refunds"] for one in (order_id, other)] == [1, 1]


# Runs of code, and of a model, that continue as new: what was done stays done, and only once.


CODE: Final = "tests.e2e.code"


@pytest.fixture
def orders(stage: Stage) -> list[str]:
    return [stage.shop.new_order() for _ in range(3)]


async def test_code_carries_its_state_and_step_ids(stage: Stage, orders: list[str]) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("Lasting", orders=orders))
        for number in range(1, 4):
            await run.decide(
                decision_on(await run.asks("refund" if number == 1 else f"refund-{number}"))
            )
        result = await run.result()
        histories = await executions(stage, run)

    assert len(histories) == 4
    assert (result.state, result.output) == (RunState.COMPLETED, orders)
    assert [stage.shop.counts(order)["refunds"] for order in orders] == [1, 1, 1]


async def test_continued_code_undoes_earlier_work(stage: Stage, orders: list[str]) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("Lasting", orders=orders[:2], gives_up=True))
        for name in ("refund", "refund-2"):
            await run.decide(decision_on(await run.asks(name)))
        result = await run.result()

    assert (result.state, result.error) == (RunState.FAILED, "enough")
    for order in orders[:2]:
        assert stage.paid(order) == (1, 1)


async def test_an_earlier_step_id_is_refused(stage: Stage, orders: list[str]) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("Lasting", orders=orders[:2], again=True))
        for name in ("refund", "refund-2"):
            await run.decide(decision_on(await run.asks(name)))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "step id 'same': a step of this run has it" in (result.error or "")


async def test_code_cannot_continue_as_new_over_a_step_that_is_under_way(stage: Stage) -> None:
    _, result = await stage.play(code("Lasting", orders=["busy"]), workflow_modules=CODE)

    assert result.state is RunState.FAILED
    assert "a step is under way" in (result.error or "")


async def test_a_step_begun_at_continue_as_new_is_kept(stage: Stage, order_id: str) -> None:
    _, result = await stage.play(code("Hasty", order_id=order_id), workflow_modules=CODE)

    assert result.state is RunState.FAILED
    assert "a step was begun meanwhile" in (result.error or "")


async def test_a_model_goes_on_over_executions(stage: Stage, order_id: str, tmp_path: Path) -> None:
    reads = [call("orders.read", order_id=order_id) for _ in range(12)]
    async with stage.worker_here(**MODEL):
        run = await stage.start(
            driven(tmp_path, *reads, refund(order_id), call("no.such"), *reads, ALL),
            continue_after=60,
        )
        await run.decide(decision_on(await run.asks()))
        result = await run.result()
        histories = await executions(stage, run)

    told = said(result)
    assert len(histories) >= 4
    assert len(told) == 26
    assert "no_such" in told[13]
    assert asked(tmp_path) == 27
    assert step(result, "turn-13.1").tool == "payments.refund"
    assert stage.shop.counts(order_id)["refunds"] == 1
