"""How a tool's definition differs from the one that was reviewed, in words that people read."""

from __future__ import annotations

import json
from typing import Any, Final

from surehand.activities.mcp.server_file import DEFINED, Definition
from surehand.workflows.plain_text import plain

#: Characters of each side of a difference: all parts of a definition together fit into an error.
_LONGEST: Final = 120
#: Of these, characters that both sides have before they part.
_COMMON: Final = 24


def changes(reviewed: Definition | None, offered: Definition | None) -> list[tuple[str, Any, Any]]:
    """Return each part that differs, as it was reviewed and as it is offered."""
    before, now = reviewed or {}, offered or {}
    return [
        (part, before.get(part), now.get(part))
        for part in DEFINED
        # As text: in Python `true` is 1.
        if _text(before.get(part)) != _text(now.get(part))
    ]


def sides(before: Any, now: Any) -> tuple[str, str]:
    """Return two values as text in one short line each: from where they part, if they are long."""
    one, other = _text(before), _text(now)
    at = 0
    if max(len(one), len(other)) > _LONGEST:
        pairs = enumerate(zip(one, other, strict=False))
        part = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
        at = max(0, part - _COMMON)
    return _cut(one, at), _cut(other, at)


def in_words(reviewed: Definition | None, offered: Definition | None) -> str:
    """Return what differs as one line: a change far into a long text is seen, too."""
    parts = []
    for part, before, now in changes(reviewed, offered):
        was, is_ = sides(before, now)
        parts.append(f"{part} was {was} and is {is_}")
    return "; ".join(parts)


def _text(value: Any) -> str:
    # In JSON, so that no text ends where its own quotes say.
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _cut(text: str, at: int) -> str:
    seen = plain(text[at : at + _LONGEST + 1], _LONGEST + 1)
    begun = "..." if at else ""
    room = _LONGEST - len(begun)
    return begun + (seen if len(seen) <= room else f"{seen[: room - 3]}...")
