"""Params that hang on artifacts: filled in by the activity, and only where the plan says so."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from surehand.workflows.contracts.values import ARTIFACT, Artifact, as_artifact
from surehand.workflows.plan.references import ReferenceUnresolved, resolve
from surehand.workflows.steps.rules import fill_in, resolve_inline

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
