"""Times, in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from surehand.cli.approvals_server.texts import OF_PAGES
from surehand.cli.verb.text import rough_time


def time_left(expires_ms: int, now_ms: int) -> str:
    """Return how long something has, in its two largest units: ``in 3 h 12 min``."""
    seconds = (expires_ms - now_ms) // 1000
    if seconds <= 0:
        return OF_PAGES.expired
    return f"in {rough_time(timedelta(seconds=seconds))}"


def iso(ms: int) -> str:
    """Return a time as the ledger has it, in words."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
