"""Runs that a model drives: each turn once, nothing it decides upon happens unasked or twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.runs import decision_on, step
from tests.e2e.stage import Stage
from workflows.contracts import RunState
from workflows.plan import Plan

MODEL: Final = {"tool_modules": "tests.variants.model"}
ALL: Final = "finish with all"


def driven(tmp_path: Path, *script: Any, model: str = "model.next") -> Plan:
    given = {"model": model, "count": str(tmp_path / "count"), "script": list(script)}
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
    assert "unknown tool 'no.such'" in told[1]["failed"]
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
