"""How an activity ends early: as a typed failure that says whether it is tried again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from temporalio.exceptions import ApplicationError

from surehand.workflows.errors import ErrorType

#: Characters: a message is part of the history, and no codec makes it smaller.
LONGEST_MESSAGE: Final = 4000


def stop(type_: ErrorType, message: str, *details: Any) -> ApplicationError:
    """Return a failure that no repetition heals."""
    text = message[:LONGEST_MESSAGE]
    return ApplicationError(text, *details, type=type_.value, non_retryable=True)


def again(type_: ErrorType, message: str, delay: timedelta) -> ApplicationError:
    """Return a failure after which Temporal tries the activity again."""
    text = message[:LONGEST_MESSAGE]
    return ApplicationError(text, type=type_.value, next_retry_delay=delay)
