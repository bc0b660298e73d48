"""What is sent to steer a run is refused in one line, and stops nothing that comes after it."""

from __future__ import annotations

import time
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.tools.describing import describe_plan
from surehand.activities.tools.toolbox import Toolbox
from surehand.process.json_schemas import problems, schema_problem
from surehand.workflows.contracts.runs import Amend, TopUp
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    InterruptKind,
    accept_replace_reject,
)
from surehand.workflows.deliveries import LARGEST, LARGEST_PLAN, Malformed, parse
from surehand.workflows.plan.plan import Plan


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"required": ["a"], "$ref": "#/required/x"}, {"$ref": "http://[bad"}]
)
def test_a_schema_that_cannot_be_evaluated_is_refused_and_raises_nothing(
    schema: dict[str, Any],
) -> None:
    assert schema_problem(schema) is not None
    assert problems(schema, 1)


def test_an_answer_that_is_no_boolean_is_told_what_one_is() -> None:
    assert problems({"type": "boolean"}, "yes") == ["must be true or false, not 'yes'"]


def test_an_answer_that_is_none_of_several_is_told_what_each_of_them_wants() -> None:
    [why] = problems(accept_replace_reject(InterruptKind.AFTER), "no")

    assert "['accept', 'reject']" in why
    assert "'object'" in why


#: Python's own ``re`` would be at it until long after the run.
ENDLESS = "^(a+)+$"
AT_IT = "a" * 200 + "!"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"pattern": ENDLESS}, AT_IT),
        ({"patternProperties": {ENDLESS: {}}, "additionalProperties": False}, {AT_IT: 1}),
        ({"patternProperties": {".": {"items": {"pattern": ENDLESS}}}}, {"x": [AT_IT]}),
    ],
    ids=["pattern", "patternProperties", "inside"],
)
def test_a_pattern_takes_time_in_proportion_to_the_answer(
    schema: dict[str, Any], answer: Any
) -> None:
    assert schema_problem(schema) is None
    assert problems(schema, answer)


_TWICE = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}


@pytest.mark.parametrize(
    ("schema", "answer", "why"),
    [
        ({"pattern": "(?=a)b"}, "b", "RE2 does not take"),
        ({"patternProperties": {r"(a)\1": {}}}, {"aa": 1}, "RE2 does not take"),
        ({"patternProperties": {ENDLESS: {}}, "unevaluatedProperties": False}, {}, "take one"),
        ({"items": {"$schema": DRAFT_7, "pattern": ENDLESS}}, [AT_IT], "another $schema"),
        ({"$defs": {**_TWICE, "d60": {}}, "$ref": "#/$defs/d0"}, 1, "too long"),
    ],
    ids=["lookahead", "back reference", "unevaluated", "another draft", "references that multiply"],
)
def test_a_schema_whose_time_has_no_bound_is_refused(
    schema: dict[str, Any], answer: Any, why: str
) -> None:
    assert why in (schema_problem(schema) or "")
    assert why in problems(schema, answer)[0]


def cost_of(schema: dict[str, Any], answer: Any) -> tuple[list[str], int, float]:
    """Return what is told of an answer, bytes at their peak, and seconds of the processor."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        told = problems(schema, answer)
        return told, tracemalloc.get_traced_memory()[1], time.thread_time() - began
    finally:
        tracemalloc.stop()


def test_items_that_must_differ_take_time_in_proportion_to_the_answer() -> None:
    """What cannot be sorted, the library compares each with each: minutes, for one answer."""
    answer = [item for n in range(10_000) for item in (n, f"a{n}", {"n": n})]

    told, _, seconds = cost_of({"uniqueItems": True}, answer)
    assert told == []
    assert seconds < 20
    assert len(problems({"uniqueItems": True}, [*answer, {"n": 7}])) == 1


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        ([1, 1.0], True),
        ([{"a": 1, "b": [2.0]}, {"b": [2], "a": 1}], True),
        ([[], []], True),
        ([1, True, 0, False, "1", "true", None, "null", [1], ["1"], {"a": 1}], False),
        ([0.1, 0.10000000000000002, 10**30, 10**30 + 1], False),
    ],
)
def test_items_are_the_same_as_json_schema_has_it(answer: list[Any], same: bool) -> None:
    assert bool(problems({"uniqueItems": True}, answer)) is same


def test_a_choice_of_many_keeps_no_copy_of_the_answer_for_each_of_them() -> None:
    schema = {"anyOf": [{"minLength": 1_000_000 + n} for n in range(300)]}
    told, peak, _ = cost_of(schema, "x" * 250_000)

    assert len(told) == 1
    assert peak < 8 * 1024 * 1024


def test_names_that_no_pattern_takes_are_additional_ones() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"id": {}, "inner": {"$ref": "#"}},
        "patternProperties": {"^x-": {"type": "string"}},
        "additionalProperties": {"type": "integer"},
    }

    assert problems(schema, {"id": None, "x-a": "text", "more": 1, "inner": {"x-b": ""}}) == []
    assert problems(schema, {"x-a": 1, "more": "text", "inner": {"more": 0.5}}) == [
        "inner.more: 0.5 is not of type 'integer'",
        "x-a: 1 is not of type 'string'",
        "more: 'text' is not of type 'integer'",
    ]


@pytest.mark.parametrize("more", [{"time": timedelta.max}, {"tokens": 10**400}, {"steps": 10**400}])
def test_more_budget_is_refused_that_cannot_be_added_up(more: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parse(TopUp, {"actor": "ana", **more})


@pytest.mark.parametrize("answer", [float("nan"), [float("inf")]])
def test_a_number_that_json_does_not_have_is_refused(answer: Any) -> None:
    with pytest.raises(Malformed, match="JSON does not have"):
        parse(AnswerInterrupts, {"actor": "ana", "answer": answer})


def test_the_same_in_an_amended_plan_is_refused() -> None:
    plan = [{"tool": "a.b", "params": {"n": float("nan")}}]
    with pytest.raises(Malformed, match="JSON does not have"):
        parse(Amend, {"actor": "ana", "plan": plan, "based_on": 1})


def test_an_amended_plan_without_a_digest_is_refused_and_not_tried_for_ever() -> None:
    plan = Plan.model_validate([{"tool": "a.b", "params": {"n": 2**60}}])

    assert [problem.where for problem in describe_plan(Toolbox([]), plan).problems] == ["plan"]


@pytest.mark.parametrize("number", [2**53, 9007199254740993.0, -1e20])
def test_an_answer_that_may_be_another_number_by_now_is_malformed(number: float) -> None:
    with pytest.raises(Malformed, match="2\\^53"):
        parse(AnswerInterrupts, {"actor": "ana", "answers": {"ask.1": [{"n": number}]}})


@pytest.mark.parametrize(
    "plan",
    [
        {"steps": [{"tool": "a.b", "params": {"n": 9007199254740993.0}}]},
        {"input": {"n": [1e20]}, "steps": [{"ask": "?"}]},
        {"steps": [{"plan": {"input": {"n": 1e20}, "steps": [{"ask": "?"}]}}]},
    ],
)
def test_a_plan_with_a_number_that_may_be_another_one_by_now_is_refused(plan: Any) -> None:
    [problem] = describe_plan(Toolbox([]), Plan.model_validate(plan)).problems

    assert "2^53" in problem.reason


def test_what_nobody_would_read_is_refused_before_it_is_kept() -> None:
    with pytest.raises(Malformed, match="too large"):
        parse(AnswerInterrupts, {"actor": "ana", "answer": "x" * LARGEST})


def test_a_plan_may_be_larger_than_other_things_that_are_sent() -> None:
    plan = [{"tool": "a.b", "params": {"text": "x" * LARGEST}}]

    amend = parse(Amend, {"actor": "ana", "plan": plan, "based_on": 1}, LARGEST_PLAN)

    assert len(amend.plan.steps) == 1
    with pytest.raises(Malformed, match="too large"):
        parse(Amend, {"actor": "ana", "plan": plan * 4, "based_on": 1}, LARGEST_PLAN)


@pytest.mark.parametrize("time", ["999999999d", "-P1D"])
@pytest.mark.parametrize(
    "step", [{"ask": {"question": "?"}}, {"wait": {"event": "paid"}}], ids=["ask", "wait"]
)
def test_a_time_that_no_clock_reaches_is_no_plan(step: dict[str, Any], time: str) -> None:
    [(kind, asked)] = step.items()
    with pytest.raises(ValueError, match="expires_in"):
        Plan.model_validate([{kind: {**asked, "expires_in": time}}])


def test_answers_for_others_answer_nothing_inside_a_child() -> None:
    sent = AnswerInterrupts(actor="ana", answers={"pay/x.1": 1, "own.1": 2}, answer="other")

    assert sent.inside("pay").answers == {"x.1": 1}
    assert (sent.inside("ship").answers, sent.inside("ship").answer) == ({}, None)
