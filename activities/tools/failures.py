"""Why a call has failed, and what follows: it is tried again, fails, or is in doubt.

A tool raises one of the classes below, or lets an ``httpx`` error pass. For a write the second
question counts more than the first: is it *proven* that the effect was not applied? Only then may
the call be repeated, or has it failed. Otherwise its outcome is in doubt: reconciled.
"""

from __future__ import annotations

import email.utils
import random
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

from surehand.workflows.names import ErrorType
from surehand.workflows.plain_text import clean_text


class FailureClass(StrEnum):
    """Why a call failed.

    Example:
        >>> class CardDeclined(Exception): ...
        >>> @tool(
        ...     "shop.pay",
        ...     effect=WRITE,
        ...     recovery="human",
        ...     irreversible=True,
        ...     errors={CardDeclined: FailureClass.PERMANENT},
        ... )
        ... async def pay(params: Order, ctx: ToolContext) -> str:
        ...     raise CardDeclined("no money")
    """

    TRANSIENT = "transient"
    """It may work in a moment: tried again."""
    DEPENDENCY_DOWN = "dependency_down"
    """The outside system is down: tried again at growing intervals, for longer."""
    RATE_LIMITED = "rate_limited"
    """Too many calls: tried again when the outside system says."""
    PERMANENT = "permanent"
    """It will never work with these params: the step fails."""
    IN_DOUBT = "in_doubt"
    """It may have been applied: reconciled, never repeated blindly."""

    @property
    def error_type(self) -> ErrorType:
        """How a failure of this class crosses to the run."""
        match self:
            case FailureClass.TRANSIENT:
                return ErrorType.TRANSIENT
            case FailureClass.DEPENDENCY_DOWN:
                return ErrorType.DEPENDENCY_DOWN
            case FailureClass.RATE_LIMITED:
                return ErrorType.RATE_LIMITED
            case FailureClass.PERMANENT:
                return ErrorType.TOOL_FAILED
            case FailureClass.IN_DOUBT:
                return ErrorType.IN_DOUBT


class ToolFault(Exception):
    """Base of the errors a tool raises on purpose; the effect is proven not applied."""

    failure_class = FailureClass.PERMANENT


class Permanent(ToolFault):
    """It will never work with these params; the effect was not applied.

    Example:
        >>> raise Permanent("order-7 has no payment")
        Traceback (most recent call last):
        Permanent: order-7 has no payment
    """


class Transient(ToolFault):
    """It may work in a moment; the effect was not applied.

    Example:
        >>> raise Transient("the order is locked by another request")
        Traceback (most recent call last):
        Transient: the order is locked by another request
    """

    failure_class = FailureClass.TRANSIENT


class DependencyDown(ToolFault):
    """The outside system cannot be reached; the effect was not applied.

    Example:
        >>> raise DependencyDown("the shop refuses connections")
        Traceback (most recent call last):
        DependencyDown: the shop refuses connections
    """

    failure_class = FailureClass.DEPENDENCY_DOWN


class RateLimited(ToolFault):
    """Too many calls; the effect was not applied.

    Example:
        >>> raise RateLimited("100 calls a minute", retry_after=timedelta(seconds=30))
        Traceback (most recent call last):
        RateLimited: 100 calls a minute
    """

    failure_class = FailureClass.RATE_LIMITED

    def __init__(self, message: str, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutcomeUnknown(ToolFault):
    """The request may have been applied: never repeated blindly, reconciled.

    Example:
        >>> raise OutcomeUnknown("the connection broke after the request was sent")
        Traceback (most recent call last):
        OutcomeUnknown: the connection broke after the request was sent
    """

    failure_class = FailureClass.IN_DOUBT


class ReportedFailure(OutcomeUnknown):
    """The outside system itself has said that the call failed: a lookup has to confirm it."""


class NotAsReviewed(Permanent):
    """The tool is not what people have reviewed: nothing was called, and somebody has to look."""


class CallStopped(Exception):
    """We have ended the call ourselves: whatever a tool declares, its outcome is unknown."""


@dataclass(frozen=True)
class Failure:
    """A classified failure."""

    failure_class: FailureClass
    message: str
    retry_after: timedelta | None = None
    reported: bool = False
    """Whether the outside system has ended the call itself, and has said that it failed."""
    unreviewed: bool = False
    """Whether it is for somebody to look at before the run goes on."""

    @property
    def final_type(self) -> ErrorType:
        """What a run is told if the call is not tried again."""
        return ErrorType.NOT_AS_REVIEWED if self.unreviewed else ErrorType.TOOL_FAILED


#: Which of a tool's own errors are which.
Declared = Mapping[type[Exception], FailureClass]
NOTHING_DECLARED: Final[Declared] = {}


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
    """No retry of an undo begins later than this after its first call, or after an answer."""
    uniform: Callable[[float, float], float] = random.uniform
    """Source of jitter, injected in tests."""

    def delay(self, failure: Failure, earlier: int) -> timedelta | None:
        """Return how long to wait before the next attempt; ``None`` when the class is used up.

        ``earlier``: failures of the same class that this call has already had.
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


def read_retry_after(value: str | None, now: datetime) -> timedelta:
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


if TYPE_CHECKING:
    import httpx


#: Characters of an error that are kept.
LONGEST_MESSAGE: Final = 2000


def classify(error: BaseException, declared: Declared = NOTHING_DECLARED) -> Failure:
    """Return the class of what a call raised. What is not recognised is in doubt.

    Of what the tool declares of errors of its own, the first that fits wins.
    """
    import httpx

    message = clean_text(f"{type(error).__name__}: {error}".rstrip(": "), LONGEST_MESSAGE)
    for type_, class_ in declared.items():
        if isinstance(error, type_) and not isinstance(error, CallStopped):
            return Failure(class_, message, getattr(error, "retry_after", None))
    if isinstance(error, RateLimited):
        return Failure(FailureClass.RATE_LIMITED, message, error.retry_after)
    if isinstance(error, ToolFault):
        return Failure(
            error.failure_class,
            message,
            reported=isinstance(error, ReportedFailure),
            unreviewed=isinstance(error, NotAsReviewed),
        )
    if isinstance(error, httpx.HTTPStatusError):
        return _classify_http_status(error.response)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        # The request was never sent.
        return Failure(FailureClass.DEPENDENCY_DOWN, message)
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return Failure(FailureClass.PERMANENT, message)
    return Failure(FailureClass.IN_DOUBT, message)


def classify_call(
    error: BaseException, tool: str, module: str, declared: Declared = NOTHING_DECLARED
) -> Failure:
    """Return the class of what a tool's call raised; one it has not declared is logged.

    The message names the line of the user's own code, which is in the package of ``module``.
    """
    import asyncio  # these not with `tool`, which is light

    import httpx
    import structlog

    failure = classify(error, declared)
    # No bug of the tool's: raised on purpose, by its HTTP client, or by us to end a call.
    on_purpose = (ToolFault, CallStopped, TimeoutError, asyncio.CancelledError)
    if isinstance(error, (*on_purpose, httpx.HTTPError, httpx.InvalidURL, *declared)):
        return failure
    structlog.get_logger().error("tool.raised", tool=tool, error=failure.message, exc_info=error)
    place = _find_place(error, module.partition(".")[0])
    kept = failure.message[: LONGEST_MESSAGE - len(place)]
    return replace(failure, message=f"{kept}{place}")


def _find_place(error: BaseException, package: str) -> str:
    """Return where the user's code raised an error, or called what did; empty if it is not in it.

    ``package`` is the top-level package of that code.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            path = Path(frame.f_code.co_filename)
            return f" ({path.parent.name}/{path.name}:{line})"
    return ""


def _classify_http_status(response: httpx.Response) -> Failure:
    status = response.status_code
    message = f"HTTP {status} from {response.request.method} {response.request.url.path}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        pause = read_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
        return Failure(FailureClass.RATE_LIMITED, message, pause)
    if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.LOCKED):
        # 409 and 423 commonly mean "your first request is still being worked on".
        return Failure(FailureClass.IN_DOUBT, message)
    if 400 <= status < 500:
        return Failure(FailureClass.PERMANENT, message)
    return Failure(FailureClass.IN_DOUBT, message)
