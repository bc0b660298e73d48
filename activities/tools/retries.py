"""How failures are tried again, and how long."""

from __future__ import annotations

import email.utils
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from surehand.activities.tools.failure_classes import Failure, FailureClass

#: What a header may say at most: more than any cap.
BEYOND_MEASURE: Final = timedelta(days=365)
#: Of a named pause, at most so much is spread.
_LONGEST_SPREAD: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Retries:
    """How failures are tried again, and how long; a worker's come from its settings."""

    transient: tuple[timedelta, ...] = tuple(timedelta(seconds=s) for s in (1, 2, 4))
    """The pause before each retry; as many retries as pauses."""
    dependency_down: tuple[timedelta, ...] = tuple(timedelta(seconds=s) for s in (5, 10))
    """Longer: a dependency has to come back first."""
    rate_limited: int = 10
    """Rate limits heal by waiting; after this many the failure is permanent."""
    in_doubt: tuple[timedelta, ...] = tuple(timedelta(seconds=s) for s in (1, 2, 4))
    """Pauses after a call, or a lookup, that left the outcome open; then a human is asked."""
    retry_after_cap: timedelta = timedelta(days=1)
    """A provider that names a longer pause than this is not asked again: the call has failed."""
    jitter: float = 0.2
    """Retries of many runs that failed together are spread by this share of the pause."""
    recovery_limit: timedelta = timedelta(minutes=5)
    """How long an outcome may be missing before a human is asked."""
    compensation_limit: timedelta = timedelta(seconds=30)
    """From its first call on, no retry of an undo begins later than this: a human is asked."""
    uniform: Callable[[float, float], float] = random.uniform
    """Source of jitter, injected in tests."""

    def delay(self, failure: Failure, earlier: int) -> timedelta | None:
        """Return how long to wait before the next attempt; ``None`` when the class is used up.

        Args:
            failure: What the attempt ended with.
            earlier: Failures of the same class that this call has already had.
        """
        match failure.failure_class:
            case FailureClass.RATE_LIMITED:
                if earlier >= self.rate_limited:
                    return None
                pause = failure.retry_after or timedelta(seconds=1)
                if pause > self.retry_after_cap:
                    return None
                # Never before the time that the provider named, and not long after it.
                return pause + min(pause, _LONGEST_SPREAD) * self.uniform(0, self.jitter)
            case FailureClass.TRANSIENT:
                pauses = self.transient
            case FailureClass.DEPENDENCY_DOWN:
                pauses = self.dependency_down
            case FailureClass.PERMANENT | FailureClass.IN_DOUBT:
                return None
            case _:
                assert_never(failure.failure_class)
        if earlier >= len(pauses):
            return None
        return pauses[earlier] * (1 + self.uniform(-self.jitter, self.jitter))


def retry_after(value: str | None, now: datetime) -> timedelta:
    """Return the pause of a ``Retry-After`` header (RFC 9110, 10.2.3): seconds or an HTTP date.

    Never raises: a header must not get in the way of recording an outcome. One that makes no sense
    is a second, one beyond all measure ``BEYOND_MEASURE``.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        # More digits than nine are more than thirty years.
        return timedelta(seconds=int(text)) if len(text) <= 9 else BEYOND_MEASURE
    try:
        until = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return timedelta(seconds=1)
    if until.tzinfo is None:  # "-0000", and the forms without a zone: of UTC
        until = until.replace(tzinfo=UTC)
    try:
        return max(until.astimezone(UTC) - now, timedelta(0))
    except OverflowError:
        return BEYOND_MEASURE
