"""Lists of plans that make lists of plans: a run's room ends, and it unwinds and says why."""

from __future__ import annotations

from typing import Any, Final

from surehand.workflows.contracts.states import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import decision_on, step
from tests.e2e.stage import Stage

TOOLS: Final = "tests.variants.amounts"


def counting(many: int, **then: Any) -> list[dict[str, Any]]:
    """Steps that make a list at run time, and do something for each of it."""
    return [
        {"id": "all", "tool": "numbers.upto", "params": {"many": many}},
        {"id": "each", "for_each": "${all}", **then},
    ]


async def test_lists_inside_lists_end_where_the_run_has_no_room_left(
    stage: Stage, order_id: str
) -> None:
    refund = {"order_id": order_id, "amount": "120.00", "currency": "EUR"}
    leaf = {"tool": "numbers.upto", "params": {"many": 1}}
    inner = {"plan": {"steps": counting(900, **leaf)}}
    paid = {"id": "refund", "tool": "payments.refund", "params": refund}
    plan = Plan.model_validate({"steps": [paid, *counting(200, **inner)]})
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(plan)
        await run.decide(decision_on(await run.asks()))
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "100,000 steps with all runs inside it" in (result.error or "")
    assert "a list of 900 is too much" in (step(result, "each[0]").error or "")
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"]) == (1, 1)
    assert {view.child for view in result.steps if view.child} == {f"{run.run_id}~each[0]"}


async def test_a_list_that_is_too_long_for_its_plans_begins_none_of_them(stage: Stage) -> None:
    large = {"plan": {"steps": [{"ask": "?"}] * 120}}
    plan = Plan.model_validate({"steps": counting(900, **large)})
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(plan)
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "a list of 900 plans of 120 steps is too much" in (result.error or "")
    assert not any(view.child for view in result.steps)
    [refused] = await stage.events(run, "step.refused")
    assert refused["step_id"] == "each"
