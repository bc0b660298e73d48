"""What kind of failure it is decides what happens, not its type name.

A tool raises one of the classes in ``failures.py``, or lets an ``httpx`` error pass. For a
write the second question counts more than the first: is it *proven* that the effect was not
applied? Only then may the call be repeated, or has it failed. Otherwise its outcome is in doubt:
reconciled.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
import structlog

from surehand.activities.tools.failures import (
    NOTHING_DECLARED,
    CallStopped,
    Declared,
    Failure,
    FailureClass,
    NotAsReviewed,
    RateLimited,
    ReportedFailure,
    ToolFault,
    retry_after,
)
from surehand.activities.tools.output_json import clean_text

log = structlog.get_logger()

#: What is no bug of the tool's: raised on purpose, by its HTTP client, or by us to end a call.
_EXPECTED: Final = (
    *(ToolFault, CallStopped),
    *(httpx.HTTPError, httpx.InvalidURL),
    *(TimeoutError, asyncio.CancelledError),
)
#: Characters of an error that are kept.
LONGEST_MESSAGE: Final = 2000


def classify(error: BaseException, declared: Declared = NOTHING_DECLARED) -> Failure:
    """Return the class of what a call raised. What is not recognised is in doubt.

    Of what the tool declares of errors of its own, the first that fits wins.
    """
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
        return _classify_status(error.response)
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
    failure = classify(error, declared)
    if isinstance(error, (*_EXPECTED, *declared)):
        return failure
    log.error("tool.raised", tool=tool, error=failure.message, exc_info=error)
    place = _place(error, module.partition(".")[0])
    kept = failure.message[: LONGEST_MESSAGE - len(place)]
    return replace(failure, message=f"{kept}{place}")


def _place(error: BaseException, package: str) -> str:
    """Return where the user's code raised an error, or called what did; empty if it is not in it.

    ``package`` is the top-level package of that code.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            path = Path(frame.f_code.co_filename)
            return f" ({path.parent.name}/{path.name}:{line})"
    return ""


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
