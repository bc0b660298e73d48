"""When a request for an approval has expired: the one place that judges it."""

from __future__ import annotations

from typing import Any


def has_expired(request: Any, now_ms: int) -> Any:
    """Return whether a request's time is over; of the table's columns, the condition for that."""
    return request["expires_ms"] <= now_ms


def soonest_open(now_ms: int) -> int:
    """Return the first ``expires_ms`` that has not expired: where an index of them is read from."""
    return now_ms + 1
