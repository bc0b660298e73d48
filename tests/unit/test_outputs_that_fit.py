"""Outputs of steps are shown and carried as far as there is room for them."""

from __future__ import annotations

from typing import Any

from surehand.workflows.contracts.runs import StepView, cut_to_fit, is_cut
from surehand.workflows.contracts.states import StepState


def step(id_: str, output: Any) -> StepView:
    return StepView(id=id_, tool="orders.read", state=StepState.SUCCEEDED, output=output)


def test_an_output_that_there_is_no_room_for_is_its_size_and_smaller_ones_behind_it_stay() -> None:
    views = [step("a", "12345678"), step("b", "12345678"), step("c", 1), step("d", None)]
    cut = cut_to_fit(views, 12)
    assert [one.output for one in cut] == ["12345678", {"too_large": {"bytes": 10}}, 1, None]
    assert [is_cut(one.output) for one in cut] == [False, True, False, False]
    assert views[1].output == "12345678"


def test_outputs_that_are_needed_stay_whole_and_take_no_room() -> None:
    views = [step("a", "1" * 100), step("b", "12345678")]
    assert cut_to_fit(views, 10, whole={"a"}) == views
