"""Whatever somebody writes as a rule or a condition costs a worker little memory and time."""

from __future__ import annotations

import decimal
import time
import tracemalloc
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
def test_what_makes_text_and_lists_longer_is_refused_when_the_plan_is_checked_or_it_runs(
    expression: str,
) -> None:
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
