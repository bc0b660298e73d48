"""Hashes and keys: golden, because a changed one makes recorded approvals and entries strangers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from surehand.workflows import identity
from surehand.workflows.identity import (
    DEFAULT_TENANT,
    NotCanonical,
    approval_id,
    forward_key,
    has_lost_digits,
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
from tests.unit.values import ODD_TENANTS, json_objects, same_json, texts

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


def test_the_hash_of_nothing_is_that_of_an_empty_object() -> None:
    empty = '{"params":{},"tool":"t","version":"1"}'
    assert params_hash("t", "1", {}) == identity.digest({"tool": "t", "version": "1", "params": {}})
    assert identity.canonical_json({"tool": "t", "version": "1", "params": {}}) == empty.encode()


def test_an_approval_is_bound_to_tool_version_and_params_and_identity_not_to_the_version() -> None:
    base = params_hash("payments.refund", "1", PARAMS)
    assert params_hash("payments.charge", "1", PARAMS) != base
    assert params_hash("payments.refund", "2", PARAMS) != base
    assert params_hash("payments.refund", "1", {**PARAMS, "amount": "120.01"}) != base
    assert identity_hash("payments.refund", PARAMS) not in (base, "")
    assert identity_hash("payments.charge", PARAMS) != identity_hash("payments.refund", PARAMS)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"amount": 1}, {"amount": "1"}),
        ({"amount": 1}, {"amount": True}),
        ({"amount": None}, {}),
        ({"amount": 0.1 + 0.2}, {"amount": 0.3}),
        ({"a": {"b": 1}}, {"a.b": 1}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": "x", "b": ""}, {"a": "", "b": "x"}),
        ({"name": "\u00e9"}, {"name": "e\u0301"}),
    ],
)
def test_params_that_look_alike_have_different_hashes(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    assert params_hash("t", "1", left) != params_hash("t", "1", right)


@given(json_objects, json_objects)
def test_different_params_have_different_hashes(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
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
def test_a_provider_key_is_opaque_and_changes_with_everything_it_stands_for(
    change: dict[str, Any],
) -> None:
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
