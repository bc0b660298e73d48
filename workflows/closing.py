"""The end of a run: what it has to undo is undone, and what has become of it is recorded."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from workflows import ports
from workflows.book import OPEN, Book
from workflows.calls import Calls
from workflows.contracts import (
    CancelMode,
    CloseRun,
    RunResult,
    RunState,
    StepState,
)
from workflows.desk import Desk
from workflows.unwinding import Unwinding
from workflows.views import result_of


class Closing:
    """Brings one run to its end."""

    def __init__(
        self,
        book: Book,
        desk: Desk,
        call: Calls,
        unwinding: Unwinding,
        changed: Callable[[], None],
    ) -> None:
        self._book = book
        self._desk = desk
        self._call = call
        self._unwinding = unwinding
        self._changed = changed

    async def close(self, failure: str | None) -> RunResult:
        """Undo what has to be undone, record the end, and return the result.

        Args:
            failure: Why the run cannot finish; ``None``: it has, or is cancelled.
        """
        return await self._record(await self._undone(failure))

    async def _undone(self, failure: str | None) -> RunState:
        """Undo what has to be undone and return the state the run ends in."""
        book, cancel = self._book, self._book.cancel
        book.error = failure
        if cancel is not None:
            reason = f": {cancel.reason}" if cancel.reason else ""
            book.error = f"cancelled by {cancel.actor} ({cancel.mode}){reason}"
        elif failure is None:
            return RunState.COMPLETED
        book.say(workflow.now(), book.error or "failed")
        mode = cancel.mode if cancel else CancelMode.COMPENSATE
        for approval_id in list(book.gate.pending):
            await self._desk.close_approval(approval_id, expired=False)
        book.questions.clear()
        book.paused = book.token = None
        if mode is CancelMode.KEEP:
            await self._unwinding.keep()
        else:
            await self._unwinding.run(cleanup=mode is CancelMode.CLEANUP)
        return RunState.CANCELLED if cancel else RunState.FAILED

    async def _record(self, state: RunState) -> RunResult:
        """Judge what is still in the inboxes, record the end, and return the result."""
        book = self._book
        for view in book.in_state(StepState.PENDING):
            book.set_step(view.id, StepState.SKIPPED)
        called = book.saga.unsettled()
        waited = (
            StepState.WAITING_APPROVAL,
            StepState.WAITING_INPUT,
            StepState.WAITING_EVENT,
            StepState.PAUSED_USER,
            StepState.PAUSED_BUDGET,
        )
        for view in book.in_state(*waited):
            if view.id not in called:
                book.set_step(view.id, StepState.SKIPPED, error=f"not called: {book.error}")
        for view in book.in_state(*OPEN):
            book.set_step(view.id, StepState.FAILED, error=book.error)
        book.gate.release_held()
        await workflow.wait_condition(lambda: self._desk.idle)
        closed = await self._call(
            ports.CLOSE_RUN,
            CloseRun(
                tenant=book.request.tenant,
                run_id=book.request.run_id,
                state=state,
                error=book.error,
                skipped={v.id: v.tool for v in book.in_state(StepState.SKIPPED)},
            ),
            "close the run",
        )
        book.saw(closed.head)
        book.final_effects, book.uncompensated = closed.effects, closed.uncompensated
        book.more_effects = closed.more_effects
        book.more_uncompensated = closed.more_uncompensated
        book.note_undone(closed.effects)
        book.ended = state
        book.say(workflow.now(), state.value)
        self._changed()
        await workflow.wait_condition(
            lambda: self._desk.idle and workflow.all_handlers_finished() and not book.sending
        )
        return result_of(book)
