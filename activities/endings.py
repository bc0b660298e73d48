"""How an activity ends early: as a typed failure that says whether it is tried again."""

from __future__ import annotations

from datetime import timedelta

from temporalio.exceptions import ApplicationError

from workflows.errors import ErrorType


def stop(type_: ErrorType, message: str) -> ApplicationError:
    """Return a failure that no repetition heals."""
    return ApplicationError(message, type=type_.value, non_retryable=True)


def again(type_: ErrorType, message: str, delay: timedelta) -> ApplicationError:
    """Return a failure after which Temporal tries the activity again."""
    return ApplicationError(message, type=type_.value, next_retry_delay=delay)
