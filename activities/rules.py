"""Rules of approval policies: expressions over a call's validated params."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel
from simpleeval import EvalWithCompoundTypes  # type: ignore[import-untyped]

from workflows.policy import ApprovalPolicy

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
    return _evaluated(expression, lambda: exact_names(params))


def _evaluated(expression: str, names: Callable[[], dict[str, Any]]) -> bool:
    try:
        evaluator = _Evaluator(operators=_OPERATORS, functions={}, names=names())
        answer: object = evaluator.eval(expression)
    except Exception as error:
        raise RuleBroken(f"rule {expression!r}: {error}") from error
    if not isinstance(answer, bool):
        raise RuleBroken(f"rule {expression!r}: is {answer!r}, neither true nor false")
    return answer


def condition_holds(expression: str, values: Mapping[str, Any]) -> bool:
    """Return whether an expression is true of outputs; ``order.paid`` reaches into an object.

    Raises:
        RuleBroken: It cannot be evaluated, or is neither true nor false.
    """
    return _evaluated(expression, lambda: {k: _plain(value, value) for k, value in values.items()})


def condition_problem(expression: str) -> str | None:
    """Return what is wrong with a condition, as far as that shows without values."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        return f"{expression!r}: {getattr(error, 'msg', error)}"
    calls = any(isinstance(node, ast.Call) for node in ast.walk(tree))
    return f"{expression!r}: calls no functions" if calls else None


def exact_names(params: BaseModel) -> dict[str, Any]:
    """Return params by name as people write them: numbers exact, all else as in JSON."""
    names: dict[str, Any] = _plain(params.model_dump(), params.model_dump(mode="json"))
    return names


class _Evaluator(EvalWithCompoundTypes):  # type: ignore[misc]
    """Reads fractions as they are written: 0.1 is a tenth, not the float next to it."""

    def _eval_constant(self, node: ast.Constant) -> Any:
        return _exact(super()._eval_constant(node))

    def _eval_attribute(self, node: ast.Attribute) -> Any:
        # Never Python's own attributes: an object may have a field `keys` or `items`.
        value = self._eval(node.value)
        if not isinstance(value, Mapping) or node.attr not in value:
            raise LookupError(f"there is no {node.attr!r} in {ast.unparse(node.value)}")
        return value[node.attr]


def _plain(value: Any, as_json: Any) -> Any:
    """Return params as people write them: numbers exact, all else as in JSON.

    Otherwise an amount at the very limit could lie beyond the float of a rule, and a rule that
    compares an Enum, a UUID or a date with its text would be false without a word.
    """
    if isinstance(value, Mapping) and isinstance(as_json, dict) and len(value) == len(as_json):
        pairs = zip(value.values(), as_json.items(), strict=True)
        return {name: _plain(part, json_part) for part, (name, json_part) in pairs}
    if isinstance(value, (list, tuple)) and isinstance(as_json, list):
        return [_plain(*both) for both in zip(value, as_json, strict=True)]
    return value if isinstance(value, Decimal) else _exact(as_json)


def _exact(value: Any) -> Any:
    return Decimal(repr(value)) if isinstance(value, float) else value


def problems(policies: Iterable[ApprovalPolicy], model: type[BaseModel]) -> Iterator[str]:
    """Yield what is wrong with the rules of policies, as far as that shows without params."""
    for policy in policies:
        for rule in policy.rules:
            found = problem(rule.when, model)
            if found is not None:
                yield found


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
