"""An expression that somebody writes slips past no rule, and costs little memory and time."""

from __future__ import annotations

import decimal
import enum
import time
import tracemalloc
import uuid
from datetime import date
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from surehand.activities import expressions
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


#: Bytes: what an expression is evaluated with is a tenth of it.
MOST_BYTES: Final = 8 * 1024 * 1024
LARGE: Final[dict[str, Any]] = {
    "text": "a" * 100_000 + "b",
    "list": [0.5] * 5_000,
    "deep": None,
    "many": {str(number): number for number in range(2_000)},
    "huge": 10**4_000,
    "tiny": 1e-300,
}
for _ in range(50):
    LARGE["deep"] = [LARGE["deep"]]
BOMBS: Final = (
    "'a' * 600000000 == input.text",
    "[0] * 80000000 == input.list",
    "[0] * 10 * 10 * 10 * 10 * 10 * 10 * 10 * 10 * 10 == 0",
    "f'{1:>500000000}' == input.text",
    "f'{input}' == ''",
    "'%500000000d' % 1 == ''",
    "'{:>500000000}'.format(1) == ''",
    "','.join(input.list) == ''",
    "9 ** 9 ** 9 == 0",
    "1 << 999999999 == 0",
    "[x for x in input.list for y in input.list] == 0",
    "{x: 1 for x in input.list} == 0",
    "[input.text[0:] for x in input.list] == 0",
    "input.text + input.text == ''",
    "input.list + input.list == ''",
    "-input.text == ''",
    "9" * 480 + " > 1",
    "*".join(["99999999999999999999"] * 20) + " > 1",
    "1e999 > 1",
    "input.huge * input.huge > 1",
    "lambda: 1",
    "(x := 1) == 1",
    "list == list",
    "-" * 499 + "1",
    "(" * 150 + "1" + ")" * 150,
    "b'a' == 1",
    "1j == 1",
    "... == 1",
    "input.deep.deep.deep == 1",
    "input.many",
    "input.text",
    "\x00",
)


def cost_of(expression: str) -> tuple[int, float]:
    """Return what an evaluation takes: bytes at its peak, and seconds of the processor."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        assert condition_holds(expression, {"input": LARGE}) in (True, False)
    except RuleBroken as error:
        assert len(str(error)) < 2_000
    finally:
        peak, seconds = tracemalloc.get_traced_memory()[1], time.thread_time() - began
        tracemalloc.stop()
    return peak, seconds


@pytest.mark.parametrize("expression", BOMBS)
def test_an_expression_that_would_grow_is_refused_before_it_does(expression: str) -> None:
    peak, _ = cost_of(expression)

    assert peak < MOST_BYTES
    with pytest.raises(RuleBroken):
        condition_holds(expression, {"input": LARGE})


@pytest.mark.parametrize("expression", BOMBS[:16])
def test_growing_texts_are_refused_at_the_check_or_the_run(expression: str) -> None:
    class Params(BaseModel):
        input: dict[str, Any]

    refused = condition_problem(expression)
    assert refused is None or problem(expression, Params) == refused
    with pytest.raises(RuleBroken):
        holds(expression, Params(input={"text": "a", "list": [1, 2]}))


_LEAVES: Final = (
    *(f"input.{name}" for name in LARGE),
    *("input", "input.list[0]", "input.many['7']", "nobody", "1", "0.1", "'a'", "True", "None"),
    *("99999999999", "1e300", "600000000", "''", "[]"),
)
_OPERATORS: Final = (
    *("+", "-", "*", "**", "/", "//", "%", "<<", ">>", "|", "&", "^", "@", "==", "!=", "<", "<="),
    *(">", ">=", "in", "not in", "is", "is not", "and", "or"),
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    both = st.tuples(inner, st.sampled_from(_OPERATORS), inner)
    many = st.lists(inner, max_size=4)
    return st.one_of(
        both.map(lambda found: f"({found[0]} {found[1]} {found[2]})"),
        st.tuples(st.sampled_from(["-", "not ", "+", "~"]), inner).map("".join),
        st.tuples(inner, inner, inner).map(lambda f: f"({f[0]} if {f[1]} else {f[2]})"),
        st.tuples(inner, inner).map(lambda found: f"{found[0]}[{found[1]}]"),
        st.tuples(inner, inner).map(lambda found: f"{found[0]}[{found[1]}:]"),
        st.tuples(inner, inner).map(lambda found: f"[{found[0]} for x in {found[1]}]"),
        many.map(lambda found: f"[{', '.join(found)}]"),
        many.map(lambda found: f"({', '.join(found)},)"),
        inner.map(lambda found: "f'{" + found.replace("'", '"') + ":>90000000}'"),
        inner.map(lambda found: f"{found}.upper()"),
    )


@settings(derandomize=True, max_examples=400, deadline=None)
@given(st.recursive(st.sampled_from(_LEAVES), _larger, max_leaves=20).map(lambda text: text[:500]))
def test_no_expression_takes_much_memory_or_time(expression: str) -> None:
    peak, seconds = cost_of(expression)

    assert peak < MOST_BYTES
    assert seconds < 4 * expressions.LONGEST


def test_an_evaluation_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "LONGEST", 0.0)

    with pytest.raises(RuleBroken, match="too long to evaluate"):
        condition_holds("input.a == 1", {"input": {"a": 1}})


def test_a_tool_that_rounds_its_own_numbers_does_not_round_those_of_a_rule() -> None:
    class Payment(BaseModel):
        amount: Decimal

    with decimal.localcontext(decimal.Context(prec=2)):
        assert holds("amount * 1 > 100", Payment(amount=Decimal("100.01")))
        assert holds("-amount < -100", Payment(amount=Decimal("100.01")))


@pytest.mark.parametrize(
    "expression", ["input.a * input.a * input.a * input.a > 1", "input.a + 1 > 1"]
)
def test_what_would_have_to_be_rounded_is_no_answer(expression: str) -> None:
    with pytest.raises(RuleBroken, match="too long"):
        condition_holds(expression, {"input": {"a": 1.2345678901234567e-80}})
