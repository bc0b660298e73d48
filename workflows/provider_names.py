"""Names of tools as providers of models take them: many take no dots, and 64 characters at most."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 64
_REFUSED: Final = re.compile(r"[^a-zA-Z0-9_-]")


def provider_names(tools: Iterable[str]) -> dict[str, str]:
    """Return the name that each tool has for a provider: ``payments_refund``, by the tool's own.

    No two tools get the same, so the reverse leads back. It depends on the set of tools alone. A
    tool whose own name will do keeps it. Of others that would be the same, or too long, the name
    ends with some digits of a digest.

    Args:
        tools: All tools that one model is told of.

    Example:
        >>> names = provider_names(["payments.refund", "orders.read", "orders_read"])
        >>> names["payments.refund"], names["orders_read"]
        ('payments_refund', 'orders_read')
        >>> {theirs: tool for tool, theirs in names.items()}["payments_refund"]
        'payments.refund'
    """
    wanted = {tool: _REFUSED.sub("_", tool) for tool in sorted(set(tools))}
    shared = Counter(wanted.values())
    kept = {tool: tool for tool, plain in wanted.items() if tool == plain and _fits(plain)}
    for tool, plain in wanted.items():
        if tool not in kept and _fits(plain) and shared[plain] == 1:
            kept[tool] = plain
    taken = set(kept.values())
    for tool, plain in wanted.items():
        if tool not in kept:
            kept[tool] = _apart(tool, plain, taken)
            taken.add(kept[tool])
    return kept


def _fits(name: str) -> bool:
    return 0 < len(name) <= _LONGEST


def _apart(tool: str, plain: str, taken: set[str]) -> str:
    """Return a name that no other tool has, as short as can be."""
    digest = hashlib.sha256(tool.encode()).hexdigest()
    made = (f"{plain[: _LONGEST - 1 - digits]}_{digest[:digits]}" for digits in range(8, _LONGEST))
    return next(name for name in made if name not in taken)
