"""Time limits of steps: how long the calls of one may take, their retries and pauses included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows.contracts.tools import Effect, ToolCall, ToolReport
from surehand.workflows.plan.plan import Step
from surehand.workflows.state.run_state import RunData
from surehand.workflows.state.step_failure import StepFailed
from surehand.workflows.steps.tool_calls import ToolCalls
from surehand.workflows.wait_condition import comes_true

T = TypeVar("T")


class TimeOver(Exception):
    """A call was given up before it had ended; what of it has happened is in the ledger."""


async def within(left: timedelta, work: Coroutine[Any, Any, T], stopping: Callable[[], bool]) -> T:
    """Return what a call returns, or have it tried no more when its time is over.

    An attempt that is under way then ends and is recorded, and its end counts.

    Args:
        left: The time that is left to it.
        work: The call of an activity that waits for its end when it is cancelled.
        stopping: Whether the run is ending.

    Raises:
        TimeOver: It was given up between two attempts, or its last one has failed for a moment.
        ActivityError: It has failed for good.
    """
    running = asyncio.create_task(work)
    over = False
    try:
        over = not await comes_true(running.done, left)
    except asyncio.CancelledError:
        running.cancel()
        if not stopping():
            # Not the end of the run: this worker drops it from its memory.
            raise
    if over:
        running.cancel()
    await workflow.wait_condition(running.done)
    try:
        return await running
    except (ActivityError, asyncio.CancelledError) as error:
        cause = error.__cause__
        if not over or (isinstance(cause, ApplicationError) and cause.non_retryable):
            raise
        raise TimeOver from error


class LimitedCalls:
    """Makes the calls of one run's steps, each within the time limit of its step."""

    def __init__(
        self, data: RunData, tool_calls: ToolCalls, undo: Callable[[str], Awaitable[None]]
    ) -> None:
        self._data = data
        self._tool_calls = tool_calls
        self._undo = undo

    async def report(self, step: Step, call: ToolCall) -> ToolReport:
        """Make a call, and have it tried no more when the step's time is over.

        Raises:
            StepFailed: Its time is over; or the run ends before the call has begun.
            ActivityError: As the activity ended.
        """
        limit, data = step.time_limit, self._data
        if limit is None or call.joined is not None:  # it waits for people, at another step
            return await self._tool_calls.execute(step.id, call, alone=limit is not None)
        began, spent = workflow.now(), data.progress_of(step.id).spent
        if spent >= limit:
            raise StepFailed(_over(limit))
        try:
            making = self._tool_calls.execute(step.id, call, alone=True)
            return await within(limit - spent, making, lambda: data.stopping)
        except TimeOver as error:
            # Nobody has said whether a write has happened: the plan goes on once it is undone.
            doubt = call.tool.effect is Effect.WRITE
            goes_on = data.request.plan.on_failure(step) not in ("compensate", "pause")
            if doubt and goes_on and not data.stopping:
                await self._undo(step.id)
                doubt = False
            raise StepFailed(_over(limit), unsettled=doubt) from error
        finally:
            data.set_progress(step.id, spent=spent + (workflow.now() - began))

    def with_pause(self, step: Step, pause: timedelta, reason: str) -> timedelta:
        """Return what the step has taken of its time after a pause.

        Raises:
            StepFailed: The pause is longer than the time that is left.
        """
        spent = self._data.progress_of(step.id).spent + pause
        if step.time_limit is not None and spent >= step.time_limit:
            raise StepFailed(f"{_over(step.time_limit)}: {reason}")
        return spent


def _over(limit: timedelta) -> str:
    return f"its time limit ({limit.total_seconds():g} s) is over"
