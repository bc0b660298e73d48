"""Runs that a model drives: each turn once, nothing it decides upon happens unasked or twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, decision_on, example_plan, step, until
from tests.e2e.stage import Stage

MODEL: Final = {"tool_modules": "tests.variants.model"}
ALL: Final = "finish with all"


def driven(tmp_path: Path, *script: Any, model: str = "model.next", tools: Any = ("*",)) -> Plan:
    given = {"model": model, "count": str(tmp_path / "count"), "script": list(script)}
    given["tools"] = list(tools)
    return Plan.model_validate({"goal": "Refund it", "code": "ModelRun", "input": given})


def call(tool: str, **params: Any) -> dict[str, Any]:
    return {"do": "call", "tool": tool, "params": params}


def refund(order_id: str) -> dict[str, Any]:
    return call("payments.refund", order_id=order_id, amount="120.00", currency="EUR")


def asked(tmp_path: Path) -> int:
    return (tmp_path / "count").stat().st_size


async def test_a_model_reads_asks_refunds_and_is_told_what_humans_have_made_of_it(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    question = {"do": "ask", "question": "Is it damaged?", "answer": {"type": "boolean"}}
    script = [call("orders.read", order_id=order_id), question, refund(order_id), ALL]
    async with stage.worker_here(**MODEL):
        run = await stage.start(driven(tmp_path, *script))
        await run.in_state(RunState.WAITING_INPUT)
        await run.handle.execute_update("answer", {"actor": "ann", "answer": True})
        request = await run.asks()
        edit = decision_on(request, outcome="edit", params={**request.params, "amount": "50.00"})
        await run.decide(edit)
        view = await run.until(
            lambda seen: [one.params["amount"] for one in seen.pending] == ["50.00"]
        )
        await run.decide(decision_on(view.pending[0], approver="bob"))
        result = await run.result()

    assert result.state is RunState.COMPLETED, result.error
    told: Any = result.output
    assert [one["turn"]["do"] for one in told] == ["call", "ask", "call"]
    assert told[1]["output"] is True
    assert told[2]["edited_by_a_human"]["amount"] == "50.00"
    assert told[2]["output"]["amount"] == "50.00"
    assert [one["amount"] for one in stage.shop.world(order_id)["refunds"]] == ["50.00"]
    assert asked(tmp_path) == 4


async def test_a_model_is_told_of_a_no_a_rejection_an_unknown_tool_and_a_mistake(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    script = [
        call("orders.read", order_id="order-404"),
        call("no.such"),
        {"do": "dance"},
        refund(order_id),
        ALL,
    ]
    async with stage.worker_here(**MODEL):
        run = await stage.start(driven(tmp_path, *script))
        await run.decide(decision_on(await run.asks(), outcome="reject", reason="too much"))
        result = await run.result()

    assert result.state is RunState.COMPLETED, result.error
    told: Any = result.output
    assert "no" in told[0]["output"]
    assert "'no.such' is none of the tools that this run has" in told[1]["mistake"]
    assert "do" in told[2]["mistake"]
    assert "too much" in told[3]["rejected"]
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_a_model_that_makes_no_sense_or_gives_up_has_its_work_undone(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    for end, why in (
        ({"do": "dance"}, "makes no sense"),
        ({"do": "give_up", "reason": "no"}, "no"),
    ):
        order = stage.shop.new_order()
        async with stage.worker_here(**MODEL):
            run = await stage.start(driven(tmp_path, refund(order), end))
            await run.decide(decision_on(await run.asks()))
            result = await run.result()
        assert result.state is RunState.FAILED
        assert why in (result.error or "")
        counts = stage.shop.counts(order)
        assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_crash_asks_no_turn_again_and_pays_once(
    stage: Stage, order_id: str, tmp_path: Path, mode: str
) -> None:
    # The model decides upon the same refund twice: one effect, by its business key.
    plan = driven(tmp_path, refund(order_id), refund(order_id), {"do": "finish", "output": "ok"})
    with stage.worker(**MODEL, crash_at="payments.refund:after_call") as doomed:
        doomed.wait_ready()
        run = await stage.start(plan, durability=mode)
        await run.approve()
        doomed.wait_killed()
    async with stage.worker_here(**MODEL):
        result = await run.result()

    assert (result.state, result.output) == (RunState.COMPLETED, "ok")
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert step(result, "step-1").output == step(result, "step-2").output
    assert asked(tmp_path) == 3


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
@pytest.mark.parametrize("model", ["model.next", "model.quick"])
async def test_a_turn_that_is_recorded_is_not_asked_again_by_a_crash_before_its_report(
    stage: Stage, order_id: str, tmp_path: Path, mode: str, model: str
) -> None:
    plan = driven(tmp_path, call("orders.read", order_id=order_id), ALL, model=model)
    with stage.worker(**MODEL, crash_at=f"{model}:before_report@turn-2") as doomed:
        doomed.wait_ready()
        run = await stage.start(plan, durability=mode)
        doomed.wait_killed()
    async with stage.worker_here(**MODEL):
        result = await run.result()

    told: Any = result.output
    assert (result.state, len(told)) == (RunState.COMPLETED, 1)
    assert asked(tmp_path) == 2


async def test_a_call_that_did_not_fit_its_tool_can_be_made_right_in_a_later_turn(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    script = [call("orders.read"), call("orders.read", order_id=order_id), ALL]
    async with stage.worker_here(**MODEL):
        run = await stage.start(driven(tmp_path, *script))
        result = await run.result()

    told: Any = result.output
    assert "order_id" in told[0]["failed"]
    assert told[1]["output"]["order_id"] == order_id


async def test_a_model_may_only_call_the_tools_that_its_run_was_given(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    """A model that was talked into it reaches no other tool, and the run tells that it tried."""
    script = [refund(order_id), call("mail.send", to="x"), call("orders.read", order_id=order_id)]
    async with stage.worker_here(**MODEL):
        run = await stage.start(driven(tmp_path, *script, ALL, tools=["orders.*"]))
        result = await run.result()

    told: Any = result.output
    assert ["mistake" in one for one in told] == [True, True, False]
    assert "'payments.refund' is none of the tools that this run has: orders." in told[0]["mistake"]
    assert told[2]["output"]["order_id"] == order_id
    assert stage.shop.counts(order_id) == {**stage.shop.counts(order_id), "refunds": 0, "mails": 0}
    refused = await stage.events(run, "step.refused")
    assert [one["body"]["tool"] for one in refused] == ["payments.refund", "mail.send"]
    assert [step(result, id_).state for id_ in ("step-1", "step-2")] == ["skipped", "skipped"]
    assert "is none of the tools" in (step(result, "step-1").error or "")
    assert stage.approval_rows(run) == []


@pytest.mark.parametrize("tools", [["payments.*"], ["*"], ["payments.refund", "payments.r*"]])
async def test_a_pattern_gives_a_model_no_tool_that_undoes_another_runs_effect(
    stage: Stage, order_id: str, tmp_path: Path, tools: list[str]
) -> None:
    async with stage.worker_here(**MODEL):
        honest = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await honest.decide(decision_on(await honest.asks()))
        receipt = step(await honest.result(), "refund").output
        undo = call("payments.cancel_refund", refund_id=receipt["refund_id"], order_id=order_id)  # type: ignore[index,call-overload]
        run = await stage.start(driven(tmp_path, undo, ALL, tools=tools))
        result = await run.result()

    assert "none of the tools" in str(result.output)
    assert stage.shop.counts(order_id)["refund_cancellations"] == 0
    assert (await stage.effect_states(honest))["payments.refund"] == "committed"


async def test_a_tool_that_undoes_can_be_given_by_its_name(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    async with stage.worker_here(**MODEL):
        honest = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await honest.decide(decision_on(await honest.asks()))
        receipt = step(await honest.result(), "refund").output
        undo = call("payments.cancel_refund", refund_id=receipt["refund_id"], order_id=order_id)  # type: ignore[index,call-overload]
        run = await stage.start(driven(tmp_path, undo, ALL, tools=["payments.cancel_refund"]))
        await run.result()

    assert stage.shop.counts(order_id)["refund_cancellations"] == 1


async def test_a_tool_that_is_loaded_later_is_none_of_those_that_a_run_was_given(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    ask = {"do": "ask", "question": "Go on?"}
    plan = driven(tmp_path, ask, call("payments.price", amount=1), ALL)
    async with stage.worker_here(**MODEL):
        run = await stage.start(plan)
        await run.in_state(RunState.WAITING_INPUT)
    async with stage.worker_here(tool_modules="tests.variants.amounts"):
        await run.handle.execute_update("answer", {"actor": "ann", "answer": True})
        result = await run.result()

    told: Any = result.output
    assert "'payments.price' is none of the tools" in told[1]["mistake"]


async def test_a_model_that_asks_for_others_again_and_again_fails_its_run(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    async with stage.worker_here(**MODEL):
        run = await stage.start(driven(tmp_path, *[refund(order_id)] * 3, tools=["orders.read"]))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "none of the tools" in (result.error or "")
    assert len(await stage.events(run, "step.refused")) == 3


@pytest.mark.parametrize("model", ["model.next", "model.quick"])
async def test_a_turn_and_what_it_reads_may_be_larger_than_what_stays_inline(
    stage: Stage, order_id: str, tmp_path: Path, model: str
) -> None:
    long = {"output": "x" * 200_000}
    script = [call("pages.read", n=1, length=20_000), {"do": "finish", **long}]
    small = driven(tmp_path, script[0], {"do": "finish", "output": ["y" * 20_000]}, model=model)
    told = driven(tmp_path, script[0], ALL, model=model)
    async with stage.worker_here(tool_modules="tests.variants.pages"):
        result = await (await stage.start(driven(tmp_path, *script, model=model))).result()
        assert (result.state, result.output) == (RunState.COMPLETED, long["output"])
        result = await (await stage.start(small)).result()
        assert (result.state, result.output) == (RunState.COMPLETED, ["y" * 20_000])
        result = await (await stage.start(told)).result()

    assert result.state is RunState.COMPLETED, result.error
    output: Any = result.output
    assert output[0]["output"] == {"n": 1, "text": "x" * 20_000}


async def test_a_turn_without_measure_is_a_mistake_that_the_model_is_told(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    large = {"do": "finish", "output": "x" * 1024 * 1024}
    async with stage.worker_here(**MODEL):
        run = await stage.start(driven(tmp_path, large, ALL))
        result = await run.result()

    told: Any = result.output
    assert result.state is RunState.COMPLETED, result.error
    assert "it is too large" in told[0]["mistake"]
    assert "$artifact" in told[0]["turn"]


async def test_a_model_run_waits_for_the_store_that_has_its_turn(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    folder, away = stage.folder / "artifacts", stage.folder / "away"
    large = {"do": "ask", "question": "Go on?", "answer": {"description": "x" * 20_000}}
    given = driven(tmp_path, large, ALL).model_dump(mode="json", exclude={"steps"})
    interrupted = Plan.model_validate({**given, "interrupts": {"after": ["turn-1"]}})
    async with stage.worker_here(**MODEL):
        run = await stage.start(interrupted)
        await run.in_state(RunState.WAITING_INPUT)
    folder.rename(away)
    async with stage.worker_here(**MODEL):
        await run.handle.execute_update("answer", {"actor": "ann", "answer": "accept"})
        await until(lambda: tries(run), lambda made: made > 1)
        folder.rmdir()
        away.rename(folder)
        await run.until(lambda seen: [one.step_id for one in seen.interrupts] == ["step-1"])
        await run.handle.execute_update("answer", {"actor": "ann", "answer": 1})
        result = await run.result()

    assert result.state is RunState.COMPLETED, result.error
    assert asked(tmp_path) == 2


async def tries(run: Run) -> int:
    """Return how often an activity of a run was tried that has not ended."""
    pending = (await run.handle.describe()).raw_description.pending_activities
    return max((one.attempt for one in pending), default=0)
