"""Comparing two worlds whose ids differ."""

from __future__ import annotations

import datetime

import pytest

from surehand.drill.judge import (
    list_differences,
    name_fresh_values,
    read_own_count,
    split_turns,
)
from surehand.drill.request import Context, Function
from surehand.process.exits import WrongUse


def context(run_id: str, **given: object) -> Context:
    return Context(run_id, given, "sqlite:///nowhere.db")


def test_a_runs_own_values_are_written_by_name_wherever_they_stand() -> None:
    snapshot = {"article-of-order-7f": ["order-7f", {"by": "drill-1"}, 7, "7f", None]}

    assert name_fresh_values(
        snapshot, context("drill-1"), {"order_id": "order-7f", "day": "7f"}
    ) == {"article-of-${input.order_id}": ["${input.order_id}", {"by": "${run_id}"}, 7, "7f", None]}


def test_of_two_values_the_longer_one_is_named() -> None:
    fresh = {"order": "order-7", "refund": "order-7-refund"}

    found = name_fresh_values(["order-7-refund", "order-7"], context("drill-1"), fresh)

    assert found == ["${input.refund}", "${input.order}"]


@pytest.mark.parametrize(
    ("expected", "found", "lines"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, []),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ["a[1].b: 3, expected 2"]),
        ({"a": [1]}, {"a": [1, 1]}, ["a: 2 items, expected 1: [1, 1]"]),
        ({"a": 1}, {"b": 1}, ["a: missing, expected 1", "b: 1, not expected"]),
        ({"a": 1}, {"a": "1"}, ['a: "1", expected 1']),
        ({"a": 1}, {"a": True}, ["a: true, expected 1"]),
        ({"a": None}, {"a": {}}, ["a: {}, expected null"]),
    ],
)
def test_every_difference_has_its_place(expected: object, found: object, lines: list[str]) -> None:
    assert list(list_differences(expected, found)) == lines


@pytest.mark.parametrize(
    ("snapshot", "counts"),
    [
        ({"effects": {"refunds": 1}, "left": 5}, {"refunds": 1}),
        ({"effects": {"refunds": "one"}}, None),
        ({"left": {}}, None),
        ([1, 2], None),
        (None, None),
    ],
)
def test_a_world_may_count_its_effects(snapshot: object, counts: dict[str, int] | None) -> None:
    assert read_own_count(snapshot) == counts


async def test_a_function_may_be_async_and_what_it_returns_becomes_json() -> None:
    async def later(context: Context) -> object:
        return {"of": (context.run_id, context.input["order"])}

    found = await Function.load("--world", later)(context("drill-1", order=5))

    assert found == {"of": ["drill-1", 5]}


@pytest.mark.parametrize("body", [lambda _: datetime.datetime.now(), lambda _: {}["order"]])
async def test_a_function_that_fails_or_returns_no_json_is_named(body: object) -> None:
    function = Function("own:world", body)  # type: ignore[arg-type]

    with pytest.raises(WrongUse, match="own:world failed for run drill-1"):
        await function(context("drill-1"))


@pytest.mark.parametrize(
    ("snapshot", "asked", "rest"),
    [
        ({"turns": 3, "left": 5}, 3, {"left": 5}),
        ({"turns": ["one"], "left": 5}, 0, {"turns": ["one"], "left": 5}),
        ({"turns": True}, 0, {"turns": True}),
        ([3], 0, [3]),
    ],
)
def test_model_turns_are_counted_only(snapshot: object, asked: int, rest: object) -> None:
    assert split_turns(snapshot) == (asked, rest)
