"""Runs of code, and of a model, that continue as new: what was done stays done, and only once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from surehand.workflows.contracts.states import RunState
from tests.e2e.executions import executions
from tests.e2e.model_scripts import ALL, MODEL, asked, call, driven, refund, said
from tests.e2e.runs import decision_on, step
from tests.e2e.stage import Stage
from tests.e2e.test_code_first import code

CODE: Final = "tests.e2e.code"


@pytest.fixture
def orders(stage: Stage) -> list[str]:
    return [stage.shop.new_order() for _ in range(3)]


async def test_code_takes_its_state_along_and_no_step_gets_the_id_of_an_earlier_one(
    stage: Stage, orders: list[str]
) -> None:
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


async def test_what_earlier_executions_of_code_did_is_undone_when_it_gives_up(
    stage: Stage, orders: list[str]
) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("Lasting", orders=orders[:2], gives_up=True))
        for name in ("refund", "refund-2"):
            await run.decide(decision_on(await run.asks(name)))
        result = await run.result()

    assert (result.state, result.error) == (RunState.FAILED, "enough")
    for order in orders[:2]:
        counts = stage.shop.counts(order)
        assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)


async def test_an_id_that_a_step_had_in_an_earlier_execution_is_refused(
    stage: Stage, orders: list[str]
) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("Lasting", orders=orders[:2], again=True))
        for name in ("refund", "refund-2"):
            await run.decide(decision_on(await run.asks(name)))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "step id 'same': a step of this run has it" in (result.error or "")


async def test_code_cannot_continue_as_new_over_a_step_that_is_under_way(stage: Stage) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("Lasting", orders=["busy"]))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "a step is under way" in (result.error or "")


async def test_a_step_that_is_begun_while_code_continues_as_new_is_not_left_behind(
    stage: Stage, order_id: str
) -> None:
    async with stage.worker_here(workflow_modules=CODE):
        run = await stage.start(code("Hasty", order_id=order_id))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "a step was begun meanwhile" in (result.error or "")


async def test_a_model_drives_over_many_executions_and_is_asked_each_turn_once(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
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
