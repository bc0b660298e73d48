"""Functions that runs have offered for one value, on this worker, until it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

#: By the execution and the step. This module is not loaded anew in the workflow's sandbox, so the
#: activity, which runs on the same worker, finds what the workflow has put here.
_OFFERED: Final[dict[str, Callable[[], Any]]] = {}


@contextmanager
def offered(workflow_run_id: str, step_id: str, function: Callable[[], Any]) -> Iterator[str]:
    """Offer a function for as long as its value is waited for; yields the key to it."""
    key = f"{workflow_run_id}/{step_id}"
    _OFFERED[key] = function
    try:
        yield key
    finally:
        # The same run may have been taken into memory anew meanwhile, and offer it again.
        if _OFFERED.get(key) is function:
            del _OFFERED[key]


def find(key: str) -> Callable[[], Any] | None:
    """Return the function that is offered under a key."""
    return _OFFERED.get(key)
