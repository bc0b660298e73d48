"""How a step ends that has not succeeded, and what an activity's failure says."""

from __future__ import annotations

import asyncio
from typing import Final

from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows.contracts.tools import AttemptsUsed
from surehand.workflows.errors import ErrorType
from surehand.workflows.state.effects import Saga

#: Ends of a write that say that its effect did not happen. Any other end is in doubt.
PROVEN: Final = frozenset({ErrorType.TOOL_FAILED, ErrorType.NOT_AS_REVIEWED, ErrorType.CALLED_OFF})
#: Ends of a call that was refused before it began. Others write their own event.
REFUSED: Final = frozenset(
    {
        ErrorType.INVALID_PARAMS,
        ErrorType.TOOL_NOT_FOUND,
        ErrorType.TOOL_CHANGED,
        ErrorType.QUOTA_EXCEEDED,
    }
)


class StepFailed(Exception):
    """The step failed for good.

    Attributes:
        reason: Why, as one line.
        rejected: A human said no, or nobody answered in time: the run ends, whatever
            ``on_failure`` says.
        unsettled: A write that may have happened; nothing may go on over it, either.
        called: Whether its tool was called at all; a step that was not is skipped.
        given_up: Somebody has looked at the failure, and had the run end.
        called_off: It was in doubt, and a human has called it off, or had it undone.
        unreviewed: The tool is not as it was reviewed: a human looks, whatever ``on_failure`` says.

    Example:
        >>> async def pay(steps: StepMaker, order_id: str) -> bool:
        ...     try:
        ...         await steps.call("payments.refund", {"order_id": order_id, "amount": "20.00"})
        ...     except StepFailed as failed:
        ...         return not failed.rejected
        ...     return True
    """

    def __init__(
        self,
        reason: str,
        *,
        rejected: bool = False,
        unsettled: bool = False,
        called: bool = True,
        given_up: bool = False,
        called_off: bool = False,
        unreviewed: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rejected = rejected
        self.unsettled = unsettled
        self.called = called
        self.given_up = given_up
        self.called_off = called_off
        self.unreviewed = unreviewed


class StepRefused(StepFailed):
    """The step was refused before anything of it began: an event says so, and why."""


def cut_short(saga: Saga, step_id: str) -> StepFailed:
    """Return how a step ends that the run's end leaves no time for."""
    return StepFailed("the run is ending", called=step_id in saga.unsettled())


def leave_if_cancelled() -> None:
    """End a step that was cancelled while the ledger recorded something for it.

    Such a call ends as if nothing had happened: whatever the step waits for next, it would wait for
    although nobody wants it any more.

    Raises:
        asyncio.CancelledError: It was.
    """
    step = asyncio.current_task()
    if step is not None and step.cancelling():
        raise asyncio.CancelledError


def reason_of(error: Exception) -> str:
    """Return why an activity ended, or what else went wrong, as one line."""
    if not isinstance(error, ActivityError):
        return f"{type(error).__name__}: {error}"
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return f"{cause.message} ({cause.type})"
    return str(cause or error)


def type_of(error: ActivityError) -> str | None:
    """Return the wire type of the failure that ended an activity."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def used_by(error: ActivityError) -> AttemptsUsed:
    """Return what a failed activity has used up; nothing where it could not say."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.details:
        details = cause.details[0]
        if isinstance(details, dict) and isinstance(details.get("attempts"), int):
            return AttemptsUsed.model_validate(details)
    return AttemptsUsed(attempts=0)
