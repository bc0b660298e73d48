"""Rules of approval policies: expressions over a call's validated params."""

from __future__ import annotations

import ast
import operator
from typing import Any, Final

from pydantic import BaseModel
from simpleeval import EvalWithCompoundTypes  # type: ignore[import-untyped]

#: Comparisons and sums: what a limit needs, and nothing that runs for long.
_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}


class RuleBroken(Exception):
    """A rule cannot be evaluated; the message says which, and why."""


def holds(expression: str, params: BaseModel) -> bool:
    """Return whether an expression is true of params.

    Raises:
        RuleBroken: It cannot be evaluated, or is neither true nor false: nobody may guess then.
    """
    evaluator = EvalWithCompoundTypes(operators=_OPERATORS, functions={}, names=params.model_dump())
    try:
        answer: object = evaluator.eval(expression)
    except Exception as error:
        raise RuleBroken(f"rule {expression!r}: {error}") from error
    if not isinstance(answer, bool):
        raise RuleBroken(f"rule {expression!r}: is {answer!r}, neither true nor false")
    return answer


def problem(expression: str, model: type[BaseModel]) -> str | None:
    """Return what is wrong with an expression, as far as that shows without params."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        return f"rule {expression!r}: {error.msg}"
    unknown = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id not in model.model_fields
    }
    if unknown:
        known = ", ".join(model.model_fields)
        return f"rule {expression!r}: no param {', '.join(sorted(unknown))}; there are {known}"
    calls: list[Any] = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return f"rule {expression!r}: calls no functions" if calls else None
