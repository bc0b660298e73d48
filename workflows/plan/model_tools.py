"""Which tools a model may call: the run's input names them, and its start records them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from surehand.workflows.plan.references import REFERENCE

#: Where the input of such a run names them.
TOOLS: Final = "tools"
MODEL: Final = "model"


def input_problems(given: Mapping[str, Any], *, inside: bool = False) -> dict[str, str]:
    """Return what is wrong with a model run's input, by field, as far as that shows without tools.

    Args:
        given: The input.
        inside: It is a child run's, in its parent's plan: a field that is one reference is only
            known when the child run starts.
    """
    problems = {}
    model, tools = given.get(MODEL), given.get(TOOLS)
    if not isinstance(model, str) or not model:
        problems[MODEL] = "must name the tool that is the model"
    named = isinstance(tools, list) and all(isinstance(one, str) and one for one in tools)
    if not (named and tools) and not (inside and is_reference(tools)):
        problems[TOOLS] = 'must list the tools that the model may call, such as ["billing.*"]'
    return problems


def is_reference(value: object) -> bool:
    """Return whether a field's value is not known yet."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def allowed(patterns: Iterable[str], known: Iterable[str], undoing: Collection[str]) -> set[str]:
    """Return the tools that a list names, by name or by a pattern with ``*`` and ``?``.

    Args:
        patterns: The list.
        known: The tools that there are.
        undoing: Those that undo another tool's effect: never by pattern, because whoever writes
            `billing.*` thinks of what may be done and not of what may be undone.
    """
    listed = list(patterns)
    return {
        name
        for name in known
        if name in listed
        or (name not in undoing and any(fnmatchcase(name, pattern) for pattern in listed))
    }
