"""Params that people change: made from ``--set``, and shown as what differs."""

from __future__ import annotations

import copy
import difflib
import json
from itertools import islice
from typing import Any, Final

from surehand.client.overrides import OverrideError, assign
from surehand.process.exits import WrongUse


def changed(params: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Return the params with the changes made.

    Raises:
        WrongUse: A path leads nowhere, or nothing changes.
    """
    new = copy.deepcopy(params)
    try:
        for change in changes:
            assign(new, change)
    except OverrideError as error:
        raise WrongUse(f"--set {error}") from error
    if new == params:
        raise WrongUse("--set: the params are so already")
    return new


#: Lines of both that are compared each with each.
_MOST_LINES: Final = 1000


def diff(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return how two JSON objects differ, line by line: of many lines, from the first to the last.

    To find all that is the same in between takes the square of the lines.
    """
    before, after = (
        json.dumps(content, indent=2, ensure_ascii=False).splitlines() for content in (old, new)
    )
    if len(before) + len(after) > _MOST_LINES:
        before, after = _from_first_to_last(before, after)
        return [*(f"- {line}" for line in before), *(f"+ {line}" for line in after)]
    # Not `ndiff`: that also compares within lines, which never ends where much differs.
    found = difflib.unified_diff(before, after, n=0, lineterm="")
    return [f"{line[0]} {line[1:]}" for line in islice(found, 2, None) if line[0] in "+-"]


def _from_first_to_last(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Return two texts without the lines that both begin and end with."""
    least = min(len(before), len(after))
    pairs = zip(before, after, strict=False)
    begin = next((n for n, (one, other) in enumerate(pairs) if one != other), least)
    ends = zip(reversed(before[begin:]), reversed(after[begin:]), strict=False)
    end = next((n for n, (one, other) in enumerate(ends) if one != other), least - begin)
    return before[begin : len(before) - end], after[begin : len(after) - end]
