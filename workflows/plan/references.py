"""References between steps: ``${order.lines.0.sku}``; finding them, and putting in what they mean.

A reference names a step (or ``input``), then a path of fields and list positions. ``$${`` stands
for a literal ``${``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

#: Nothing in it is tried twice (``+`` after a quantifier): whoever writes a plan writes what it is
#: matched with, and blanks without an end would take hours.
REFERENCE: Final = re.compile(r"\$\{\s*+((?:[^{}\s]++(?:\s++(?=[^{}\s]))?+)*+)\s*+\}")
#: What stands between the braces of a reference that can lead somewhere.
PATH: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

#: The name under which references reach the run's input.
INPUT: Final = "input"
#: In conditions and rules: what the ledger knows of the run itself.
RUN: Final = "run"

_LITERAL: Final = "$${"

#: Digits of a position in a list.
_MOST_DIGITS: Final = 9
#: Characters of a text that references are written into: each can stand there a thousand times.
LARGEST_TEXT: Final = 8 * 1024 * 1024


class ReferenceUnresolved(ValueError):
    """A reference points at something that the earlier step did not return."""


def resolve(value: Any, facts: Mapping[str, Any]) -> Any:
    """Return ``value`` with its references replaced by what earlier steps returned.

    A string that is one reference takes the referenced value with its type; inside a longer
    string the value is written as text. ``$${`` stands for a literal ``${``.

    Args:
        facts: ``input`` and the outputs of finished steps, by step id.

    Raises:
        ReferenceUnresolved: If a field is missing, or a text becomes too large.
    """
    if isinstance(value, str):
        return resolve_text(value, lambda reference: look_up(reference, facts))
    if isinstance(value, dict):
        return {key: resolve(item, facts) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, facts) for item in value]
    return value


def literal(value: Any) -> Any:
    """Return what ``resolve`` takes for this very value, whatever stands in its texts."""
    if isinstance(value, str):
        return value.replace("${", _LITERAL)
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [literal(item) for item in value]
    return value


def resolve_text(text: str, value_of: Callable[[str], Any]) -> Any:
    """Return one text with its references replaced; see ``resolve``."""
    whole = REFERENCE.fullmatch(text)
    if whole:
        return value_of(whole[1])
    left, texts = LARGEST_TEXT, dict[str, str]()

    def written(match: re.Match[str]) -> str:
        nonlocal left
        reference = match[1]
        if reference not in texts:
            texts[reference] = _as_text(value_of(reference))
        left -= len(texts[reference])
        if left < 0:
            raise ReferenceUnresolved(f"${{{reference}}}: a text becomes too large with it")
        return texts[reference]

    return "${".join(REFERENCE.sub(written, part) for part in text.split(_LITERAL))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def look_up(reference: str, facts: Mapping[str, Any]) -> Any:
    """Return what a reference stands for; ``ReferenceUnresolved`` if a field is missing."""
    current: Any = facts
    for part in reference.split("."):
        if isinstance(current, Mapping) and part in current:
            current = current[part]
        elif isinstance(current, list) and _is_place(part) and int(part) < len(current):
            current = current[int(part)]
        else:
            raise ReferenceUnresolved(f"${{{reference}}}: there is no {part!r}")
    return current


def _is_place(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS


def references(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield ``(path, reference)`` for each reference inside a JSON value."""
    for where, text in _texts(value, path):
        for part in text.split(_LITERAL):
            yield from ((where, match[1]) for match in REFERENCE.finditer(part))


def unclosed(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each text in which a ``${`` begins no reference."""
    for where, text in _texts(value, path):
        if any("${" in REFERENCE.sub("", part) for part in text.split(_LITERAL)):
            yield where


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}.{index}")
