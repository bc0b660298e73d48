from __future__ import annotations

import re

import pytest

from surehand.client.messages import (
    chosen_run_id,
    find_approval,
    find_run_id,
    new_run_name,
)
from surehand.process.exits import NotFound, WrongUse
from surehand.workflows.identity import MAX_RUN_ID_LENGTH


@pytest.mark.parametrize(
    ("tenant", "text", "run_id"),
    [
        ("default", "refund-1", "refund-1"),
        ("default", "default/refund-1", "refund-1"),
        ("acme", "refund-1", "acme/refund-1"),
        ("acme", "acme/refund-1", "acme/refund-1"),
        ("acme", "a.b:c_D-9", "acme/a.b:c_D-9"),
    ],
)
def test_a_run_is_found_by_its_name_or_its_full_id(tenant: str, text: str, run_id: str) -> None:
    assert find_run_id(tenant, text) == run_id


@pytest.mark.parametrize(
    ("tenant", "text"), [("default", "acme/r"), ("acme", "beta/r"), ("acme", "default/r")]
)
def test_another_tenants_run_is_not_found(tenant: str, text: str) -> None:
    with pytest.raises(NotFound, match=f"run not found: {text}"):
        find_run_id(tenant, text)


@pytest.mark.parametrize("text", ["", "a b", "/a", "a/", "a/b/c", "a'b", "ü", "x" * 121, "a\n"])
def test_what_cannot_be_a_run_id_is_wrong_use(text: str) -> None:
    with pytest.raises(WrongUse, match="run id"):
        find_run_id("acme", text)


@pytest.mark.parametrize("text", ["bad id!/x", "beta/r", "a b"])
def test_what_cannot_name_a_new_run_is_told_what_can(text: str) -> None:
    with pytest.raises(WrongUse, match=r"has 1 to 120 letters, digits, '_', '\.', ':' and '-'"):
        chosen_run_id("acme", text)


def test_the_longest_tenant_and_name_fit_into_a_run_id() -> None:
    assert len(find_run_id("t" * 39, "n" * 120)) == MAX_RUN_ID_LENGTH


@pytest.mark.parametrize(
    ("tenant", "text", "found"),
    [
        ("default", "r/step/1", ("r", "r/step/1")),
        ("acme", "r/step/2", ("acme/r", "acme/r/step/2")),
        ("acme", "acme/r/step/2", ("acme/r", "acme/r/step/2")),
    ],
)
def test_both_approval_ids_are_found(tenant: str, text: str, found: tuple[str, str]) -> None:
    assert find_approval(tenant, text) == found


def test_another_tenants_approval_is_not_found() -> None:
    with pytest.raises(NotFound):
        find_approval("default", "acme/r/step/1")


@pytest.mark.parametrize("text", ["", "r", "r/step", "r/step/x", "r/step/²", "//1"])
def test_what_cannot_be_an_approval_id_is_wrong_use(text: str) -> None:
    with pytest.raises(WrongUse, match="RUN/STEP/NUMBER"):
        find_approval("default", text)


def test_a_new_run_is_named_after_its_plan() -> None:
    assert re.fullmatch(r"refund-[0-9a-f]{8}", new_run_name("refund"))
    assert new_run_name("refund") != new_run_name("refund")
