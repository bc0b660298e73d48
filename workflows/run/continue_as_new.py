"""Continuing a run as new: Temporal begins its history anew, and nothing is lost.

A history that grows without end makes each replay slower, and the server ends the run at last. So
a run goes on in another execution, under its own id, once its history is long: at a point where no
call is under way and nothing that has arrived is unread. What waits goes on waiting there.
"""

from __future__ import annotations

from typing import Final

from temporalio import workflow

from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.starting import Linked, StartRun
from surehand.workflows.contracts.states import StepState
from surehand.workflows.control.child_runs import RunSignals
from surehand.workflows.plan.plan import ITERATION
from surehand.workflows.run.snapshot import snapshot
from surehand.workflows.state.run_state import OPEN, RunData

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
