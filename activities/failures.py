"""Failure classes: what kind of failure it is decides what happens, not its type name.

A tool raises one of the ``ToolFault`` classes, or lets an ``httpx`` error pass: those are
classified here. For a write the second question counts more than the first: is it *proven* that
the effect was not applied? Only then may the call be repeated or given up as failed; otherwise its
outcome is in doubt and gets reconciled.
"""

from __future__ import annotations

import email.utils
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import httpx

from activities.outputs import clean_text


class FailureClass(StrEnum):
    """Why a call failed."""

    TRANSIENT = "transient"
    DEPENDENCY_DOWN = "dependency_down"
    RATE_LIMITED = "rate_limited"
    PERMANENT = "permanent"
    IN_DOUBT = "in_doubt"


class ToolFault(Exception):
    """Base of the errors a tool raises on purpose; the effect is proven not applied."""

    failure_class = FailureClass.PERMANENT


class Permanent(ToolFault):
    """It will never work with these params; the effect was not applied."""


class Transient(ToolFault):
    """It may work in a moment; the effect was not applied."""

    failure_class = FailureClass.TRANSIENT


class DependencyDown(ToolFault):
    """The outside system cannot be reached; the effect was not applied."""

    failure_class = FailureClass.DEPENDENCY_DOWN


class RateLimited(ToolFault):
    """Too many calls; the effect was not applied."""

    failure_class = FailureClass.RATE_LIMITED

    def __init__(self, message: str, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutcomeUnknown(ToolFault):
    """The request may have been applied: never repeated blindly, reconciled."""

    failure_class = FailureClass.IN_DOUBT


@dataclass(frozen=True)
class Failure:
    """A classified failure."""

    failure_class: FailureClass
    message: str
    retry_after: timedelta | None = None


class CutOff(Exception):
    """We have ended the call ourselves: whatever a tool declares, its outcome is unknown."""


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
    retry_after_cap: timedelta = timedelta(minutes=5)
    """A provider that names a longer pause than this is waited for in slices of it."""
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
            case FailureClass.RATE_LIMITED if earlier < self.rate_limited:
                pause = min(failure.retry_after or timedelta(seconds=1), self.retry_after_cap)
                # Never before the time that the provider named.
                return pause * (1 + self.uniform(0, self.jitter))
            case FailureClass.TRANSIENT:
                pauses = self.transient
            case FailureClass.DEPENDENCY_DOWN:
                pauses = self.dependency_down
            case _:
                return None
        if earlier >= len(pauses):
            return None
        return pauses[earlier] * (1 + self.uniform(-self.jitter, self.jitter))


#: Which of a tool's own errors are which.
Declared = Mapping[type[Exception], FailureClass]
NOTHING_DECLARED: Final[Declared] = {}
#: Characters of an error that are kept.
LONGEST_MESSAGE: Final = 2000
#: What a header may say at most; always cut to the cap.
BEYOND_MEASURE: Final = timedelta(days=365)


def classify(error: BaseException, declared: Declared = NOTHING_DECLARED) -> Failure:
    """Return the class of what a call raised. What is not recognised is in doubt.

    Args:
        error: What it raised.
        declared: What the tool says of errors of its own; the first that fits wins.
    """
    message = clean_text(f"{type(error).__name__}: {error}".rstrip(": "))[:LONGEST_MESSAGE]
    for type_, class_ in declared.items():
        if isinstance(error, type_) and not isinstance(error, CutOff):
            return Failure(class_, message, getattr(error, "retry_after", None))
    if isinstance(error, RateLimited):
        return Failure(FailureClass.RATE_LIMITED, message, error.retry_after)
    if isinstance(error, ToolFault):
        return Failure(error.failure_class, message)
    if isinstance(error, httpx.HTTPStatusError):
        return _classify_status(error.response)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        # The request was never sent.
        return Failure(FailureClass.DEPENDENCY_DOWN, message)
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return Failure(FailureClass.PERMANENT, message)
    return Failure(FailureClass.IN_DOUBT, message)


def _classify_status(response: httpx.Response) -> Failure:
    status = response.status_code
    message = f"HTTP {status} from {response.request.method} {response.request.url.path}"
    if status == httpx.codes.TOO_MANY_REQUESTS:
        pause = retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
        return Failure(FailureClass.RATE_LIMITED, message, pause)
    if status in (httpx.codes.REQUEST_TIMEOUT, httpx.codes.CONFLICT, httpx.codes.LOCKED):
        # 409 and 423 commonly mean "your first request is still being worked on".
        return Failure(FailureClass.IN_DOUBT, message)
    if 400 <= status < 500:
        return Failure(FailureClass.PERMANENT, message)
    return Failure(FailureClass.IN_DOUBT, message)


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
    try:
        return max(until.astimezone(UTC) - now, timedelta(0))
    except OverflowError:
        return BEYOND_MEASURE
