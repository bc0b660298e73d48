"""How a run is admitted, goes on with a new history, and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.compensation import Compensation
from surehand.workflows.contracts.runs import CloseRun, Linked, RunClosed, RunResult, StartRun
from surehand.workflows.contracts.states import RunState, StepState
from surehand.workflows.contracts.steering import CancelMode
from surehand.workflows.contracts.values import AdmitRun, QuotaWait
from surehand.workflows.control.child_runs import RunSignals
from surehand.workflows.control.interrupts import Decisions
from surehand.workflows.plan.plan import ITERATION
from surehand.workflows.run.views import result_of, snapshot
from surehand.workflows.state.run_state import OPEN, WAITING, RunData
from surehand.workflows.steps.approval import next_look
from surehand.workflows.wait_condition import comes_true


class Admission:
    """Has one run wait until it may take steps.

    It is recorded and hears what is sent to it. One that is paused asks all the same: the others
    wait behind it.
    """

    def __init__(
        self,
        data: RunData,
        call: ActivityClient,
        continuing: Continuing,
        changed: Callable[[], None],
    ) -> None:
        self._data = data
        self._call = call
        self._changed = changed
        self._continuing = continuing

    def opened(self, queued: QuotaWait | None) -> None:
        """Take note of what the ledger says of the run as it opens."""
        data = self._data
        if queued is not None and data.queued is None:
            data.add_line(workflow.now(), f"waiting for its tenant's quota, {queued.text}")
        data.queued = queued

    async def wait(self) -> bool:
        """Wait until the run is admitted; ``False``: it is to end before.

        Raises:
            ContinueAsNewError: It goes on waiting in another execution.
        """
        data = self._data
        while data.queued is not None and data.cancel is None:
            if self._continuing.possible():
                self._continuing.go()
            # At the front it may wait for months, and each look adds to its history.
            pause = max(data.queued.pause, next_look(min(data.queue_looks // 3, 5)))
            data.queue_looks += 1
            if not await comes_true(lambda: self._data.cancel is not None, pause):
                request = data.request
                asked = AdmitRun(tenant=request.tenant, run_id=request.run_id)
                answer = await self._call(ports.ADMIT_RUN, asked, "ask for a place")
                data.keep_head(answer.head)
                data.queued = answer.queued
                if answer.queued is None:
                    data.add_line(workflow.now(), "has its place: going on")
                self._changed()
        return data.queued is None


#: Events of history after which a run continues as new. The server suggests it at 4,096, and ends
#: a run at 51,200.
MOST_EVENTS: Final = 4000
#: A run that has just been continued makes some way before it is again, however full it is.
LEAST_EVENTS: Final = 20
#: Bytes after which it is in any case: what people send may be large.
LARGEST_BEGUN: Final = 8 * 1024 * 1024
#: Children keep a run from continuing: until its history is this long nothing is held back for it.
MOST_WITH_CHILDREN: Final = 40_000
#: The same in bytes. The server suggests it at 4 MiB, and ends a run at 50 MiB.
LARGEST_WITH_CHILDREN: Final = 32 * 1024 * 1024
#: A run that could not be continued until here fails, while there is room to undo what it has done.
MOST_AT_ALL: Final = 45_000
LARGEST_AT_ALL: Final = 40 * 1024 * 1024
#: Characters of JSON of all that is carried: what an execution can read while its worker waits for
#: it. On its way it is in the artifact store.
MOST_CARRIED: Final = 32 * 1024 * 1024
#: No call is under way in these.
_WAITING: Final = OPEN - {StepState.RUNNING}
#: The next execution is begun by the version of the workers that is current then. Servers that do
#: not know this (1.29) leave it with the version of the one before.
NEXT_VERSION: Final = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE


class Continuing:
    """Says when a run is to continue as new, and has it do so."""

    def __init__(self, data: RunData, call: ActivityClient, signals: RunSignals) -> None:
        self._data = data
        self._call = call
        self._signals = signals
        self._begun_at = 0
        self._not_before = 0
        self._hindered: str | None = None

    def begun(self) -> None:
        """Note that this execution is open: from here on its history counts."""
        self._begun_at = workflow.info().get_current_history_length()

    def due(self) -> bool:
        """Return whether the history is long enough: nothing new is begun in it then."""
        info = workflow.info()
        length = info.get_current_history_length()
        limit = self._data.request.continue_after or MOST_EVENTS
        if length < limit and not info.is_continue_as_new_suggested():
            return False
        size = info.get_current_history_size()
        least = self._begun_at + LEAST_EVENTS if size < LARGEST_BEGUN else 0
        if length < max(least, self._not_before):
            return False
        room = length < MOST_WITH_CHILDREN and size < LARGEST_WITH_CHILDREN
        return not (room and self._children())

    def too_long(self) -> str | None:
        """Return why the run cannot go on in this history, nor in another one."""
        info = workflow.info()
        length, size = info.get_current_history_length(), info.get_current_history_size()
        if length < MOST_AT_ALL and size < LARGEST_AT_ALL:
            return None
        return (
            f"its history is as long as it may be ({length} events, {size} bytes), and it could"
            f" not continue as new: {self._hindered or 'what is under way has not ended'}"
        )

    def possible(self) -> bool:
        """Return whether the run can continue as new at this very point."""
        return self.due() and self.quiet()

    def quiet(self) -> bool:
        """Return whether all that is under way waits, and all that has arrived is worked off."""
        data = self._data
        return (
            self._call.under_way == 0
            and data.inbox.idle
            and not data.reported
            and self._signals.idle
            and not data.stale
            and not data.saga.undoing
            and not self._children()
            and workflow.all_handlers_finished()
            and all(
                data.steps[step_id].state in _WAITING or self._is_list(step_id)
                for step_id in data.progress
            )
        )

    def _children(self) -> bool:
        # From before its start is known on: the next execution would start another one.
        return bool(self._data.children.running)

    def _is_list(self, step_id: str) -> bool:
        if ITERATION.search(step_id) or self._data.request.plan.code is not None:
            return False
        return self._data.request.plan.step(step_id).for_each is not None

    def go(self) -> None:
        """Continue as new, or go on for a while if there is too much to carry.

        Raises:
            ContinueAsNewError: The end of this execution.
        """
        request = self._data.request
        linked = request.linked and Linked(run_id=request.linked.run_id)
        changes = {"carried": snapshot(self._data), "linked": linked}
        following = request.model_copy(update=changes)
        size = len(following.model_dump_json())
        if size > MOST_CARRIED:
            now = workflow.info().get_current_history_length()
            self._not_before = now + MOST_EVENTS // 2
            self._hindered = f"{size} characters to carry, {MOST_CARRIED} at most"
            text = f"cannot continue as new: {self._hindered}; going on in this history"
            self._data.add_line(workflow.now(), text)
            return
        workflow.continue_as_new(following, initial_versioning_behavior=NEXT_VERSION)


def only_continued(request: StartRun) -> str | None:
    """Return why a run may not take over what it is given; ``None``: Temporal has continued it."""
    if request.carried is None or workflow.info().continued_run_id is not None:
        return None
    return f"run {request.run_id!r} was started with what only a continued one has"


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
