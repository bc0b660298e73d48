"""Which tools a model may call: names and patterns say it, and its run's start records them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase


def allowed(patterns: Iterable[str], known: Iterable[str], undoing: Collection[str]) -> set[str]:
    """Return the tools that a list names, by name or by a pattern with ``*`` and ``?``.

    Args:
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
