"""Times, in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from surehand.cli.approvals_server.texts import OF_PAGES
from surehand.cli.printer import rough_time


def time_left(expires_ms: int, now_ms: int) -> str:
    """Return how long something has, in its two largest units: ``in 3 h 12 min``."""
    seconds = (expires_ms - now_ms) // 1000
    if seconds <= 0:
        return OF_PAGES.expired
    return f"in {rough_time(timedelta(seconds=seconds))}"


def iso(ms: int) -> str:
    """Return a time of the ledger's, in milliseconds since 1970, as :func:`utc` has it."""
    return utc(datetime.fromtimestamp(ms / 1000, UTC))


def utc(at: datetime) -> str:
    """Return a time to read, as HTML's ``time`` takes it too: ``2026-10-01 09:00:00Z``."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
