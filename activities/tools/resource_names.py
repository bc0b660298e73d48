"""What a tool may say of its resources: their names, and the limits of their leases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from surehand.activities.tools.output_json import clean_text
from surehand.workflows.options import CALL_MARGIN

#: As long as the ledger's column is.
LONGEST_RESOURCE: Final = 400
#: Each is locked, renewed and freed by itself: a call with more wants one wider resource.
MOST_RESOURCES: Final = 20
#: A shorter lease would be lost whenever the ledger takes a moment, or while a transactional tool
#: holds SQLite's only writer.
SHORTEST_LEASE: Final = timedelta(seconds=3)
#: The wait is a part of an attempt, and has to leave room for the rest of it.
LONGEST_WAIT: Final = CALL_MARGIN / 2


def limits_problem(lease: timedelta | None, wait: timedelta | None) -> str | None:
    """Return what is wrong with the limits of a tool or a worker, or ``None``."""
    if lease is not None and lease < SHORTEST_LEASE:
        return f"the lease of a resource is at least {SHORTEST_LEASE.total_seconds():g} s"
    if wait is not None and not timedelta(0) <= wait <= LONGEST_WAIT:
        return f"the wait for a resource is at most {LONGEST_WAIT.total_seconds():g} s"
    return None


def resource_names(
    resource: Callable[[Any], str | list[str]] | None, params: Any
) -> tuple[str, ...]:
    """Return the resources that a call names: sorted, each once.

    Raises:
        ValueError: What the tool's function gave, or raised, names no resources.
    """
    if resource is None:
        return ()
    try:
        given: object = resource(params)
    except Exception as error:
        raise ValueError(f"resource(params): {error!r}") from error
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or len(names) > MOST_RESOURCES:
        raise ValueError(f"resource(params) must give a text or a list of at most {MOST_RESOURCES}")
    for name in names:
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= LONGEST_RESOURCE
            or name != clean_text(name)
        ):
            raise ValueError(
                f"resource(params): a resource has 1 to {LONGEST_RESOURCE} characters of plain text"
            )
    return tuple(sorted(set(names)))
