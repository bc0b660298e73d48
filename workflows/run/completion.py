"""How a run is admitted, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.contracts.base import OfRun, QuotaWait, RunState, StepState
from surehand.workflows.contracts.runs import CloseRun, RunClosed, RunResult
from surehand.workflows.contracts.steering import CancelMode
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.questions import Approvals
from surehand.workflows.run.run_core import Continuing, RunPart, next_look, wait_at_most
from surehand.workflows.run.run_data import OPEN, WAITING
from surehand.workflows.run.run_views import result_of


@dataclass(eq=False)
class Admission(RunPart):
    """Has one run wait until it may take steps.

    It is recorded and hears what is sent to it. One that is paused asks all the same: the others
    wait behind it.
    """

    _continuing: Continuing

    def note_queue(self, queued: QuotaWait | None) -> None:
        data = self._data
        if queued is not None and data.queued is None:
            self._core.add_line(queued.story)
        data.queued = queued

    async def wait_for_place(self) -> bool:
        """Wait until the run is admitted; ``False``: it is to end before."""
        data = self._data
        while data.queued is not None and data.cancel is None:
            if self._continuing.is_possible():
                self._continuing.continue_as_new()
            # At the front it may wait for months, and each look adds to its history.
            pause = max(data.queued.pause, next_look(min(data.queue_looks // 3, 5)))
            data.queue_looks += 1
            if not await wait_at_most(lambda: self._data.cancel is not None, pause):
                asked = OfRun(**self._data.ids)
                answer = await self._core.call(ports.ADMIT_RUN, asked, "ask for a place")
                data.queued = answer.queued
                if answer.queued is None:
                    self._core.add_line("has its place: going on")
                self._core.show_change()
        return data.queued is None


#: Of the states in which a step waits, those in which its call has been made.
_CALLED: Final = frozenset({StepState.WAITING_RATE_LIMIT, StepState.PAUSED_FAILURE})


@dataclass(eq=False)
class Completion(RunPart):
    """Brings one run to its end."""

    _approvals: Approvals
    _compensation: Compensation
    _completed: RunClosed | None = None

    async def complete_if_nothing_else_stands(self) -> bool:
        """Record that the run has completed, if nothing stands but what this life knows of.

        The transaction that closes the run looks. ``False``: it has closed nothing.
        """
        self._data.error = None
        closed = await self._record_end(RunState.COMPLETED, standing=True)
        self._completed = closed if closed.closed else None
        return closed.closed

    async def close_run(self, failure: str | None) -> RunResult:
        """Undo what has to be undone, record the end, and return the result.

        ``failure`` is why the run cannot finish; ``None``: it has, or is cancelled.
        """
        if self._completed is not None:
            return await self._show_end(RunState.COMPLETED, self._completed)
        state = await self._undo_as_told(failure)
        return await self._show_end(state, await self._record_end(state))

    async def _undo_as_told(self, failure: str | None) -> RunState:
        """Undo what has to be undone and return the state the run ends in."""
        data, cancel = self._data, self._data.cancel
        data.error = failure
        if cancel is not None:
            reason = f": {cancel.reason}" if cancel.reason else ""
            data.error = f"cancelled by {cancel.actor} ({cancel.mode}){reason}"
        elif failure is None:
            return RunState.COMPLETED
        self._core.add_line(data.error or "failed")
        mode = cancel.mode if cancel else CancelMode.COMPENSATE
        for approval_id in list(data.gate.pending):
            await self._approvals.close_request(approval_id)
        data.interventions.clear()
        data.paused = data.token = None
        if mode is CancelMode.KEEP:
            await self._compensation.keep_effects()
        else:
            await self._compensation.undo_all(cleanup=mode is CancelMode.CLEANUP)
        return RunState.CANCELLED if cancel else RunState.FAILED

    async def _record_end(self, state: RunState, *, standing: bool = False) -> RunClosed:
        """Judge what is still in the inboxes, and record the end.

        ``standing``: only if all that stands is what this life of the run knows of.
        """
        data = self._data
        for view in data.in_state(StepState.PENDING):
            data.set_step(view.id, StepState.SKIPPED)
        called = data.saga.unsettled()
        for view in data.in_state(*(WAITING - _CALLED)):
            if view.id not in called:
                data.set_step(view.id, StepState.SKIPPED, error=f"not called: {data.error}")
        for view in data.in_state(*OPEN):
            data.set_step(view.id, StepState.FAILED, error=data.error)
        data.inbox.put_back(data.gate.release_held())
        await workflow.wait_condition(lambda: data.inbox.idle)
        return await self._core.call(
            ports.CLOSE_RUN,
            CloseRun(
                **data.ids,
                state=state,
                error=data.error,
                skipped={v.id: v.tool for v in data.in_state(StepState.SKIPPED)},
                standing=data.saga.standing_digest() if standing else None,
            ),
            "close the run",
        )

    async def _show_end(self, state: RunState, closed: RunClosed) -> RunResult:
        """Show the recorded end, and return the result once all that was sent is answered."""
        data = self._data
        data.final_effects, data.uncompensated = closed.effects, closed.uncompensated
        data.more_effects = closed.more_effects
        data.more_uncompensated = closed.more_uncompensated
        data.mark_undone(closed.effects)
        data.ended = state
        self._core.add_line(state.value)
        self._core.show_change()
        await workflow.wait_condition(
            lambda: (
                data.inbox.idle and workflow.all_handlers_finished() and self._core.signals_are_sent
            )
        )
        return result_of(data)
