"""Budgets, events, failures, other plans, conditions and lists of whole runs."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.cli.runs import outputs_before
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Amend, Checkpoint, Linked, RunView, TopUp
from surehand.workflows.contracts.steering import ResumeRun, Verb, Way
from tests.e2e.interceptors import Pause
from tests.e2e.messages import answered, event, refusal, told
from tests.e2e.plans import UNGATED, plan, read, refund_step
from tests.e2e.runs import decision_on, states, step
from tests.e2e.stage import Stage


def refusals(view: RunView) -> int:
    """Return how often the plan's first step was refused for its params."""
    return sum("failed: " in line.text and "InvalidParams" in line.text for line in view.timeline)


#: A step's wait has ended, or has begun anew.
ENDS = ("succeeded", "waiting_event")


class TestBudgets:
    async def test_a_used_up_budget_waits_for_a_top_up(self, stage: Stage, order_id: str) -> None:
        steps = [read(order_id), refund_step(order_id)]
        async with stage.worker_here(tool_modules=UNGATED):
            run = await stage.start(plan(*steps, budget={"steps": 1}))
            view = await run.in_state(RunState.PAUSED_BUDGET)
            assert view.result.waiting_for[0].kind == "budget"
            assert stage.shop.counts(order_id)["refunds"] == 0
            assert "nothing was added" in await refusal(run, Verb.TOP_UP, TopUp(actor="olga"))
            both = TopUp(actor="olga", tokens=5, money="1.5")
            assert "still used up: 1 calls" in await told(run, Verb.TOP_UP, both)
            await told(run, Verb.TOP_UP, TopUp(actor="olga", steps=1))
            await run.completed()

        assert stage.shop.counts(order_id)["refunds"] == 1

    async def test_parallel_items_respect_the_budget(self, stage: Stage) -> None:
        orders = [stage.shop.new_order() for _ in range(5)]
        pay = refund_step("${item}", for_each="${input.orders}", parallel=5)
        halts = (RunState.PAUSED_BUDGET, RunState.COMPLETED)

        def paid() -> int:
            return sum(stage.shop.counts(order)["refunds"] for order in orders)

        async with stage.worker_here(tool_modules=UNGATED):
            run = await stage.start(plan(pay, budget={"steps": 1}, input={"orders": orders}))
            await run.until(lambda view: view.result.state in halts)
            assert paid() == 1
            await told(run, Verb.TOP_UP, TopUp(actor="olga", steps=1))
            await run.until(
                lambda view: (
                    list(states(view.result).values()).count("succeeded") == 2
                    and view.result.state in halts
                )
            )
            assert paid() == 2
            await told(run, Verb.TOP_UP, TopUp(actor="olga", steps=3))
            result = await run.result()

        assert (result.state, paid()) == (RunState.COMPLETED, 5)
        # Who goes on waiting is told of once.
        assert len(await stage.events(run, "interrupt.opened")) == 4

    async def test_a_step_given_up_at_its_pause_is_left(self, stage: Stage, order_id: str) -> None:
        settling = Pause("record_interrupt", of=lambda asked: asked.what == "void")
        first = read(order_id)
        async with stage.worker_here(client=settling.client(stage.client), tool_modules=UNGATED):
            run = await stage.start(plan(first, refund_step(order_id), budget={"steps": 1}))
            await run.in_state(RunState.PAUSED_BUDGET)
            await told(run, Verb.TOP_UP, TopUp(actor="olga", steps=1))
            await settling.reached()
            other = Amend(actor="olga", plan=plan(first, {"id": "end", "ask": "?"}), based_on=1)
            await told(run, Verb.AMEND, other)
            await run.history_has("activity_task_cancel_requested")
            settling.go_on()
            view = await run.in_state(RunState.WAITING_INPUT)
            await answered(run, answer="yes")
            result = await run.result()

        assert (view.plan_version, result.state) == (2, RunState.COMPLETED)
        assert stage.shop.counts(order_id)["refunds"] == 0

    @pytest.mark.parametrize(
        ("mode", "tool", "how", "tokens"),
        [
            ("sync", "model.ask", "transient", 30),
            ("sync", "model.order", "permanent", 10),
            ("exit", "model.order", "transient", 30),
        ],
    )
    async def test_what_failed_attempts_have_used_counts(
        self, stage: Stage, order_id: str, mode: str, tool: str, how: str, tokens: int
    ) -> None:
        asks = {"id": "ask", "tool": tool, "params": {"fails": 2, "how": how}}
        steps = [{**asks, "on_failure": "continue"}, {**read(order_id), "after": ["ask"]}]
        modules, pauses = "tests.variants.spends", "10ms,10ms"
        async with stage.worker_here(tool_modules=modules, retries_transient=pauses):
            run = await stage.start(plan(*steps, budget={"tokens": tokens}), durability=mode)
            view = await run.in_state(RunState.PAUSED_BUDGET)
            waits = view.result.waiting_for[0]
            await told(run, Verb.TOP_UP, TopUp(actor="olga", tokens=1))
            await run.result()

        assert f"{tokens} tokens" in waits.model_dump_json()

    async def test_a_retried_batch_keeps_its_usage(self, stage: Stage, order_id: str) -> None:
        steps: list[dict[str, Any]] = [
            {"id": "a", "tool": "model.order", "params": {"fails": 0}},
            {"id": "b", "tool": "model.order", "params": {"fails": 1}},
            {"id": "end", "ask": "?"},
        ]
        modules, pauses = "tests.variants.spends", "10ms"
        async with stage.worker_here(tool_modules=modules, retries_transient=pauses):
            run = await stage.start(plan(*steps), durability="exit")
            await run.in_state(RunState.WAITING_INPUT)
            found = await run.handle.query("checkpoint", result_type=Checkpoint)
            await answered(run, answer="yes")
            await run.result()

        assert (found.budget or {})["tokens"] == 30

    async def test_an_undo_needs_no_budget(self, stage: Stage, order_id: str) -> None:
        gone = {"id": "no", "ask": {"question": "?", "expires_in": "1s"}}
        _, result = await stage.play(
            plan(refund_step(order_id), gone, budget={"steps": 1}), tool_modules=UNGATED
        )

        assert result.state is RunState.FAILED
        assert stage.shop.counts(order_id)["refund_cancellations"] == 1


class TestEvents:
    WAIT: dict[str, Any] = {"id": "back", "wait": {"event": "returned", "about": "order-7"}}

    async def test_an_early_event_is_kept_and_its_double_ignored(self, stage: Stage) -> None:
        first = {"id": "go", "ask": "Go?"}
        second = {**self.WAIT, "id": "again"}
        async with stage.worker_here():
            run = await stage.start(plan(first, self.WAIT, second))
            await run.in_state(RunState.WAITING_INPUT)
            await told(run, Verb.EVENT, event("e1", {"at": 1}))
            assert "has come before" in await told(run, Verb.EVENT, event("e1", {"at": 2}))
            await told(run, Verb.EVENT, event("e2", "other", about="order-8"))
            await answered(run, answer=True)
            await run.until(lambda view: states(view.result)["again"] == "waiting_event")
        async with stage.worker_here():
            await run.in_state(RunState.WAITING_EVENT)
            await told(run, Verb.EVENT, event("e3", "late"))
            result = await run.result()

        assert [view.output for view in result.steps] == [True, {"at": 1}, "late"]
        assert len(await stage.events(run, "interrupt.delivered")) == 2

    async def test_an_event_that_is_taken_is_not_lost_to_an_amendment(self, stage: Stage) -> None:
        taking = Pause("record_interrupt", of=lambda asked: asked.what == "delivered")
        async with stage.worker_here(client=taking.client(stage.client)):
            run = await stage.start(plan(self.WAIT))
            await run.in_state(RunState.WAITING_EVENT)
            await told(run, Verb.EVENT, event("e1", "here"))
            await taking.reached()
            longer = plan(self.WAIT, {"id": "end", "ask": "Done?"})
            await told(run, Verb.AMEND, Amend(actor="olga", plan=longer, based_on=1))
            taking.go_on()
            view = await run.until(
                lambda v: v.plan_version == 2 and states(v.result)["back"] in ENDS
            )
            assert step(view.result, "back").output == "here"
            await answered(run, answer="yes")
            await run.completed()

    async def test_a_step_that_waits_again_is_recorded_again(self, stage: Stage) -> None:
        wait = {**self.WAIT["wait"], "expires_in": "1s"}
        async with stage.worker_here():
            run = await stage.start(plan({"id": "back", "wait": wait, "on_failure": "pause"}))
            await run.in_state(RunState.PAUSED_FAILURE)
            await told(run, Verb.EVENT, event("e1", "late"))
            await told(run, Verb.RESUME, ResumeRun(actor="olga"))
            result = await run.result()

        assert step(result, "back").output == "late"
        known = {
            what: [row["body"]["interrupt_id"] for row in await stage.events(run, what)]
            for what in ("interrupt.opened", "interrupt.expired", "interrupt.delivered")
        }
        first, pause, second = known["interrupt.opened"]
        assert known["interrupt.expired"] == [first]
        assert known["interrupt.delivered"] == [second]
        assert len({first, pause, second}) == 3


class TestFailures:
    async def test_of_two_failed_steps_one_is_named(self, stage: Stage, order_id: str) -> None:
        fails: dict[str, Any] = {"on_no": "fail", "on_failure": "pause", "after": []}
        wrong = [read("order-404", name, **fails) for name in ("a", "b")]
        async with stage.worker_here():
            run = await stage.start(plan(*wrong))
            view = await run.until(lambda view: len(view.result.waiting_for) == 2)
            right = {"order_id": order_id}
            unnamed = await refusal(run, Verb.RESUME, ResumeRun(actor="olga", params=right))
            for name in ("a", "b"):
                resume = ResumeRun(actor="olga", step=name, params=right)
                await told(run, Verb.RESUME, resume)
            await run.completed()

        assert "one step that has failed" in unnamed
        assert [one.value for one in view.result.waiting_for] == [{"order_id": "order-404"}] * 2

    @pytest.mark.parametrize("way", [Way.SKIP, Way.COMPENSATE])
    async def test_a_failed_step_may_be_left(self, stage: Stage, order_id: str, way: Way) -> None:
        wrong = read("order-404", on_failure="pause")
        async with stage.worker_here(tool_modules=UNGATED):
            run = await stage.start(plan(refund_step(order_id), wrong))
            await run.in_state(RunState.PAUSED_FAILURE)
            assert "has not failed" in await refusal(
                run, Verb.RESUME, ResumeRun(actor="olga", step="refund")
            )
            await told(run, Verb.RESUME, ResumeRun(actor="olga", way=way))
            result = await run.result()

        done = way is Way.SKIP
        assert result.state is (RunState.COMPLETED if done else RunState.FAILED)
        assert stage.shop.counts(order_id)["refund_cancellations"] == int(not done)

    @pytest.mark.parametrize("mode", ["sync", "async", "exit"])
    async def test_refused_params_are_retried(self, stage: Stage, order_id: str, mode: str) -> None:
        pay = refund_step(order_id, on_failure="pause")
        pay["params"] = {**pay["params"], "amount": "${order.order_id}"}
        async with stage.worker_here(tool_modules=UNGATED):
            run = await stage.start(plan(read(order_id), pay), durability=mode)
            view = await run.in_state(RunState.PAUSED_FAILURE)
            for number, wrong in enumerate(({"amount": "1"}, {"order_id": order_id}), 2):
                again = ResumeRun(actor="olga", params=wrong)
                await told(run, Verb.RESUME, again)
                view = await run.until(lambda seen, n=number: refusals(seen) == n)  # type: ignore[misc]
            right = refund_step(order_id)["params"]
            await told(run, Verb.RESUME, ResumeRun(actor="olga", params=right))
            result = await run.result()

        assert view.result.effects == []
        assert (result.state, stage.shop.counts(order_id)["refunds"]) == (RunState.COMPLETED, 1)

    async def test_new_params_replace_an_edit(self, stage: Stage, order_id: str) -> None:
        pay = refund_step(order_id, on_failure="pause")
        stage.shop.fault("refunds", fail="before", status=422, times=2)
        async with stage.worker_here():
            run = await stage.start(plan(pay))
            edited = {**pay["params"], "amount": "15.00"}
            await run.decide(decision_on(await run.asks(), outcome="edit", params=edited))
            again = await run.until(
                lambda view: [r.params["amount"] for r in view.pending] == ["15.00"]
            )
            await run.decide(decision_on(again.pending[0]))
            other = {**pay["params"], "amount": "20.00"}
            for params in (other, None):
                await run.in_state(RunState.PAUSED_FAILURE)
                await told(run, Verb.RESUME, ResumeRun(actor="olga", params=params))
                request = await run.asks()
                assert request.params["amount"] == "20.00"
                await run.decide(decision_on(request))
            await run.completed()

        assert [one["amount"] for one in stage.shop.world(order_id)["refunds"]] == ["20.00"]

    async def test_a_failed_read_asks_another_tool(self, stage: Stage, order_id: str) -> None:
        other = {"tool": "orders.read", "params": {"order_id": order_id}}
        _, result = await stage.play(plan(read("order-404", fallback=other)))

        assert step(result, "order").output["order_id"] == order_id  # type: ignore[index,call-overload]


class TestAmending:
    async def test_no_effect_is_lost_silently(self, stage: Stage, order_id: str) -> None:
        wait = {"id": "wait", "ask": "Go on?"}
        gone = {"id": "gone", "ask": {"question": "Nobody", "expires_in": "1s"}}
        async with stage.worker_here(tool_modules=UNGATED):
            run = await stage.start(plan(refund_step(order_id), wait))
            await run.in_state(RunState.WAITING_INPUT)
            dropping = Amend(actor="olga", plan=plan(gone), based_on=1)
            assert "drops step refund" in await refusal(run, Verb.AMEND, dropping)
            unknown = plan(refund_step(order_id), {"id": "x", "tool": "no.such"})
            asked = Amend(actor="olga", plan=unknown, based_on=1)
            assert "unknown tool" in await refusal(run, Verb.AMEND, asked)
            await told(run, Verb.AMEND, dropping.model_copy(update={"drops": ("refund",)}))
            result = await run.result()

        assert result.state is RunState.FAILED
        assert stage.shop.counts(order_id)["refund_cancellations"] == 1


async def test_taken_over_outputs_are_not_made_again(stage: Stage, order_id: str) -> None:
    steps = [read(order_id), refund_step(order_id), {"id": "end", "ask": "Paid ${refund.amount}?"}]
    async with stage.worker_here(tool_modules=UNGATED):
        first = await stage.start(plan(*steps))
        await first.in_state(RunState.WAITING_INPUT)
        outputs = outputs_before(await first.view(), "end")
        linked = Linked(run_id=first.run_id, outputs=outputs)
        second = await stage.start(plan(*steps), linked=linked)
        view = await second.in_state(RunState.WAITING_INPUT)
        assert view.interrupts[0].question == "Paid 120.00?"
        assert step(view.result, "refund").made_by == first.run_id
        await second.cancel()
        await answered(first, answer="yes")
        await first.completed()
        await second.result()

    assert stage.paid(order_id) == (1, 0)
    assert await stage.events(second, "effect.claimed") == []


async def test_an_output_that_is_too_large_to_be_shown_is_not_taken_over(stage: Stage) -> None:
    async with stage.worker_here():
        run = await stage.start(plan({"id": "a", "ask": "?"}, {"id": "b", "ask": "?"}))
        await run.in_state(RunState.WAITING_INPUT)
        await answered(run, answers={"a.1": "yes"})
        view = await run.until(lambda view: "b.1" in {one.interrupt_id for one in view.interrupts})
    cut = {"a": {"output": {"too_large": {"bytes": 600_000}}}}
    steps = [one.model_copy(update=cut.get(one.id)) for one in view.result.steps]
    shown = view.model_copy(update={"result": view.result.model_copy(update={"steps": steps})})

    with pytest.raises(WrongUse, match=r"output of a is too large to be shown.*--from a"):
        outputs_before(shown, "b")


async def test_a_rejection_may_wait_for_another_plan(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(plan(refund_step(order_id, on_reject="replan")))
        request = await run.asks()
        await run.decide(decision_on(request, outcome="reject", reason="only half"))
        view = await run.in_state(RunState.PAUSED_FAILURE)
        assert "only half" in view.result.waiting_for[0].question
        half = refund_step(order_id)
        half["params"]["amount"] = "60.00"
        await told(run, Verb.AMEND, Amend(actor="planner", plan=plan(half), based_on=1))
        again = await run.asks()
        assert (again.approval_id, again.params["amount"]) == (f"{run.run_id}/refund/2", "60.00")
        await run.decide(decision_on(again))
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize("again", ["another plan", "a skip"])
async def test_an_undone_step_needs_a_new_id(stage: Stage, order_id: str, again: str) -> None:
    pay = refund_step(order_id, interrupt="after", on_reject="replan")
    anew = {**refund_step(order_id), "id": "anew"}
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(pay, {"id": "end", "ask": "Well?"}))
        await run.until(lambda view: bool(view.interrupts))
        await answered(run, answer={"reject": "wrong order"})
        await run.in_state(RunState.PAUSED_FAILURE)
        retry = await refusal(run, Verb.RESUME, ResumeRun(actor="olga"))
        assert "step refund has been undone" in retry
        if again == "a skip":
            await told(run, Verb.RESUME, ResumeRun(actor="olga", way=Way.SKIP))
            await run.in_state(RunState.WAITING_INPUT)
        same = Amend(actor="olga", plan=plan(pay, anew), based_on=1)
        assert await refusal(run, Verb.AMEND, same) == retry
        assert "new step id" in retry
        await told(run, Verb.AMEND, same.model_copy(update={"plan": plan(anew)}))
        await run.completed()

    assert stage.paid(order_id) == (2, 1)


async def test_an_undone_step_may_stay_in_another_plan(stage: Stage, order_id: str) -> None:
    pay = refund_step(order_id, interrupt="after", on_reject="skip")
    end = {"id": "end", "ask": "Well?"}
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(pay, end))
        await run.until(lambda view: bool(view.interrupts))
        await answered(run, answer="reject")
        await run.until(lambda view: [i.step_id for i in view.interrupts] == ["end"])
        longer = plan(pay, end, {"id": "last", "ask": "Sure?"})
        await told(run, Verb.AMEND, Amend(actor="olga", plan=longer, based_on=1))
        for step_id in ("end", "last"):
            await run.until(lambda v, one=step_id: [i.step_id for i in v.interrupts] == [one])  # type: ignore[misc]
            await answered(run, answer="yes")
        await run.completed()

    assert stage.paid(order_id) == (1, 1)


async def test_an_excluded_step_comes_back_unchanged(stage: Stage, order_id: str) -> None:
    end = {"id": "end", "ask": "Well?"}
    async with stage.worker_here(tool_modules=UNGATED):
        run = await stage.start(plan(refund_step(order_id), end))
        await run.in_state(RunState.WAITING_INPUT)
        without = Amend(actor="olga", plan=plan(end), based_on=1, drops=("refund",))
        await told(run, Verb.AMEND, without)
        await run.until(lambda view: view.plan_version == 2 and bool(view.interrupts))
        other = Amend(actor="olga", plan=plan(read(order_id, "refund"), end), based_on=2)
        assert "cannot become orders.read" in await refusal(run, Verb.AMEND, other)
        back = Amend(actor="olga", plan=plan(refund_step(order_id), end), based_on=2)
        await told(run, Verb.AMEND, back)
        await run.until(lambda view: view.plan_version == 3 and bool(view.interrupts))
        await answered(run, answer="yes")
        await run.completed()

    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_outputs_of_steps_that_the_plan_has_not_are_left_out(stage: Stage) -> None:
    linked = Linked(run_id="another", outputs={"nowhere": 1, "a": "taken"})
    async with stage.worker_here():
        run = await stage.start(plan({"id": "a", "ask": "?"}), linked=linked)
        result = await run.result()

    assert (result.state, step(result, "a").output) == (RunState.COMPLETED, "taken")
