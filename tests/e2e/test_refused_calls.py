"""A call that is refused before it begins is told, with its reason, in every kind of run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.model_scripts import ALL, MODEL, call, driven, said
from tests.e2e.runs import Run, states, step
from tests.e2e.stage import Stage

AMOUNTS: Final = {"tool_modules": "tests.variants.amounts"}
CODE: Final = {**AMOUNTS, "workflow_modules": "tests.e2e.code"}
PAYMENT: Final = {"amount": 5, "when": "2026-12-31", "to": {"iban": "x"}, "parts": [1, 2]}
PRICE: Final = "5 2026-12-31 Transfer [1, 2]"


async def told(stage: Stage, run: Run, result: RunResult, step_id: str, reason: str) -> None:
    """Assert that a refused step says why: in its view, and as one event."""
    events = [one for one in await stage.events(run, "step.refused") if one["step_id"] == step_id]
    assert reason in (step(result, step_id).error or "")
    assert [reason in one["body"]["reason"] for one in events] == [True]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_step_of_a_plan_that_is_refused_is_an_event_with_its_reason(
    stage: Stage, durability: str
) -> None:
    steps: list[dict[str, Any]] = [
        {"id": "price", "tool": "payments.price", "params": PAYMENT},
        {"id": "nowhere", "tool": "payments.price", "params": {**PAYMENT, "amount": "${price.no}"}},
        {"id": "unfit", "tool": "payments.price", "params": {**PAYMENT, "amount": "${price}"}},
        {"id": "odd", "tool": "payments.price", "params": PAYMENT, "when": "price"},
        {"id": "each", "tool": "payments.price", "params": PAYMENT, "for_each": "${price}"},
        {"id": "ask", "ask": "Is it ${price.no}?"},
        {"id": "wait", "wait": {"event": "paid", "about": "${price.no}"}},
    ]
    plan = Plan.model_validate({"steps": steps, "defaults": {"on_failure": "continue"}})
    async with stage.worker_here(**AMOUNTS):
        run = await stage.start(plan, durability=durability)
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert step(result, "price").output == PRICE
    for step_id, reason in (
        ("nowhere", "there is no 'no'"),
        ("unfit", "amount"),
        ("odd", "neither true nor false"),
        ("each", "is no list"),
        ("ask", "there is no 'no'"),
        ("wait", "there is no 'no'"),
    ):
        await told(stage, run, result, step_id, reason)
    assert len(await stage.events(run, "step.refused")) == 6


async def test_a_model_may_give_a_param_of_several_types_and_is_told_what_is_refused(
    stage: Stage, tmp_path: Path
) -> None:
    script = [
        call("payments.price", **PAYMENT),
        call("payments.price", **{**PAYMENT, "to": {}}),
        call("payments.price", amount=5),
        call("payments.price", **PAYMENT, colour="red"),
        ALL,
    ]
    async with stage.worker_here(**AMOUNTS, **MODEL):
        run = await stage.start(driven(tmp_path, *script))
        result = await run.result()

    price, no_iban, no_date, _ = said(result)
    assert price == PRICE
    assert "iban" in no_iban["failed"]
    assert "when" in no_date["failed"]
    await told(stage, run, result, "turn-2.1", "iban")
    await told(stage, run, result, "turn-3.1", "when")


async def test_code_is_raised_what_is_refused_and_its_run_tells_it(stage: Stage) -> None:
    wanted: list[Any] = [
        ["payments.price", PAYMENT],
        ["payments.price", {**PAYMENT, "amount": "dear"}],
        ["payments.dance", {}],
        ["payments.dance", {}],
    ]
    plan = Plan.model_validate({"code": "Trying", "input": {"calls": wanted}})
    async with stage.worker_here(**CODE):
        run = await stage.start(plan)
        result = await run.result()

    assert result.state is RunState.COMPLETED
    said: Any = result.output
    assert said[0] == PRICE
    assert states(result) == {
        "price": "succeeded",
        "price-2": "failed",
        "dance": "skipped",
        "dance-2": "skipped",
    }
    for raised, step_id, reason in (
        (said[1], "price-2", "amount"),
        (said[2], "dance", "unknown tool 'payments.dance'"),
        (said[3], "dance-2", "unknown tool 'payments.dance'"),
    ):
        assert reason in raised["failed"]
        await told(stage, run, result, step_id, reason)


async def test_a_first_call_that_is_refused_for_its_params_is_skipped_and_told(
    stage: Stage,
) -> None:
    wanted = [["payments.price", {"amount": 1}], ["payments.price", PAYMENT]]
    plan = Plan.model_validate({"code": "Trying", "input": {"calls": wanted}})
    async with stage.worker_here(**CODE):
        run = await stage.start(plan)
        result = await run.result()

    said: Any = result.output
    assert said[1] == PRICE
    assert "params.when: is missing" in said[0]["failed"]
    await told(stage, run, result, "price", "params.when: is missing")
