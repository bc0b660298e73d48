"""Which step still to come takes something from a call that nobody has a receipt of."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.client.run import missed_without_receipt
from surehand.workflows.contracts.runs import RunResult, RunView, StepView
from surehand.workflows.contracts.states import RunState, StepState, Waiting
from surehand.workflows.plan.plan import Plan


def view(later: dict[str, Any], *, of_step: str = "refund", cut: bool = False) -> RunView:
    plan = Plan.model_validate({"steps": [{"id": "refund", "tool": "t"}, {"id": "later", **later}]})
    doubt = Waiting(kind="intervention", id="iv-1", step_id=of_step, question="Did it?")
    steps = [StepView(id="refund", tool="t", state=StepState.NEEDS_INTERVENTION)]
    steps += [] if cut else [StepView(id="later", tool="t", state=StepState.PENDING)]
    result = RunResult(
        run_id="r", state=RunState.NEEDS_INTERVENTION, steps=steps, waiting_for=[doubt]
    )
    return RunView.model_construct(result=result, plan=plan)


@pytest.mark.parametrize(
    "later",
    [
        {"tool": "t", "params": {"x": "${refund.id}"}},
        {"ask": "Was it ${refund.id}?"},
        {"wait": {"event": "e", "about": "${refund.id}"}},
        {"tool": "t", "for_each": "${refund.lines}", "params": {"x": "${item}"}},
        {"tool": "t", "fallback": {"tool": "u", "params": {"x": "${refund.id}"}}},
        {"tool": "t", "when": "refund.amount > 5"},
    ],
    ids=lambda later: "+".join(later),
)
def test_each_way_to_take_something_from_an_output_asks_for_the_receipt(
    later: dict[str, Any],
) -> None:
    missed = missed_without_receipt(view(later), "iv-1")

    assert missed is not None
    assert (missed[0], missed[1].partition(".")[0]) == ("later", "refund")


def test_a_doubt_of_a_child_run_needs_no_step_of_that_name_here() -> None:
    later = {"tool": "t", "params": {"x": "${refund.id}"}}

    assert missed_without_receipt(view(later, of_step="ship/refund"), "iv-1") is None


def test_a_step_that_the_view_has_no_room_for_asks_for_nothing() -> None:
    later = {"tool": "t", "params": {"x": "${refund.id}"}}

    assert missed_without_receipt(view(later, cut=True), "iv-1") is None
