"""Expressions over JSON values: the rules of approval policies, and the conditions of steps.

Whoever writes a plan writes expressions, and they are evaluated between the heartbeats of all
calls. So the language is small: what makes text or lists longer, or loops, is not in it. An
evaluation makes no value larger than those it is given, and has an end.
"""

from __future__ import annotations

import ast
import decimal
import itertools
import math
import operator
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel

from surehand.process import clock
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.plan.references import RUN

#: Seconds of the processor for one evaluation: rules of people need a thousandth.
LONGEST: Final = 0.5
#: Digits of a number, as written and as computed: exact, or refused.
MOST_DIGITS: Final = 60
#: What an expression can name of the run: whether it has read content from outside.
FOREIGN: Final = "foreign"
_LONGEST_REASON: Final = 300
_LARGEST_NUMBER: Final = 10**MOST_DIGITS
#: Our own: a tool may have changed its thread's. What would have to be rounded is refused.
_EXACT: Final = decimal.Context(
    prec=MOST_DIGITS,
    traps=[decimal.InvalidOperation, decimal.Overflow, decimal.Underflow, decimal.Inexact],
)


def _of_numbers(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator for numbers only: of texts and lists, it would make longer ones."""

    def computed(*values: Any) -> Any:
        if not all(isinstance(value, int | Decimal) for value in values):
            raise TypeError("only numbers can be added, subtracted and multiplied")
        return _bounded(compute(*values))

    return computed


def _bounded(number: Any) -> Any:
    if isinstance(number, int) and abs(number) >= _LARGEST_NUMBER:
        raise ValueError(f"a number has more than {MOST_DIGITS} digits")
    return number


#: Comparisons and sums: what a limit needs, and nothing that runs for long.
_OPERATORS: Final[Mapping[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: _of_numbers(operator.add),
    ast.Sub: _of_numbers(operator.sub),
    ast.Mult: _of_numbers(operator.mul),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Not: operator.not_,
    ast.USub: _of_numbers(operator.neg),
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}
#: All that an expression may be made of.
_LANGUAGE: Final = (
    *_OPERATORS,
    *(ast.Expression, ast.Load, ast.Constant, ast.Name, ast.Attribute, ast.Subscript),
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp),
    *(ast.List, ast.Tuple),
)
#: What people write that is not in it, in their words.
_UNKNOWN: Final = {
    ast.Call: "calls no functions",
    ast.JoinedStr: "makes no texts (f'...')",
    ast.Slice: "takes no parts of texts and lists ([a:b])",
    ast.Pow: "knows no powers (**)",
    ast.Mod: "knows no remainders and no formats (%)",
}
#: A single `=`, outside of texts as far as that is easily told.
_ASSIGNS: Final = re.compile(r"""^(?:[^"'=!<>]|"[^"]*"|'[^']*'|==|[!<>]=|[<>](?!=))*=(?!=)""")


class RuleBroken(Exception):
    """A rule cannot be evaluated; the message says which, and why."""


def holds(expression: str, params: BaseModel, *, foreign: bool | None = None) -> bool:
    """Return whether an expression is true of params.

    ``foreign``: what ``run.foreign`` is; ``None``: the expression is about no run. Raises
    ``RuleBroken``.
    """
    return _evaluated(expression, lambda: {**exact_names(params), **of_run(foreign)})


def of_run(foreign: bool | None) -> dict[str, Any]:
    """Return what an expression can name of the run: whatever the params are called."""
    return {} if foreign is None else {RUN: {FOREIGN: foreign}}


def _evaluated(expression: str, names: Callable[[], dict[str, Any]]) -> bool:
    try:
        tree = _parsed(expression)
        with decimal.localcontext(_EXACT):
            answer: object = _Evaluation(names()).value_of(tree.body)
        shown = reprlib.repr(answer)
    except RuleBroken:
        raise
    except Exception as error:
        # A signal of the decimal module has no text of its own.
        why = str(error) if not isinstance(error, ArithmeticError) else "its numbers are too long"
        raise RuleBroken(f"rule {expression!r}: {why[:_LONGEST_REASON]}") from error
    if not isinstance(answer, bool):
        raise RuleBroken(f"rule {expression!r}: is {shown}, neither true nor false")
    return answer


def _parsed(expression: str) -> ast.Expression:
    """Return an expression that the language has. Raises ``RuleBroken``."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError) as error:
        why = "compare with ==, not with =" if _ASSIGNS.search(expression) else ""
        raise RuleBroken(f"rule {expression!r}: {why or getattr(error, 'msg', error)}") from error
    except (RecursionError, MemoryError) as error:
        raise RuleBroken(f"rule {expression!r}: is nested too deeply") from error
    for node in nodes:
        if not isinstance(node, _LANGUAGE):
            kind = next((text for type_, text in _UNKNOWN.items() if isinstance(node, type_)), None)
            why = kind or f"knows no {type(node).__name__}"
            raise RuleBroken(f"rule {expression!r}: {why}")
        if isinstance(node, ast.Constant):
            _check_constant(expression, node.value)
    of_run = {
        id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == FOREIGN
    }
    for node in nodes:
        # A param of this name cannot be named: a model could say in it what it likes.
        if isinstance(node, ast.Name) and node.id == RUN and id(node) not in of_run:
            raise RuleBroken(f"rule {expression!r}: of the {RUN} there is only {RUN}.{FOREIGN}")
    return tree


def _check_constant(expression: str, value: object) -> None:
    if not isinstance(value, str | int | float | None):
        raise RuleBroken(f"rule {expression!r}: knows no {type(value).__name__}")
    too_long = isinstance(value, int) and abs(value) >= _LARGEST_NUMBER
    if too_long or (isinstance(value, float) and not math.isfinite(value)):
        raise RuleBroken(f"rule {expression!r}: a number has more than {MOST_DIGITS} digits")


def condition_holds(expression: str, values: Mapping[str, Any]) -> bool:
    """Return whether an expression is true of outputs; ``order.paid`` reaches into an object."""
    return _evaluated(expression, lambda: {k: _plain(value, value) for k, value in values.items()})


def condition_problem(expression: str) -> str | None:
    """Return what is wrong with a condition, as far as that shows without values."""
    try:
        _parsed(expression)
    except RuleBroken as error:
        return str(error)
    return None


def find_paths(expression: str) -> list[str]:
    """Return the names in an expression, and what they reach into, such as ``order.paid``."""
    nodes = (n for n in ast.walk(_parsed(expression)) if isinstance(n, ast.Name | ast.Attribute))
    return [path for path in map(ast.unparse, nodes) if re.fullmatch(r"[\w.]+", path)]


def exact_names(params: BaseModel) -> dict[str, Any]:
    """Return params by name as people write them: numbers exact, all else as in JSON."""
    names: dict[str, Any] = _plain(params.model_dump(), params.model_dump(mode="json"))
    return names


def unknown_param(model: type[BaseModel], path: str) -> str | None:
    """Return, as one clause, that params have no such path, as far as that shows."""
    first = path.partition(".")[0]
    if first in model.model_fields:
        return None
    return f"no param {first}; there are {', '.join(model.model_fields)}"


class _Evaluation:
    """Evaluates the nodes of the language; the values of names are JSON."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        # The thread's own time: one that was stopped for a while has not taken long.
        self._ends_at = clock.processor_time() + LONGEST

    def value_of(self, node: ast.expr) -> Any:
        if clock.processor_time() > self._ends_at:
            raise TimeoutError("takes too long to evaluate")
        match node:
            case ast.Constant():
                # A fraction is read as it is written: 0.1 is a tenth, not the float next to it.
                return _exact(node.value)
            case ast.Name() if node.id in self._names:
                return self._names[node.id]
            case ast.Attribute():
                # Never Python's own attributes: an object may have a field `keys` or `items`.
                value = self.value_of(node.value)
                if isinstance(value, Mapping) and node.attr in value:
                    return value[node.attr]
                raise LookupError(f"there is no {node.attr!r} in {ast.unparse(node.value)}")
            case ast.Subscript():
                return self.value_of(node.value)[self.value_of(node.slice)]
            case ast.List():
                return [self.value_of(part) for part in node.elts]
            case ast.Tuple():
                return tuple(self.value_of(part) for part in node.elts)
            case ast.UnaryOp():
                return _OPERATORS[type(node.op)](self.value_of(node.operand))
            case ast.BinOp():
                left, right = self.value_of(node.left), self.value_of(node.right)
                return _OPERATORS[type(node.op)](left, right)
            case ast.BoolOp():
                *parts, last = node.values
                for part in parts:
                    value = self.value_of(part)
                    if bool(value) is isinstance(node.op, ast.Or):
                        return value
                return self.value_of(last)
            case ast.Compare():
                values = map(self.value_of, (node.left, *node.comparators))
                pairs = zip(node.ops, itertools.pairwise(values), strict=True)
                return all(_OPERATORS[type(kind)](*pair) for kind, pair in pairs)
            case ast.IfExp():
                return self.value_of(node.body if self.value_of(node.test) else node.orelse)
        raise LookupError(f"there is no {ast.unparse(node)!r}")


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


def problem(expression: str, model: type[BaseModel], *, of: Iterable[str] = (RUN,)) -> str | None:
    """Return what is wrong with an expression, as far as that shows without params."""
    try:
        named = {path.partition(".")[0] for path in find_paths(expression)}
    except RuleBroken as error:
        return str(error)
    if unknown := sorted(named - {*model.model_fields, *of}):
        known = ", ".join(model.model_fields)
        return f"rule {expression!r}: no param {', '.join(unknown)}; there are {known}"
    return None
