"""``--set path=value``: changes one value of a plan document before it is validated.

Paths start at the plan; steps are named by id: ``input.order_id=order-7``,
``steps.refund.params.amount=50``. A path that leads nowhere is an error, because a mistyped one
would start the run with the old value.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from surehand.process.files import NUMBER, Unreadable, parse_closed, parse_yaml
from surehand.workflows.plan.plan import Defaults, Plan, Step
from surehand.workflows.plan.references import INPUT

#: Scalars that are neither text nor numbers. What is not one of them, no number, and not in quotes
#: or brackets, is text as it stands: ``12 #3 Main St`` has no comment, ``a: b`` is no mapping.
_WORDS: Final = ("true", "false", "null", "~")


class OverrideError(Exception):
    """``--set`` cannot be applied; ``where`` is the path."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


def override(document: Any, text: str) -> None:
    """Apply ``path=value`` to the document in place.

    Raises:
        OverrideError: If it has not that form, or the path leads nowhere.
    """
    path, parts, written = _parsed(text, "input.order_id=order-7")
    current: Any = document
    for depth, part in enumerate(parts[:-1]):
        current = _child(current, part, parts[:depth])
        if current is None and parts[: depth + 1] == [INPUT]:
            current = document[INPUT] = {}
    _assign(document, current, parts, _value(path, written))


def assign(params: Any, text: str) -> None:
    """Apply ``path=value`` to params in place; a path may name what is there, or a new field.

    Raises:
        OverrideError: If it has not that form, or the path leads nowhere.
    """
    path, parts, written = _parsed(text, "amount=50")
    current = params
    for depth, part in enumerate(parts[:-1]):
        current = _child(current, part, parts[:depth])
    found = _find(current, parts[-1], parts[:-1])
    if found is None and isinstance(current, dict):
        found = parts[-1]  # a field that has its default so far; the tool's model judges it
    if found is None:
        raise OverrideError(path, _what_there_is(current, parts[:-1]))
    value = _value(path, written)
    old = current[found] if found in current or isinstance(found, int) else None
    # Where the tool's model has made a text of it, such as an amount, it would do so again.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    current[found] = written if isinstance(old, str) and number else value


def _parsed(text: str, example: str) -> tuple[str, list[str], str]:
    path, equals, written = text.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        raise OverrideError(path, f"write it as path=value, such as {example}")
    return path, parts, written


def _value(path: str, written: str) -> Any:
    try:
        if written.startswith(("'", '"', "[", "{")):
            return parse_closed(written)
        return parse_yaml(written) if written in _WORDS or NUMBER.fullmatch(written) else written
    except Unreadable as error:
        raise OverrideError(path, f"the value is not YAML: {error.reason}") from error


def _child(current: Any, part: str, above: list[str]) -> Any:
    found = _find(current, part, above)
    if found is not None:
        return current[found]
    if not above and part == INPUT and isinstance(current, dict):
        return None
    raise OverrideError(".".join([*above, part]), _what_there_is(current, above))


def _assign(document: Any, current: Any, parts: list[str], value: Any) -> None:
    *above, last = parts
    found = _find(current, last, above)
    if found is None and isinstance(current, dict) and _may_be_added(document, above, last):
        found = last
    if found is None:
        raise OverrideError(".".join(parts), _what_there_is(current, above))
    current[found] = value


def _find(current: Any, part: str, above: list[str]) -> str | int | None:
    """Return the key or index that ``part`` names, if it is there."""
    if isinstance(current, dict):
        return part if part in current else None
    if not isinstance(current, list):
        return None
    if above == ["steps"]:
        for index, step in enumerate(current):
            if isinstance(step, dict) and step.get("id", f"step{index + 1}") == part:
                return index
    return int(part) if part.isdecimal() and int(part) < len(current) else None


def _may_be_added(document: Any, above: list[str], last: str) -> bool:
    """Say whether an absent last part is still known: a field of the plan, or an input in use."""
    if not above:
        return last in Plan.model_fields
    if above == ["defaults"]:
        return last in Defaults.model_fields
    if len(above) == 2 and above[0] == "steps":
        return last in Step.model_fields
    if above == [INPUT]:
        written = json.dumps(document.get("steps"), default=str)
        # In references and in conditions, which have no braces.
        return re.search(rf"\b{INPUT}\.{re.escape(last)}(?!\w|-[A-Za-z])", written) is not None
    return False


def _what_there_is(current: Any, above: list[str]) -> str:
    place = ".".join(above) or "the plan"
    if isinstance(current, dict):
        names = [str(key) for key in current]
    elif isinstance(current, list) and above == ["steps"]:
        names = [
            str(step.get("id", f"step{index}"))
            for index, step in enumerate(current, start=1)
            if isinstance(step, dict)
        ]
    elif isinstance(current, list):
        names = [f"0 to {len(current) - 1}"] if current else []
    else:
        return f"{place} is one value, nothing is inside it"
    return f"unknown path: {place} has {', '.join(names) or 'nothing'}"
