"""Whether a lookup can tell our own call from everybody else's: a look at its code, not a proof."""

from __future__ import annotations

import ast
import inspect
from textwrap import dedent
from typing import Any, Final

from surehand.activities.tools.tool import Tool

_KEY: Final = "idempotency_key"


def lookup_warning(tool: Tool) -> str | None:
    """Return what is odd about a lookup that is said to go by key, if anything is.

    It is odd that it never takes the key from its context. Where it hands its context on to another
    function, nobody can tell, and nothing is said.
    """
    if tool.lookup is None or tool.lookup_by != "key" or _may_use_key(tool.lookup):
        return None
    return (
        f"{tool.name}: its lookup does not use ctx.{_KEY}, so it may find what others have done;"
        ' if it asks how the world is, declare lookup_by="state"'
    )


def _may_use_key(function: Any) -> bool:
    whole = inspect.unwrap(function)
    try:
        code = ast.parse(dedent(inspect.getsource(whole))).body[0]
    except (OSError, TypeError, SyntaxError):
        return True  # it cannot be looked into
    if not isinstance(code, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    own = 1 if inspect.ismethod(whole) else 0
    names = [one.arg for one in (*code.args.posonlyargs, *code.args.args)]
    if len(names) != own + 2 or code.args.vararg or code.args.kwarg:
        return True
    return _uses(code, names[own + 1])


def _uses(code: ast.AST, context: str) -> bool:
    """Return whether code takes the key of its context, or does more than take other fields."""
    inside = [node for node in ast.walk(code) if not isinstance(node, ast.arg)]
    others = {
        id(node.value) for node in inside if isinstance(node, ast.Attribute) and node.attr != _KEY
    }
    return any(
        isinstance(node, ast.Name) and node.id == context and id(node) not in others
        for node in inside
    )
