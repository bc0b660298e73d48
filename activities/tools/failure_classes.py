"""Failure classes, and what a tool raises on purpose: is its effect proven not applied?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from surehand.workflows.errors import ErrorType


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
    """The outside system is away: tried again at growing intervals, for longer."""
    RATE_LIMITED = "rate_limited"
    """Too many calls: tried again when the outside system says."""
    PERMANENT = "permanent"
    """It will never work with these params: the step fails."""
    IN_DOUBT = "in_doubt"
    """It may have been applied: reconciled, never repeated blindly."""


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
    def for_good(self) -> ErrorType:
        """Return what a run is told where the call is not tried again."""
        return ErrorType.NOT_AS_REVIEWED if self.unreviewed else ErrorType.TOOL_FAILED


#: Which of a tool's own errors are which.
Declared = Mapping[type[Exception], FailureClass]
NOTHING_DECLARED: Final[Declared] = {}
