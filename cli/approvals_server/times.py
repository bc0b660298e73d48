"""Times, in words."""

from __future__ import annotations

from datetime import UTC, datetime

from surehand.cli.approvals_server.texts import OF_PAGES


def time_left(expires_ms: int, now_ms: int) -> str:
    """Return how long something has, in its two largest units: ``in 3 h 12 min``."""
    seconds = (expires_ms - now_ms) // 1000
    if seconds <= 0:
        return OF_PAGES.expired
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"in {days} d {hours} h"
    if hours:
        return f"in {hours} h {minutes} min"
    return f"in {minutes} min {seconds} s" if minutes else f"in {seconds} s"


def iso(ms: int) -> str:
    """Return a time as the ledger has it, in words."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
