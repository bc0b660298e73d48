"""Params that people change: made from ``--set``, and shown as what differs."""

from __future__ import annotations

import copy
import difflib
import json
from itertools import islice
from typing import Any

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


def diff(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return how two JSON objects differ, line by line."""
    before, after = (
        json.dumps(content, indent=2, ensure_ascii=False).splitlines() for content in (old, new)
    )
    # Not `ndiff`: that also compares within lines, which never ends where much differs.
    found = difflib.unified_diff(before, after, n=0, lineterm="")
    return [f"{line[0]} {line[1:]}" for line in islice(found, 2, None) if line[0] in "+-"]
