"""RFC 8785: one value has one canonical form, and a value without an exact form is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehand.workflows.identity import (
    UNSAFE_INTEGER,
    NotCanonical,
    canonical_json,
    digest,
)
from tests.unit.values import json_values, same_json

#: RFC 8785 appendix B: numbers in the shortest form that ECMAScript gives them.
NUMBERS = [
    (0, "0"),
    (-0.0, "0"),
    (4.5, "4.5"),
    (4.50, "4.5"),
    (2e-3, "0.002"),
    (1e-27, "1e-27"),
    (1e21, "1e+21"),
    (1e30, "1e+30"),
    (1e20, "100000000000000000000"),
    (0.000001, "0.000001"),
    (0.0000001, "1e-7"),
    (333333333.33333329, "333333333.3333333"),
    (5e-324, "5e-324"),
    (-5e-324, "-5e-324"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (9007199254740992.0, "9007199254740992"),
    (-9007199254740992.0, "-9007199254740992"),
    (295147905179352830000.0, "295147905179352830000"),
    (9.999999999999997e22, "9.999999999999997e+22"),
    (1e23, "1e+23"),
    (999999999999999700000.0, "999999999999999700000"),
    (0.000001000000000000001, "0.000001000000000000001"),
    (1424953923781206.2, "1424953923781206.2"),
    (2**53 - 1, "9007199254740991"),
    (-(2**53) + 1, "-9007199254740991"),
    (1.0, "1"),
]

#: RFC 8785, 3.2.2.2: what is escaped, and how.
STRINGS = [
    ("\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/", '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'),
    ("\b\t\n\f\r", '"\\b\\t\\n\\f\\r"'),
    ("\x00\x1f\x7f", '"\\u0000\\u001f\x7f"'),
    ("\u2028\u2029", '"\u2028\u2029"'),
    ("\U0001f600", '"\U0001f600"'),
    ("A\u030a", '"A\u030a"'),
    ("\u00c5", '"\u00c5"'),
]


@pytest.mark.parametrize(("number", "form"), NUMBERS)
def test_a_number_has_its_shortest_form(number: float, form: str) -> None:
    assert canonical_json(number) == form.encode()


@pytest.mark.parametrize(("text", "form"), STRINGS)
def test_a_string_is_escaped_as_little_as_possible_and_never_normalised(
    text: str, form: str
) -> None:
    assert canonical_json(text) == form.encode()


def test_the_example_of_the_standard() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert (
        canonical_json(value)
        == (
            '{"literals":[null,true,false],'
            '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_keys_are_ordered_by_their_utf_16_code_units() -> None:
    # RFC 8785, 3.2.3: by UTF-16, the emoji (a surrogate pair) comes before the Hebrew letter.
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    keys = list(json.loads(canonical_json(value)))
    assert keys == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_nested_objects_are_ordered_too_and_lists_are_not() -> None:
    value = {"b": [{"z": 1, "a": [3, 1, 2]}, {}], "a": {"": None, "A": []}}
    assert canonical_json(value) == b'{"a":{"":null,"A":[]},"b":[{"a":[3,1,2],"z":1},{}]}'


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 + 1, 2**64, 10**30])
def test_an_integer_that_a_double_would_round_is_refused(number: int) -> None:
    for value in (number, [number], {"amount": {"cents": number}}):
        with pytest.raises(NotCanonical):
            canonical_json(value)
    assert canonical_json(str(number)) == f'"{number}"'.encode()


def test_the_first_refused_integer_is_named_by_the_constant() -> None:
    canonical_json(UNSAFE_INTEGER - 1)
    with pytest.raises(NotCanonical):
        canonical_json(UNSAFE_INTEGER)


def test_no_two_integers_share_a_form_where_a_canonicaliser_that_rounds_would_let_them() -> None:
    assert float(2**53) == float(2**53 + 1)
    assert digest(str(2**53)) != digest(str(2**53 + 1))


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "\ud800", {"\udfff": 1}, {1: 2}, object(), {1, 2}]
)
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(NotCanonical):
        canonical_json({"here": [value]})


def test_a_value_nested_too_deep_is_refused_and_does_not_end_the_process() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotCanonical):
        canonical_json(deep)


def _shuffled(value: Any, seed: int) -> Any:
    """Return the same value with every object's keys in another order."""
    source = random.Random(seed)
    if isinstance(value, dict):
        items = [(key, _shuffled(item, seed)) for key, item in value.items()]
        source.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [_shuffled(item, seed) for item in value]
    return value


@given(json_values, st.integers())
def test_the_order_of_keys_at_any_depth_never_changes_the_hash(value: Any, seed: int) -> None:
    assert digest(_shuffled(value, seed)) == digest(value)


@given(json_values)
def test_the_canonical_form_is_json_and_reads_back_as_the_same_value(value: Any) -> None:
    # As in ECMAScript, where every number is a double.
    read = json.loads(canonical_json(value), parse_int=float)
    assert same_json(read, value)
    assert canonical_json(read) == canonical_json(value)


@given(json_values)
def test_a_round_trip_through_any_json_text_does_not_change_the_hash(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert digest(json.loads(text)) == digest(value)


@given(json_values, json_values)
def test_two_values_have_one_hash_only_if_they_are_one_value(left: Any, right: Any) -> None:
    assert (digest(left) == digest(right)) == same_json(left, right)
