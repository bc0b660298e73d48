"""Whether a lookup can tell our own call from everybody else's: a look at its code, not a proof."""

from __future__ import annotations

import dis
import inspect
from itertools import pairwise
from types import CodeType
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
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        return True  # some other callable: it cannot be looked into
    own = 1 if inspect.ismethod(function) else 0
    names = code.co_varnames[: code.co_argcount]
    if len(names) != own + 2 or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return True
    return _uses(code, names[own + 1])


def _uses(code: CodeType, context: str) -> bool:
    """Return whether code takes the key of its context, or does more than take other fields."""
    for now, then in pairwise(dis.get_instructions(code)):
        if not now.opname.startswith("LOAD_") or now.argval != context:
            continue
        if now.opname == "LOAD_CLOSURE":
            continue  # for the function inside, which is looked into below
        if then.opname not in ("LOAD_ATTR", "LOAD_METHOD") or then.argval == _KEY:
            return True
    inside = (part for part in code.co_consts if isinstance(part, CodeType))
    return any(context in part.co_freevars and _uses(part, context) for part in inside)
