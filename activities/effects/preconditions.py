"""What an approval rests on in the world outside: read when it is asked for, and at the call."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from surehand.activities.effects.prepare import PreparedCall, tool_context
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.activities.tools.classify import classify
from surehand.activities.tools.failures import FailureClass
from surehand.activities.tools.output_json import make_json
from surehand.activities.worker.attempt import again, stop
from surehand.activities.worker.watchdog import Watchdog
from surehand.process.off_loop import call_off_loop
from surehand.workflows.errors import ErrorType
from surehand.workflows.identity import digest

#: Well below the deadline of the activity that asks for an approval.
LIMIT: Final = timedelta(seconds=5)
#: Between tries to read it, and how many there are: nobody is asked on a guess.
PAUSE: Final = timedelta(seconds=2)
MOST_TRIES: Final = 10
#: Equals no digest: an approval is not used on a guess, either.
_UNREADABLE: Final = "unreadable"


async def to_ask_with(
    watchdog: Watchdog, request: ClaimRequest, prepared: PreparedCall, attempt: int
) -> ClaimRequest:
    """Return the request with the digest of what the tool's precondition says now.

    Raises:
        ApplicationError: ``Transient``, retryable: it cannot be read; ``ToolFailed`` after ten, or
            at once where it will never be true of these params.
    """
    try:
        return replace(request, precondition=await _read(watchdog, request, prepared))
    except Exception as error:
        failure = classify(error)
        message = f"{prepared.tool.name}: its precondition: {failure.message}"
        if failure.failure_class is FailureClass.PERMANENT or attempt >= MOST_TRIES:
            raise stop(ErrorType.TOOL_FAILED, message) from error
        raise again(ErrorType.TRANSIENT, message, PAUSE) from error


async def to_call_with(
    watchdog: Watchdog, request: ClaimRequest, prepared: PreparedCall
) -> ClaimRequest:
    """Return the request with what the precondition says; unreadable, it equals nothing."""
    if prepared.tool.precondition is None:
        return request
    try:
        return replace(request, precondition=await _read(watchdog, request, prepared))
    except Exception:
        # What is recorded, or in doubt, can still be settled: only a first call is refused.
        return replace(request, precondition=_UNREADABLE)


async def _read(watchdog: Watchdog, request: ClaimRequest, prepared: PreparedCall) -> str | None:
    read = prepared.tool.precondition
    if read is None or not request.gated:
        return None
    context = tool_context(request, request.attempt)
    what = f"the precondition of {prepared.tool.name} of run {request.run_id}"
    async with watchdog.watched(what, LIMIT):
        said = await make_json(await read(prepared.params, context))
        return await call_off_loop(digest, said)
