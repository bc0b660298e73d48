"""What all parts of a run share: its state, calls, signals, its place, and continuing as new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError

from surehand.workflows import names, ports
from surehand.workflows.contracts import base
from surehand.workflows.contracts.runs import ChildReport, Linked, StartRun
from surehand.workflows.names import NON_RETRYABLE, ErrorType
from surehand.workflows.ports import In, Out, Port, call_port, ledger_call_here
from surehand.workflows.run.run_data import OPEN, RunData
from surehand.workflows.run.run_views import current_details, report_of, snapshot

#: Pauses while the ledger does not know the run: each twice as long as the one before. Somebody has
#: to restore it, and each look adds to the run's history.
FIRST_PAUSE: Final = timedelta(seconds=2)
LONGEST_PAUSE: Final = timedelta(minutes=10)

#: Local activities of one workflow task: what they return goes to the server in one message with
#: it, each up to 8 KiB (``payload_codec.LARGEST_LOCAL``), and it takes 4 MiB.
MOST_LOCAL: Final = 200
#: A timer ends the workflow task.
_NEXT_TASK: Final = timedelta(milliseconds=1)


async def wait_at_most(condition: Callable[[], bool], limit: timedelta) -> bool:
    """Wait for a condition, for some time at most; returns whether it holds.

    The SDK's own ``wait_condition(timeout=)`` goes by ``asyncio.wait_for``. Before Python 3.12 that
    takes another turn of the loop, so what a run does next has another order: a run that had begun
    on 3.11 could not go on on 3.12.
    """
    over = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(max(limit.total_seconds(), 0.001), over.set)
    try:
        await workflow.wait_condition(lambda: over.is_set() or condition())
    finally:
        timer.cancel()
    return condition()


def next_look(looks: int) -> timedelta:
    """Return how long to wait before a quota or a halt is looked at again, after so many looks."""
    # Beyond that it is the longest in any case.
    return min(base.SHORTEST_LOOK * (1 << min(looks, 10)), base.LONGEST_LOOK)


class RunCore:
    """What all parts of one run share.

    The ledger is the run's memory. When it has lost the run, nothing may be called and nothing can
    be undone: the run shows that it needs a human, looks again at growing intervals, and goes on
    where it was once the ledger is restored.
    """

    def __init__(self, data: RunData) -> None:
        self.data = data
        self.calls_under_way = 0
        self._local_calls = 0
        """Local activities since the workflow task was last ended for them."""
        self._making_room = False
        self._signals = set[asyncio.Task[None]]()
        self._shown: tuple[str, int] | None = None
        self._told_parent: ChildReport | None = None
        self._telling_parent = False

    # What the run shows.

    def add_line(self, text: str, step_id: str | None = None) -> None:
        self.data.add_line(workflow.now(), text, step_id)

    def set_step(self, step_id: str, state: base.StepState, **changes: Any) -> None:
        """Change where a step stands, and show it."""
        self.data.set_step(step_id, state, **changes)
        self.show_change()

    def refuse_signal(self, name: str, reason: str) -> None:
        """Show a signal that changed nothing, for its sender to find."""
        self.data.refuse_signal(workflow.now(), name, reason)
        workflow.set_current_details(current_details(self.data))

    def show_change(self) -> None:
        """Show where the run stands: search attributes, the Web UI's details, its parent."""
        state, open_items = self.data.state, self.data.open_items
        if self._shown != (state.value, open_items):
            self._shown = (state.value, open_items)
            workflow.upsert_search_attributes(
                [
                    ports.RUN_STATE.value_set(state.value),
                    ports.OPEN_ITEMS.value_set(open_items),
                ]
            )
        workflow.set_current_details(current_details(self.data))
        self._tell_parent()

    def _tell_parent(self) -> None:
        """Tell the parent, unless it knows that already; its end the parent sees by itself."""
        parent = self.data.request.parent
        if parent is None or self._telling_parent or self.data.state in base.ENDED:
            return
        report = report_of(self.data, parent)
        if report != self._told_parent:
            self._told_parent, self._telling_parent = report, True
            self.send_signal(self._send_report(parent.run_id, report))

    async def _send_report(self, run_id: str, report: ChildReport) -> None:
        try:
            await workflow.get_external_workflow_handle(run_id).signal(names.CHILD, report)
        except ApplicationError:
            pass  # The parent has ended: it was stopped from outside.
        finally:
            self._telling_parent = False
        self._tell_parent()  # What has changed meanwhile is told in one.

    def send_signal(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send a signal beside whatever else happens."""
        task = asyncio.create_task(sending)
        self._signals.add(task)
        task.add_done_callback(self._signals.discard)

    @property
    def signals_are_sent(self) -> bool:
        """Whether all signals have arrived, or cannot arrive any more."""
        return not self._signals

    # Waiting.

    async def wait(
        self,
        step_id: str,
        state: base.StepState,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        woken_by: Callable[[], bool] | None = None,
        **shown: Any,
    ) -> None:
        """Have a step wait in a state that says what for, until a time, or until it is woken."""
        self.set_step(step_id, state, error=reason, **shown)
        if woken_by is not None:
            await workflow.wait_condition(woken_by)
        elif until is not None:
            await workflow.sleep(max(until - workflow.now(), timedelta(0)))

    async def wait_to_look_again(self, step_id: str, found: base.QuotaWait | base.HaltWait) -> None:
        """Have a step wait until a quota may be free, or a halt lifted, and say so."""
        at = self.data.progress_of(step_id)
        until = at.until or workflow.now() + min(found.pause, next_look(at.looks))
        text = found.story
        if at.until is None:
            self.data.set_progress(step_id, until=until, looks=at.looks + 1)
            if at.looks == 0:
                self.add_line(text, step_id)
        await self.wait(step_id, found.step_state, reason=text, until=until)
        self.data.set_progress(step_id, until=None)

    def end_looking(self, step_id: str) -> None:
        """Note that a step has got what it has waited for."""
        if self.data.progress_of(step_id).looks:
            self.data.set_progress(step_id, looks=0, until=None)
            self.data.set_step(step_id, self.data.steps[step_id].state, error=None)

    async def wait_until_sent(self, arrived: Callable[[], bool], within: timedelta | None) -> bool:
        """Wait for something that is sent to the run; returns whether it came in time."""
        if within is None:
            await workflow.wait_condition(arrived)
        elif not await wait_at_most(arrived, within):
            # What is being judged was in time: the ledger may have taken it already.
            await workflow.wait_condition(lambda: self.data.inbox.idle)
        return arrived()

    # Calling.

    async def call(
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
        """Call an activity by its port, as soon as the ledger knows the run; see ``call_port``.

        ``again`` is what it takes after the ledger had lost the run; by default the same.
        ``here=False``: what it is called for has to be in history before it is called. A cancelled
        call of the ledger raises ``CancelledError``: whoever asked wants it no more.
        """
        pause = FIRST_PAUSE
        self.calls_under_way += 1
        try:
            while True:
                try:
                    result = await self._call_once(port, message, summary, options, local, here)
                except ActivityError as error:
                    of_ledger = options is None and local is None
                    if of_ledger and isinstance(error.cause, CancelledError):
                        # No failure of the step: it waits for the ledger as it waits for a human.
                        raise asyncio.CancelledError from error
                    lost = _reason_if_lost(error)
                    if lost is None:
                        raise
                    self._show_lost(lost)
                else:
                    self._show_lost(None)
                    self.data.keep_head(getattr(result, "head", None))
                    return result
                message = message if again is None else again
                await workflow.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self.calls_under_way -= 1

    async def _call_once(
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
            *(port, message, summary), options=options, local=local, weight=self.data.weight
        )

    async def _make_room(self) -> None:
        while self._local_calls >= MOST_LOCAL:
            if self._making_room:
                await workflow.wait_condition(lambda: not self._making_room)
                continue
            self._making_room = True
            try:
                await workflow.sleep(_NEXT_TASK)
                self._local_calls = 0
            finally:
                self._making_room = False
        self._local_calls += 1

    def _show_lost(self, lost: str | None) -> None:
        if lost == self.data.lost:
            return
        self.data.lost = lost
        self.add_line(lost or "the ledger knows this run again: going on")
        self.show_change()


@dataclass(eq=False)
class RunPart:
    """A part of a run: it writes the run's state, and calls activities through its core.

    The fields of a part are the parts that it needs, and what it keeps of this execution alone.
    """

    _core: RunCore

    @cached_property
    def _data(self) -> RunData:
        return self._core.data


def _may_be_tried_again(error: ActivityError) -> bool:
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return not cause.non_retryable and cause.type not in NON_RETRYABLE
    return not isinstance(cause, CancelledError)


def _reason_if_lost(error: ActivityError) -> str | None:
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == ErrorType.LEDGER_LOST:
        return cause.message
    return None


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
_WAITING: Final = OPEN - {base.StepState.RUNNING}
#: The next execution is begun by the version of the workers that is current then. Servers that do
#: not know this (1.29) leave it with the version of the one before.
NEXT_VERSION: Final = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE


@dataclass(eq=False)
class Continuing(RunPart):
    """Says when a run is to continue as new, and has it do so."""

    _opened_at: int = 0
    _not_before: int = 0
    _hindered: str | None = None

    def note_opened(self) -> None:
        """Note that this execution is open: from here on its history counts."""
        self._opened_at = workflow.info().get_current_history_length()

    def is_due(self) -> bool:
        """Return whether the history is long enough: nothing new is begun in it then."""
        info = workflow.info()
        length = info.get_current_history_length()
        limit = self._data.request.continue_after or MOST_EVENTS
        if length < limit and not info.is_continue_as_new_suggested():
            return False
        size = info.get_current_history_size()
        least = self._opened_at + LEAST_EVENTS if size < LARGEST_BEGUN else 0
        if length < max(least, self._not_before):
            return False
        room = length < MOST_WITH_CHILDREN and size < LARGEST_WITH_CHILDREN
        return not (room and self._has_children())

    def what_fills_history(self) -> str | None:
        """Return why the run cannot go on in this history, nor in another one."""
        info = workflow.info()
        length, size = info.get_current_history_length(), info.get_current_history_size()
        if length < MOST_AT_ALL and size < LARGEST_AT_ALL:
            return None
        return (
            f"its history is as long as it may be ({length} events, {size} bytes), and it could"
            f" not continue as new: {self._hindered or 'what is under way has not ended'}"
        )

    def is_possible(self) -> bool:
        return self.is_due() and self.is_quiet()

    def is_quiet(self) -> bool:
        """Return whether all that is under way waits, and all that has arrived is worked off."""
        data = self._data
        return (
            self._core.calls_under_way == 0
            and data.inbox.idle
            and not data.reported
            and self._core.signals_are_sent
            and not data.stale
            and not data.saga.undoing
            and not self._has_children()
            and workflow.all_handlers_finished()
            and all(
                data.steps[step_id].state in _WAITING or step_id in data.request.plan.lists
                for step_id in data.progress
            )
        )

    def _has_children(self) -> bool:
        # From before its start is known on: the next execution would start another one.
        return bool(self._data.children.running)

    def continue_as_new(self) -> None:
        """Continue as new, or go on for a while if there is too much to carry."""
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
            self._core.add_line(text)
            return
        workflow.continue_as_new(following, initial_versioning_behavior=NEXT_VERSION)


@dataclass(eq=False)
class Admission(RunPart):
    """Has one run wait until it may take steps.

    It is recorded and hears what is sent to it. One that is paused asks all the same: the others
    wait behind it.
    """

    _continuing: Continuing

    def note_queue(self, queued: base.QuotaWait | None) -> None:
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
                asked = base.OfRun(**self._data.ids)
                answer = await self._core.call(ports.ADMIT_RUN, asked, "ask for a place")
                data.queued = answer.queued
                if answer.queued is None:
                    self._core.add_line("has its place: going on")
                self._core.show_change()
        return data.queued is None


def why_not_continued(request: StartRun) -> str | None:
    """Return why a run may not take over what it is given; ``None``: Temporal has continued it."""
    if request.carried is None or workflow.info().continued_run_id is not None:
        return None
    return f"run {request.run_id!r} was started with what only a continued one has"
