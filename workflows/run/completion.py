"""The end of a run: what it has to undo is undone, and what has become of it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.compensation import Compensation
from surehand.workflows.contracts.runs import CloseRun, RunClosed, RunResult
from surehand.workflows.contracts.states import RunState, StepState
from surehand.workflows.contracts.steering import CancelMode
from surehand.workflows.control.child_runs import RunSignals
from surehand.workflows.control.decisions import Decisions
from surehand.workflows.run.views import result_of
from surehand.workflows.state.run_state import OPEN, WAITING, RunData

#: Of the states in which a step waits, those in which its call has been made.
_CALLED: Final = frozenset({StepState.WAITING_RATE_LIMIT, StepState.PAUSED_FAILURE})


class Completion:
    """Brings one run to its end."""

    def __init__(
        self,
        data: RunData,
        decisions: Decisions,
        call: ActivityClient,
        signals: RunSignals,
        compensation: Compensation,
        changed: Callable[[], None],
    ) -> None:
        self._data = data
        self._decisions = decisions
        self._call = call
        self._signals = signals
        self._compensation = compensation
        self._changed = changed
        self._completed: RunClosed | None = None

    async def complete(self) -> bool:
        """Record that the run has completed, if nothing stands but what this life knows of.

        The transaction that closes the run looks. ``False``: it has closed nothing.
        """
        self._data.error = None
        closed = await self._record(RunState.COMPLETED, standing=True)
        self._completed = closed if closed.closed else None
        return closed.closed

    async def close(self, failure: str | None) -> RunResult:
        """Undo what has to be undone, record the end, and return the result.

        Args:
            failure: Why the run cannot finish; ``None``: it has, or is cancelled.
        """
        if self._completed is not None:
            return await self._show(RunState.COMPLETED, self._completed)
        state = await self._undone(failure)
        return await self._show(state, await self._record(state))

    async def _undone(self, failure: str | None) -> RunState:
        """Undo what has to be undone and return the state the run ends in."""
        data, cancel = self._data, self._data.cancel
        data.error = failure
        if cancel is not None:
            reason = f": {cancel.reason}" if cancel.reason else ""
            data.error = f"cancelled by {cancel.actor} ({cancel.mode}){reason}"
        elif failure is None:
            return RunState.COMPLETED
        data.add_line(workflow.now(), data.error or "failed")
        mode = cancel.mode if cancel else CancelMode.COMPENSATE
        for approval_id in list(data.gate.pending):
            await self._decisions.close(approval_id, expired=False)
        data.interventions.clear()
        data.paused = data.token = None
        if mode is CancelMode.KEEP:
            await self._compensation.keep()
        else:
            await self._compensation.run(cleanup=mode is CancelMode.CLEANUP)
        return RunState.CANCELLED if cancel else RunState.FAILED

    async def _record(self, state: RunState, *, standing: bool = False) -> RunClosed:
        """Judge what is still in the inboxes, and record the end.

        Args:
            state: How the run ends.
            standing: Only if all that stands is what this life of the run knows of.
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
        closed = await self._call(
            ports.CLOSE_RUN,
            CloseRun(
                tenant=data.request.tenant,
                run_id=data.request.run_id,
                state=state,
                error=data.error,
                skipped={v.id: v.tool for v in data.in_state(StepState.SKIPPED)},
                standing=data.saga.standing() if standing else None,
            ),
            "close the run",
        )
        data.keep_head(closed.head)
        return closed

    async def _show(self, state: RunState, closed: RunClosed) -> RunResult:
        """Show the recorded end, and return the result once all that was sent is answered."""
        data = self._data
        data.final_effects, data.uncompensated = closed.effects, closed.uncompensated
        data.more_effects = closed.more_effects
        data.more_uncompensated = closed.more_uncompensated
        data.mark_undone(closed.effects)
        data.ended = state
        data.add_line(workflow.now(), state.value)
        self._changed()
        await workflow.wait_condition(
            lambda: data.inbox.idle and workflow.all_handlers_finished() and self._signals.idle
        )
        return result_of(data)
