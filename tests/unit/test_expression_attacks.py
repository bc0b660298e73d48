"""Guarantee G3: a call does not slip past the rule that is meant for it."""

from __future__ import annotations

import enum
import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from surehand.activities.expressions import (
    RuleBroken,
    condition_holds,
    condition_problem,
    holds,
    problem,
)


class Kind(enum.Enum):
    WIRE = "wire"


class Payment(BaseModel):
    amount: Decimal = Decimal("1000.10")
    rate: float = 0.1
    kind: Kind = Kind.WIRE
    account: uuid.UUID = uuid.UUID(int=7)
    due: date = date(2026, 1, 2)
    parts: list[Decimal] = [Decimal("0.10")]
    note: str | None = None


@pytest.mark.parametrize(
    "rule",
    [
        "amount >= 1000.10",
        "amount == 1000.1",
        "not amount > 1000.1",
        "amount * 1.5 > 1500",
        "rate == 0.1 and rate >= 0.1 and not rate > 0.1",
        "rate * 3 == 0.3",
        "kind == 'wire' and kind in ('wire', 'cash')",
        "account == '00000000-0000-0000-0000-000000000007'",
        "due >= '2026-01-02'",
        "parts[0] == 0.1",
        "note == None",
    ],
)
def test_a_param_at_a_rules_limit_does_not_slip_past_it(rule: str) -> None:
    assert problem(rule, Payment) is None
    assert holds(rule, Payment()) is True


@pytest.mark.parametrize("rule", ["note > 1", "amount > 'much'", "amount.__class__ == 1", "amount"])
def test_what_a_rule_cannot_tell_is_no_answer(rule: str) -> None:
    with pytest.raises(RuleBroken):
        holds(rule, Payment())


def test_a_model_that_fails_when_it_is_read_breaks_the_rule_and_nothing_else() -> None:
    class Broken(Payment):
        def model_dump(self, **_: Any) -> Any:
            raise ZeroDivisionError

    with pytest.raises(RuleBroken):
        holds("amount > 1", Broken())


def test_a_field_that_is_named_like_something_of_pythons_is_the_field() -> None:
    values = {"input": {"keys": 3, "items": ["a"], "real": 1}}
    assert condition_holds("input.keys == 3 and 'a' in input.items", values)
    for missing in ("input.values == 1", "input.keys.real == 3", "input.__class__ == 1"):
        with pytest.raises(RuleBroken, match="there is no"):
            condition_holds(missing, values)


@pytest.mark.parametrize(
    ("condition", "hints"),
    [("a = 'x'", True), ("a == 'x' and b=1", True), ("a <= ", False), ("a == 'b = c' +", False)],
)
def test_a_condition_that_assigns_is_told_how_to_compare(condition: str, hints: bool) -> None:
    assert ("compare with ==, not with =" in (condition_problem(condition) or "")) is hints
    assert condition_problem(condition) is not None


class Of(BaseModel):
    run: dict[str, bool] = {"foreign": False}
    amount: int = 1


@pytest.mark.parametrize("foreign", [True, False])
def test_what_a_rule_says_of_the_run_no_param_can_answer(foreign: bool) -> None:
    assert holds("run.foreign", Of(), foreign=foreign) is foreign
    assert holds("amount == 1 and not run.foreign", Of(), foreign=foreign) is not foreign


@pytest.mark.parametrize("rule", ["run", "run == 1", "run.user == 'uma'", "run['foreign']"])
def test_of_the_run_a_rule_can_name_nothing_else(rule: str) -> None:
    assert "of the run there is only run.foreign" in str(problem(rule, Of))
    with pytest.raises(RuleBroken):
        holds(rule, Of(), foreign=False)


def test_a_rule_that_is_about_no_run_cannot_name_it() -> None:
    assert problem("run.foreign", Payment, of=()) is not None
    with pytest.raises(RuleBroken):
        holds("run.foreign", Payment())


@pytest.mark.parametrize(
    "condition",
    [
        "1 < input.two < 3 and not 1 < input.two < 2 < input.nothing",
        "input.two == 2 or input.nothing",
        "not (input.none and input.nothing)",
        "(input.none or input.two) == 2 and (0 or '' or []) == []",
        "(input.two if input.yes else input.nothing) - 1 * 3 == -1",
        "'a' in input.parts and 'b' not in ('a', 'c')",
        "input['parts'][0] == 'a' and input.parts != ('a',) and input.parts == ['a']",
    ],
)
def test_a_condition_means_what_python_means_by_it(condition: str) -> None:
    values = {"input": {"two": 2, "none": None, "yes": True, "parts": ["a"]}}
    assert condition_holds(condition, values) is True


@pytest.mark.parametrize("condition", ["nobody == 1", "input.a and nobody", "(nobody, 1) == 1"])
def test_a_name_that_nothing_has_is_told(condition: str) -> None:
    with pytest.raises(RuleBroken, match="there is no 'nobody'"):
        condition_holds(condition, {"input": {"a": 1}})
