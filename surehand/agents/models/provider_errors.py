"""What a provider's error means for a turn: when, or whether, its model is asked again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from surehand.activities.tools.failure_classes import (
    DependencyDown,
    Permanent,
    RateLimited,
    ToolFault,
    Transient,
)
from surehand.activities.tools.retries import retry_after

#: How long to wait where a provider says only that it was asked too often.
PAUSE: Final = timedelta(seconds=30)


def rate_limited(text: str, named: str | None) -> RateLimited:
    """Return the failure, with the pause of its ``Retry-After``."""
    return RateLimited(text, PAUSE if named is None else retry_after(named, datetime.now(UTC)))


def answered(text: str, status: int, retry_after: str | None) -> ToolFault:
    """Return the failure that a status of HTTP means."""
    if status == 429:
        return rate_limited(text, retry_after)
    if status in (503, 529):
        return DependencyDown(text)
    if status >= 500 or status in (408, 409):
        return Transient(text)
    return Permanent(text)
