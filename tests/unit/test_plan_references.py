"""References: a value keeps its type, a text takes it as text, a missing one is named."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.references import (
    ReferenceUnresolved,
    literal,
    references,
    resolve,
    unclosed,
)
from tests.unit.values import json_values

FACTS: dict[str, Any] = {
    "input": {"order": "1001", "rate": 0.5, "empty": None},
    "order": {
        "lines": [{"sku": "a", "quantity": 2}, {"sku": "b", "quantity": 1}],
        "paid": True,
        "note": "${input.order}",
    },
    "total": 120,
    "step-1": {"my_field": "x"},
}


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("${input.order}", "1001"),
        ("${input.rate}", 0.5),
        ("${input.empty}", None),
        ("${order.paid}", True),
        ("${order.lines.1.sku}", "b"),
        ("${order.lines}", FACTS["order"]["lines"]),
        ("${total}", 120),
        ("${ total }", 120),
        ("${step-1.my_field}", "x"),
    ],
)
def test_a_whole_reference_takes_the_values_type(written: str, becomes: Any) -> None:
    assert resolve(written, FACTS) == becomes
    assert type(resolve(written, FACTS)) is type(becomes)


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("order ${input.order}", "order 1001"),
        ("${input.order}/${total}", "1001/120"),
        ("${order.paid} ${input.empty} ${input.rate}", "true null 0.5"),
        ("line ${order.lines.0}", 'line {"sku": "a", "quantity": 2}'),
        (" ${total}", " 120"),
        ("costs $5, {total} and $ {total}", "costs $5, {total} and $ {total}"),
        ("$${total} is ${total}", "${total} is 120"),
        ("$${total}", "${total}"),
        ("$$${total}", "$${total}"),
        ("${total", "${total"),
        ("a\0b", "a\0b"),
        ("a\0b ${total}", "a\0b 120"),
    ],
)
def test_inside_a_longer_string_a_value_is_written_as_text(written: str, becomes: str) -> None:
    assert resolve(written, FACTS) == becomes


def test_references_are_found_at_any_depth_and_keys_are_left_alone() -> None:
    written = {"${total}": [{"deep": "${total}"}, "${order.paid}", 7, None]}

    assert resolve(written, FACTS) == {"${total}": [{"deep": 120}, True, 7, None]}


def test_what_a_step_returned_is_never_read_as_a_reference_again() -> None:
    assert resolve("${order.note}", FACTS) == "${input.order}"
    assert resolve("note: ${order.note}", FACTS) == "note: ${input.order}"


@pytest.mark.parametrize(
    ("written", "missing"),
    [
        ("${order.total}", "'total'"),
        ("${nobody.x}", "'nobody'"),
        ("${order.lines.2}", "'2'"),
        ("${order.lines.-1}", "'-1'"),
        ("${order.lines.first}", "'first'"),
        ("${total.x}", "'x'"),
        ("${input.order.0}", "'0'"),
        ("${input.empty.x}", "'x'"),
    ],
)
def test_a_field_that_is_not_there_is_named(written: str, missing: str) -> None:
    for text in (written, f"text {written}"):
        with pytest.raises(ReferenceUnresolved) as error:
            resolve(text, FACTS)
        assert written in str(error.value)
        assert missing in str(error.value)


@given(json_values)
def test_a_value_without_references_is_left_as_it_is(value: Any) -> None:
    assume("${" not in repr(value))
    assert resolve(value, FACTS) == value


@given(json_values)
def test_any_value_of_an_earlier_step_arrives_unchanged(value: Any) -> None:
    assert resolve({"x": "${step.value}"}, {"step": {"value": value}}) == {"x": value}


@given(st.lists(st.sampled_from(["$", "${", "$${", "a", ".", "}", "{", " "]), max_size=8))
def test_what_a_plan_takes_for_a_reference_is_what_is_looked_up(parts: list[str]) -> None:
    written = "".join(parts)
    assume(not list(unclosed(written)))
    step = {"id": "a", "tool": "t", "params": {"x": written}, "after": []}
    try:
        Plan.model_validate([{"id": "b", "tool": "t"}, step])
    except ValidationError:
        with pytest.raises(ReferenceUnresolved):
            resolve(written, {})
    else:
        resolve(written, {})


@given(st.text(max_size=20))
def test_a_literal_is_written_with_a_second_dollar(text: str) -> None:
    assume(not text.endswith("$"))
    assert resolve(f"{text.replace('${', '')}$${{total}}", FACTS).endswith("${total}")


@given(st.lists(st.sampled_from(["$", "${", "$${", "${total}", "a", "}", "{"]), max_size=8))
def test_what_is_written_as_a_literal_is_read_as_what_it_was(parts: list[str]) -> None:
    value = {"x": ["".join(parts), 1]}
    assert resolve(literal(value), FACTS) == value


@pytest.mark.parametrize(
    "text",
    [
        "${" + " " * 200_000,
        "${" + "a " * 100_000,
        "${" + "a" * 100_000 + " " * 100_000,
        "${" * 9000,
    ],
    ids=["blanks", "words", "a word and blanks", "beginnings"],
)
def test_a_reference_without_an_end_is_looked_at_once(text: str) -> None:
    """Whoever writes a plan writes its texts, and each run looks through them again."""
    began = time.thread_time()

    assert list(references({"text": text})) == []
    assert list(unclosed({"text": text})) == [".text"]
    assert resolve(text, FACTS) == text
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("place", ["9" * 5000, "0" * 5000, "-1", "2"])
def test_a_position_that_no_list_has_is_a_missing_field(place: str) -> None:
    with pytest.raises(ReferenceUnresolved, match="there is no"):
        resolve(f"${{order.lines.{place}}}", FACTS)


def test_a_text_that_references_would_blow_up_is_refused() -> None:
    facts = {"page": {"text": "x" * 100_000}}

    assert len(resolve("${page.text}, " * 50, facts)) > 5_000_000
    with pytest.raises(ReferenceUnresolved, match="too large"):
        resolve("${page.text}, " * 100_000, facts)
