"""With which params a step is called, late or again, and what of its output is carried on."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from surehand.client.run import missed_without_receipt
from surehand.workflows.contracts.base import (
    ARTIFACT,
    Artifact,
    RunState,
    StepState,
    Waiting,
    as_artifact,
)
from surehand.workflows.contracts.runs import (
    RunResult,
    RunView,
    StartRun,
    StepView,
    cut_to_fit,
    is_cut,
)
from surehand.workflows.contracts.steering import ResumeRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.references import ReferenceUnresolved, resolve
from surehand.workflows.run.run_data import RunData
from surehand.workflows.run.run_records import StepFailed
from surehand.workflows.run.step_rules import fill_in, resolve_inline
from surehand.workflows.run.step_scheduler import Scheduler

KEPT = Artifact(sha256="a" * 64, uri="t/sha256/aa/" + "a" * 64, bytes=9000)
CONTENT = {"lines": [{"sku": "a-1"}, {"sku": "b-2"}], "text": "${order.id} and $${x}"}
FACTS: dict[str, Any] = {
    "input": {"name": "Ada"},
    "order": {"id": "order-1"},
    "report": KEPT.reference(),
}


@pytest.mark.parametrize(
    "params",
    [
        {"sku": "${report.lines.1.sku}"},
        {"body": "Dear ${input.name}, ${order.id}: ${report.lines.0.sku} $${literal}"},
        {"all": "${report}"},
        {"deep": [{"x": ["${report.text}"]}, "${order.id}"], "plain": 7},
        {"several": ["${report.lines}", "${report.text}"]},
    ],
)
def test_filled_in_late_they_are_what_they_would_have_been_inline(params: dict[str, Any]) -> None:
    inline, late = resolve_inline(params, FACTS)
    filled = copy.deepcopy(inline)

    fill_in(filled, late, {"report": CONTENT})

    assert filled == resolve(params, {**FACTS, "report": CONTENT})
    assert CONTENT["text"] not in str(inline)


def test_what_an_artifact_says_is_never_read_as_a_reference() -> None:
    inline, late = resolve_inline({"body": "${report.text}"}, FACTS)

    fill_in(inline, late, {"report": CONTENT})

    assert inline == {"body": "${order.id} and $${x}"}


def test_params_without_artifacts_travel_resolved() -> None:
    assert resolve_inline({"id": "${order.id}"}, FACTS) == ({"id": "order-1"}, [])


def test_the_plans_input_refers_to_no_artifact_whatever_it_looks_like() -> None:
    facts = {"input": {ARTIFACT: KEPT.model_dump(mode="json")}}

    assert resolve_inline({"x": "${input}"}, facts) == ({"x": facts["input"]}, [])


def test_a_field_that_an_artifact_does_not_have_is_named() -> None:
    inline, late = resolve_inline({"x": "${report.nothing}"}, FACTS)

    with pytest.raises(ReferenceUnresolved, match=r"report\.nothing"):
        fill_in(inline, late, {"report": CONTENT})


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        {},
        {ARTIFACT: "x"},
        {ARTIFACT: {"sha256": "../../etc", "uri": "u", "bytes": 1}},
        {ARTIFACT: KEPT.model_dump(mode="json"), "more": 1},
    ],
)
def test_only_a_whole_reference_is_one(value: Any) -> None:
    assert as_artifact(value) is None
    assert as_artifact(KEPT.reference()) == KEPT


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
def test_each_use_of_an_output_asks_for_the_receipt(later: dict[str, Any]) -> None:
    missed = missed_without_receipt(view(later), "iv-1")

    assert missed is not None
    assert (missed[0], missed[1].partition(".")[0]) == ("later", "refund")


def test_a_doubt_of_a_child_run_needs_no_step_of_that_name_here() -> None:
    later = {"tool": "t", "params": {"x": "${refund.id}"}}

    assert missed_without_receipt(view(later, of_step="ship/refund"), "iv-1") is None


def test_a_step_that_the_view_has_no_room_for_asks_for_nothing() -> None:
    later = {"tool": "t", "params": {"x": "${refund.id}"}}

    assert missed_without_receipt(view(later, cut=True), "iv-1") is None


PLANS: Final = {"amount": "120"}
EDITED: Final = {"amount": "15"}
LATER: Final = {"amount": "20"}


def tried_again(*failures: tuple[dict[str, Any] | None, bool]) -> dict[str, Any]:
    """Return the params after failures, each with the edit before it, and whether in doubt."""
    plan = Plan.model_validate([{"id": "pay", "tool": "a.b", "params": PLANS}])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    scheduler = Scheduler.__new__(Scheduler)
    scheduler._data = RunData.new(request, "first", datetime.now(UTC))
    step = plan.steps[0]
    for edited, unsettled in failures:
        if edited is not None:
            scheduler._data.of_step("pay").edited = edited
        failed = StepFailed("no answer", unsettled=unsettled)
        step = scheduler._step_to_retry(step, ResumeRun(actor="olga"), failed)
    return step.params


@pytest.mark.parametrize("unsettled", [False, True])
def test_a_retried_call_keeps_its_edit_even_in_doubt(unsettled: bool) -> None:
    assert tried_again((None, unsettled)) == PLANS
    assert tried_again((EDITED, unsettled), (None, unsettled)) == EDITED


def test_an_edit_of_the_call_that_is_to_settle_another_one_does_not_last() -> None:
    assert tried_again((None, True), (EDITED, True)) == PLANS
    assert tried_again((EDITED, True), (LATER, True), (None, True)) == EDITED


def test_an_edit_counts_again_once_the_first_call_is_known_not_to_have_happened() -> None:
    assert tried_again((None, True), (EDITED, False)) == EDITED


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
