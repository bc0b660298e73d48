"""Calling a port: the one place where the workflow room names an activity."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    FailureError,
    RetryState,
)

from surehand.workflows.errors import NON_RETRYABLE, ErrorType
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.options import fair, ledger_call, ledger_call_here
from surehand.workflows.ports import In, Out, Port
from surehand.workflows.state.run_state import RunData

#: Pauses while the ledger does not know the run: each twice as long as the one before. Somebody has
#: to restore it, and each look adds to the run's history.
FIRST_PAUSE: Final = timedelta(seconds=2)
LONGEST_PAUSE: Final = timedelta(minutes=10)

#: Local activities of one workflow task: what they return goes to the server in one message with
#: it, each up to 8 KiB (``payload_codec.LARGEST_LOCAL``), and it takes 4 MiB.
MOST_LOCAL: Final = 200
#: A timer ends the workflow task.
_NEXT_TASK: Final = timedelta(milliseconds=1)


async def call_port(
    port: Port[In, Out],
    message: In,
    summary: str,
    *,
    options: workflow.ActivityConfig | None = None,
    local: workflow.LocalActivityConfig | None = None,
    weight: float | None = None,
) -> Out:
    """Call an activity by its port.

    Args:
        summary: What the Web UI shows beside it.
        options: Timeouts and retries; those of one ledger transaction by default.
        local: The same for a local activity; ``None`` makes it none.
        weight: The tenant's, where tenants take turns.

    Raises:
        ActivityError: As the activity ended.
    """
    result: Out
    if local is not None:
        try:
            result = await workflow.execute_local_activity(
                port.name, message, result_type=port.returns, **local
            )
        except ActivityError:
            raise
        except FailureError as error:
            # The SDK wraps the failures of other activities only.
            raise failed(port, str(local.get("activity_id")), error) from error
        return result
    given = options or ledger_call(summary)
    turn = fair(tenant_of_run(workflow.info().workflow_id), weight=weight)
    given.setdefault("priority", turn)
    result = await workflow.execute_activity(port.name, message, result_type=port.returns, **given)
    return result


def failed(port: Port[In, Out], activity_id: str, error: FailureError) -> ActivityError:
    """Return the end of a call as that of any activity; to be raised from ``error``."""
    return ActivityError(
        error.message,
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=port.name,
        activity_id=activity_id,
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )


class ActivityClient:
    """Calls the ports of one run.

    The ledger is the run's memory. When it has lost the run, nothing may be called and nothing can
    be undone: the run shows as needing a human, looks again at growing intervals, and goes on where
    it was once the ledger is restored.
    """

    def __init__(self, data: RunData, changed: Callable[[], None]) -> None:
        self._data = data
        self._changed = changed
        self.under_way = 0
        """Calls that have not ended."""
        self._local = 0
        """Local activities since the workflow task was last ended for them."""
        self._making_room = False

    async def __call__(
        self,
        port: Port[In, Out],
        message: In,
        summary: str,
        *,
        options: workflow.ActivityConfig | None = None,
        local: workflow.LocalActivityConfig | None = None,
        again: In | None = None,
        here: bool = True,
    ) -> Out:
        """Call an activity by its port, as soon as the ledger knows the run.

        Args:
            summary: What the Web UI shows beside it.
            options: As in ``call_port``.
            local: As in ``call_port``.
            again: What it takes after the ledger had lost the run; by default the same.
            here: ``False``: what it is called for has to be in history before it is called.

        Raises:
            ActivityError: As the activity ended.
            asyncio.CancelledError: Whoever asked the ledger for something wants it no more.
        """
        pause = FIRST_PAUSE
        self.under_way += 1
        try:
            while True:
                try:
                    result = await self._called(port, message, summary, options, local, here)
                except ActivityError as error:
                    if (
                        options is None
                        and local is None
                        and isinstance(error.cause, CancelledError)
                    ):
                        # No failure of the step: it waits for the ledger as it waits for a human.
                        raise asyncio.CancelledError from error
                    lost = _lost(error)
                    if lost is None:
                        raise
                    self._set_lost(lost)
                else:
                    self._set_lost(None)
                    return result
                message = message if again is None else again
                await workflow.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self.under_way -= 1

    async def _called(
        self,
        port: Port[In, Out],
        message: In,
        summary: str,
        options: workflow.ActivityConfig | None,
        local: workflow.LocalActivityConfig | None,
        here: bool,
    ) -> Out:
        here = here and port.here and options is None
        if here or local is not None:
            await self._make_room()
        if here:
            try:
                return await call_port(port, message, summary, local=ledger_call_here(summary))
            except ActivityError as error:
                if not _may_be_tried_again(error):
                    raise
        # The ledger says the weight, not whoever starts the run.
        return await call_port(
            *(port, message, summary), options=options, local=local, weight=self._data.weight
        )

    async def _make_room(self) -> None:
        while self._local >= MOST_LOCAL:
            if self._making_room:
                await workflow.wait_condition(lambda: not self._making_room)
                continue
            self._making_room = True
            try:
                await workflow.sleep(_NEXT_TASK)
                self._local = 0
            finally:
                self._making_room = False
        self._local += 1

    def _set_lost(self, lost: str | None) -> None:
        if lost == self._data.lost:
            return
        self._data.lost = lost
        self._data.add_line(workflow.now(), lost or "the ledger knows this run again: going on")
        self._changed()


def _may_be_tried_again(error: ActivityError) -> bool:
    """Return whether a call that was tried once has ended with nothing that it said for good."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return not cause.non_retryable and cause.type not in NON_RETRYABLE
    return not isinstance(cause, CancelledError)


def _lost(error: ActivityError) -> str | None:
    """Return what the ledger has lost, if a call has ended for that."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == ErrorType.LEDGER_LOST:
        return cause.message
    return None
