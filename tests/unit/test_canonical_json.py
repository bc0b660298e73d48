"""Canonical forms, hashes and keys: a changed one makes recorded approvals strangers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from surehand.workflows.canonical_json import (
    NotCanonical,
    canonical_json,
    digest,
    has_lost_digits,
)
from surehand.workflows.identity import (
    DEFAULT_TENANT,
    approval_id,
    forward_key,
    identity_hash,
    params_hash,
    provider_key,
    run_id_for,
    run_of_approval,
    step_key,
    tenant_of_run,
    tenant_problem,
    undo_key,
)
from tests.unit.values import ODD_TENANTS, json_objects, json_values, same_json, texts

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
def test_a_string_is_escaped_little_and_never_normalised(text: str, form: str) -> None:
    assert canonical_json(text) == form.encode()


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


@given(json_values, json_values)
def test_two_values_have_one_hash_only_if_they_are_one_value(left: Any, right: Any) -> None:
    assert (digest(left) == digest(right)) == same_json(left, right)


PARAMS = {"order_id": "1001", "amount": "120.00", "lines": [{"sku": "a", "quantity": 2}]}


def test_golden_params_hash() -> None:
    assert params_hash("payments.refund", "1", PARAMS) == (
        "sha256:9864980f294f1f71f58c78cdb4738a4c717f7a2dd24cc8e4b39e51ef1d7826d5"
    )


def test_golden_identity_hash() -> None:
    assert identity_hash("payments.refund", PARAMS) == (
        "sha256:314285a28fd10410dbecdc601cb7cb460a109e51b72aeb78fe9c8e68a3b8f25e"
    )


def test_golden_provider_key() -> None:
    assert provider_key("acme", "payments.refund", "refund:order-1001", 1) == (
        "sh-eb57f02b2bd140d3fae9ab4959e4a8af7d7e6694bb64dc113aeca4c9eb8110d6"
    )


def test_golden_ids() -> None:
    assert approval_id("acme/refund-1", "refund", 2) == "acme/refund-1/refund/2"
    assert step_key("acme/refund-1", "refund") == "acme/refund-1:refund"


@given(json_objects, json_objects)
def test_other_params_have_other_hashes(left: dict[str, Any], right: dict[str, Any]) -> None:
    assume(not has_lost_digits([left, right]))
    same = same_json(left, right)
    assert (params_hash("t", "1", left) == params_hash("t", "1", right)) == same
    assert (identity_hash("t", left) == identity_hash("t", right)) == same


@given(texts, texts, texts, texts)
def test_tool_and_version_cannot_be_shifted_into_one_another(
    tool: str, version: str, other_tool: str, other_version: str
) -> None:
    assume((tool, version) != (other_tool, other_version))
    assert params_hash(tool, version, {}) != params_hash(other_tool, other_version, {})


@pytest.mark.parametrize(
    "change", [{"tenant": "other"}, {"tool": "t2"}, {"key": "k2"}, {"generation": 2}]
)
def test_a_provider_key_hides_and_holds_its_parts(change: dict[str, Any]) -> None:
    base = {"tenant": "acme", "tool": "payments.refund", "key": "order-1001", "generation": 1}
    key = provider_key(**base)  # type: ignore[arg-type]
    assert provider_key(**{**base, **change}) != key
    assert len(key) == 67
    assert not any(word in key for word in ("acme", "refund", "1001"))


def test_a_provider_key_does_not_run_its_parts_together() -> None:
    assert provider_key("a", "b:c", "d", 1) != provider_key("a", "b", "c:d", 1)


@given(st.text(alphabet="=undo:x", max_size=12), st.text(alphabet="=undo:x", max_size=12))
def test_a_forward_key_is_never_that_of_an_undo_and_no_two_become_one(one: str, two: str) -> None:
    assert not forward_key(f"undo:{one}").startswith(undo_key(""))
    assert not forward_key(one).startswith(undo_key(""))
    assert (forward_key(one) == forward_key(two)) is (one == two)


@pytest.mark.parametrize("key", ["refund:order-1001", "undone:1", "=1", "run-1:undo:x"])
def test_a_key_that_nothing_could_take_for_an_undo_stays_as_it_is(key: str) -> None:
    assert forward_key(key) == key


@pytest.mark.parametrize("run_id", ["refund-1", "acme/refund-1"])
def test_an_approval_id_tells_its_run_and_step(run_id: str) -> None:
    assert run_of_approval(approval_id(run_id, "refund", 12)) == (run_id, "refund")


@pytest.mark.parametrize("text", ["", "refund", "run/step", "run/step/", "run/step/x", "//1", "/1"])
def test_what_is_no_approval_id_tells_nothing(text: str) -> None:
    assert run_of_approval(text) is None


@given(texts)
def test_any_text_is_an_approval_id_or_none(text: str) -> None:
    found = run_of_approval(text)
    assert found is None or text.startswith("/".join(found) + "/")


def test_the_run_id_carries_the_tenant() -> None:
    assert run_id_for("acme", "refund-1") == "acme/refund-1"
    assert run_id_for(DEFAULT_TENANT, "refund-1") == "refund-1"
    assert tenant_of_run("acme/refund-1") == "acme"
    assert tenant_of_run("refund-1") == DEFAULT_TENANT


@pytest.mark.parametrize("tenant", ["default", "acme", "a", "A-1_b.c", "7", "_a", "t" * 39])
def test_a_plain_name_can_be_a_tenants(tenant: str) -> None:
    assert tenant_problem(tenant) is None
    assert tenant_of_run(run_id_for(tenant, "refund-1")) == tenant


@pytest.mark.parametrize("tenant", ODD_TENANTS, ids=ascii)
def test_a_name_that_means_something_in_a_path_or_a_query_is_no_tenants(tenant: str) -> None:
    assert tenant_problem(tenant) is not None


@pytest.mark.parametrize("number", [2.0**53, -(2.0**53), 9007199254740993.0, 1e20])
def test_a_number_that_may_be_another_one_by_now_has_no_hash(number: float) -> None:
    with pytest.raises(NotCanonical, match="2\\^53"):
        params_hash("t", "1", {"amounts": [{"cents": number}]})
    with pytest.raises(NotCanonical, match="2\\^53"):
        params_hash("t", "1", {}, [number])
    params_hash("t", "1", {"amount": 2.0**53 - 1, "text": str(number)})
