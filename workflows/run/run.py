"""What every run does, whatever its steps come from: it is opened, steered, and brought to its end.

A run validates nothing and touches nothing outside: it decides which port to call next, waits for
humans without holding a process, and unwinds what it has done when it cannot finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows import names, ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.compensation import Compensation
from surehand.workflows.contracts.checkpoint import Checkpoint
from surehand.workflows.contracts.effects import FindInterventions
from surehand.workflows.contracts.runs import OpenRun, RunResult, RunView, StartRun
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import CancelRun, Verb
from surehand.workflows.control.budget import Spending
from surehand.workflows.control.child_runs import Children, Reporter, RunSignals
from surehand.workflows.control.inbox import Control, Pausing
from surehand.workflows.control.interrupts import (
    Decisions,
    ExternalEvents,
    Interrupts,
    Interventions,
)
from surehand.workflows.deliveries import Answer, Delivery
from surehand.workflows.errors import ErrorType
from surehand.workflows.run.amendment import Amendment
from surehand.workflows.run.completion import Admission, Completion, Continuing, only_continued
from surehand.workflows.run.views import checkpoint_of, current_details, view_of
from surehand.workflows.state.records import StepFailed
from surehand.workflows.state.run_state import RunData
from surehand.workflows.steps.rules import Freshness
from surehand.workflows.steps.runner import StepRunner
from surehand.workflows.steps.scheduler import Scheduler

T = TypeVar("T")

#: Who cancels when Temporal's own cancellation arrives: it carries no actor.
TEMPORAL: Final = "temporal"
#: Who has a run end whose history is full.
ITSELF: Final = "the run itself"
#: Characters of the message that a run fails with; all of it is in its result.
LONGEST_ERROR: Final = 4000


class Run:
    """One durable execution: its parts, and what it takes from outside."""

    @workflow.init
    def __init__(self, request: StartRun) -> None:
        info = workflow.info()
        continued = only_continued(request) is None
        known = request if continued else request.model_copy(update={"carried": None})
        data = self._data = RunData.new(known, info.run_id, workflow.now())
        self._request = request
        self._cancelled_by_temporal = False
        self._call = call = ActivityClient(data, self._changed)
        self._signals = signals = RunSignals()
        self._reporter = Reporter(data, signals)
        self._control = control = Control(data, call, self._changed, self._refuse_signal)
        decisions = Decisions(data, call)
        self._freshness = Freshness(data, decisions)
        self._interventions = Interventions(data, call, control, self._changed)
        self._compensation = Compensation(data, self._interventions, call, self._changed)
        self._children = Children(
            *(data, call, signals, self._compensation.undo_child, self._changed)
        )
        control.take(Verb.DECIDE, decisions.judge, elsewhere=self._children.decide)
        control.take_steering(Verb.CANCEL, self._take_cancel)
        control.forward = self._children.forward
        Pausing(data, control, self._freshness.look, self._compensation.recall)
        interrupts = Interrupts(data, call, control, self._children, self._changed)
        events = ExternalEvents(data, control, interrupts, self._changed)
        self._spending = Spending(data, control)
        self._completion = Completion(
            *(data, decisions, call, signals, self._compensation, self._changed)
        )
        self._runner = StepRunner(
            *(data, decisions, self._interventions, call, self._changed),
            *(self._compensation.undo, interrupts, self._children, events),
            self._spending,
        )
        self._amendment = Amendment(
            *(data, call, control, decisions, self._compensation),
            *(self._children, lambda: self._runner.tool_calls.heard),
        )
        self._continuing = Continuing(data, call, signals)
        self._admission = Admission(data, call, self._continuing, self._changed)
        self._scheduler = Scheduler(
            *(data, call, self._runner, self._changed),
            *(self._compensation.undo, interrupts, self._continuing.due),
        )
        self._shown: tuple[str, int] | None = None
        self._watching: Callable[[RunState], None] | None = None
        # What is no tenant's name goes into no query; the run is refused when it is opened.
        if request.problem() is None:
            workflow.upsert_search_attributes([names.TENANT.value_set(request.tenant)])

    async def drive(self, forward: Callable[[], Awaitable[str | None]]) -> RunResult:
        """Open the run, take its steps, and bring it to its end.

        Args:
            forward: Takes the steps, and returns why the run cannot finish, or ``None``. It ends
                when ``data.cancel`` is set.

        Raises:
            ApplicationError: ``PlanInvalid``, ``RunIdTaken``, ``StartRefused``, or ``RunFailed``
                with the result in its details.
        """
        request = self._request
        await self._undisturbed(self._open(request))
        inbox = asyncio.create_task(self._control.work())
        # What was sent while the run was being opened is judged before anything is called.
        await self._undisturbed(workflow.wait_condition(lambda: self._data.inbox.idle))
        failure = await self._within_history(lambda: self._admitted(forward))
        self._data.closing = True
        result = await self._undisturbed(self._completion.close(failure))
        inbox.cancel()
        if result.state is RunState.FAILED:
            raise ApplicationError(
                (result.error or "failed")[:LONGEST_ERROR],
                result,
                type=ErrorType.RUN_FAILED,
                non_retryable=True,
            )
        # A parent needs to know what its child has left.
        ended = result.state is RunState.CANCELLED and request.parent is None
        if self._cancelled_by_temporal and ended:
            raise asyncio.CancelledError
        return result

    async def _admitted(self, forward: Callable[[], Awaitable[str | None]]) -> str | None:
        """Take the steps once the run may."""
        admitted = False
        try:
            admitted = await self._admission.wait()
        except asyncio.CancelledError:
            self._note_cancellation()
        if admitted:
            return await forward()
        self._data.stopping = True  # nothing has begun
        return None

    async def _within_history(self, forward: Callable[[], Awaitable[str | None]]) -> str | None:
        """Take the steps; a run fails before the server would end it for its history."""
        data, ours = self._data, CancelRun(actor=ITSELF)

        async def watch() -> None:
            await workflow.wait_condition(
                lambda: not data.closing and self._continuing.too_long() is not None
            )
            data.cancel = data.cancel or ours

        watching = asyncio.create_task(watch())
        try:
            failure = await forward()
        finally:
            watching.cancel()
        if data.cancel is ours:
            data.cancel = None
            return failure or self._continuing.too_long()
        return failure

    async def _undisturbed(self, work: Coroutine[Any, Any, T]) -> T:
        """Bring work to its end although Temporal cancels the run meanwhile."""
        task = asyncio.create_task(work)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.done() or task.cancelling():
                    # Not the run's cancellation: this worker drops the run from its memory.
                    raise
                self._note_cancellation()

    def _note_cancellation(self) -> None:
        self._cancelled_by_temporal = True
        if not self._data.ending:
            self._data.cancel = CancelRun(actor=TEMPORAL)

    async def _open(self, request: StartRun) -> None:
        info = workflow.info()
        run_id, problem = info.workflow_id, request.problem()
        if problem is None and request.run_id != run_id:
            problem = f"run {request.run_id!r} has workflow id {run_id!r}"
        if problem is not None:
            raise ApplicationError(problem, type=ErrorType.RUN_ID_INVALID, non_retryable=True)
        parent = None if info.parent is None else info.parent.workflow_id
        if request.parent is not None and request.parent.run_id != parent:
            # Whoever starts a child run answers for it: only its parent may say so.
            reason = f"run {request.parent.run_id!r} has not started run {run_id!r}"
            raise ApplicationError(reason, type=ErrorType.START_REFUSED, non_retryable=True)
        made_by, started = request.plan.code or names.WORKFLOW, info.workflow_type
        if made_by != started:
            reason = f"run {run_id!r} was started as {started}, its plan is one of {made_by}"
            raise ApplicationError(reason, type=ErrorType.PLAN_INVALID, non_retryable=True)
        if request.carried is not None:
            await self._open_again(request)
            return
        opening = OpenRun(
            request=request,
            execution=info.first_execution_run_id,
            started_at=info.workflow_start_time,
        )
        await self._record(opening)

    async def _open_again(self, request: StartRun) -> None:
        """Go on with a run that another execution has opened."""
        refused = only_continued(request)
        if refused is not None:
            raise ApplicationError(refused, type=ErrorType.RUN_ID_INVALID, non_retryable=True)
        first = workflow.info().first_execution_run_id
        asked = OpenRun(request=self._data.request, execution=first, continues=True)
        await self._record(asked)

    async def _record(self, asked: OpenRun) -> None:
        try:
            opened = await self._call(ports.OPEN_RUN, asked, "open the run")
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError):
                self._data.ended, self._data.error = RunState.FAILED, error.cause.message
                self._changed()
                raise error.cause from None
            raise
        self._data.tools.update(opened.tools)
        self._data.keep_head(opened.head)
        self._data.note_foreign(opened.foreign)
        self._data.weight = opened.weight
        self._admission.opened(opened.queued)
        self._continuing.begun()
        self._changed()

    async def _complete(self) -> bool:
        """Return whether the run may complete; mostly that is recorded then.

        If what other runs have made for it does not stand any more, a human takes note of it
        first, or cancels the run.

        Raises:
            StepFailed: What this run itself has made does not stand any more.
        """
        data = self._data
        relies = data.replays or any(view.made_by for view in data.steps.values())
        # Calls of a revoked batch may still be claimed: `undo_orphaned` bars them first.
        if not relies and not data.revoked_batches:
            # Before anything else can happen: what is recorded as the end is not to be cancelled.
            data.closing = True
            if await self._undisturbed(self._completion.complete()):
                return True
            data.closing = False
            if self._cancelled_by_temporal:
                self._note_cancellation()
        lost = await self._undisturbed(self._compensation.undo_orphaned())
        if lost:
            raise StepFailed(f"what {', '.join(lost)} did has been undone, before a reset")
        if not relies:
            return True
        asked = FindInterventions(tenant=data.request.tenant, run_id=data.request.run_id)
        found = await self._undisturbed(
            self._call(ports.FIND_INTERVENTIONS, asked, "look for what was undone")
        )
        for item in found.interventions:
            self._interventions.show(item)
        await workflow.wait_condition(
            lambda: not data.interventions or self._data.cancel is not None
        )
        return not found.interventions

    def watch(self, told: Callable[[RunState], None]) -> None:
        """Have somebody told of each state that the run shows, again in each replay."""
        self._watching = told

    def _changed(self) -> None:
        """Show where the run stands: search attributes and the Web UI's current details."""
        state, open_items = self._data.state.value, self._data.open_items
        if self._shown != (state, open_items):
            self._shown = (state, open_items)
            workflow.upsert_search_attributes(
                [
                    names.RUN_STATE.value_set(state),
                    names.OPEN_ITEMS.value_set(open_items),
                ]
            )
            if self._watching is not None:
                self._watching(self._data.state)
        workflow.set_current_details(current_details(self._data))
        self._reporter.changed()

    # Whatever is sent, also with no argument or with several, must not raise here: the run could
    # not move on any more.
    @workflow.signal(name=names.CHILD)
    def child_signal(self, report: Any = None, *_: Any) -> None:
        """Take note of where a child run stands."""
        self._children.report(report)

    @workflow.signal(name=names.FORWARDED)
    def forwarded_signal(self, forwarded: Any = None, *_: Any) -> None:
        """Take what this run's parent hands on; the ledger knows whether the parent has it."""
        self._control.receive_forwarded(forwarded)

    async def _take_cancel(self, cancel: CancelRun, _: Delivery) -> Answer:
        if self._data.closing:
            return Answer(accepted=True, message="the run is ending already; nothing changed")
        if self._data.cancel is not None:
            return Answer(
                accepted=True, message=f"{self._data.cancel.actor} has cancelled the run already"
            )
        self._data.cancel = cancel
        return Answer(accepted=True, message=f"the run is being cancelled ({cancel.mode})")

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, _: Sequence[RawValue]) -> None:
        """Note a signal of an unknown name, which would otherwise vanish without a trace."""
        known = ", ".join(self._control.verbs)
        self._refuse_signal(name, f"there is no such signal; known are {known}")

    def _refuse_signal(self, name: str, reason: str) -> None:
        self._data.refuse_signal(workflow.now(), name, reason)
        workflow.set_current_details(current_details(self._data))

    @workflow.query(name=names.VIEW)
    def view(self) -> RunView:
        """Return where the run stands."""
        return view_of(self._data)

    @workflow.query(name=names.CHECKPOINT)
    def checkpoint(self) -> Checkpoint:
        """Return the run's state as one document."""
        return checkpoint_of(self._data, workflow.now(), self._spending.shown())


def _take_verb(verb: Verb) -> None:
    """Define a verb's signal and update for all runs: what the SDK finds out of them, it does once.

    Whatever is sent, also with no argument or with several, must not raise in a signal: the run
    could not move on any more.
    """

    @workflow.signal(name=verb)
    def by_signal(run: Run, payload: Any = None, *_: Any) -> None:
        run._control.receive_signal(verb, payload)

    @workflow.update(name=verb)
    async def by_update(run: Run, payload: Any = None, *_: Any) -> Any:
        return await run._control.answer_update(verb, payload)

    setattr(Run, f"signal_{verb}", by_signal)
    setattr(Run, f"update_{verb}", by_update)


for _verb in Verb:
    _take_verb(_verb)


async def ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until all of them have ended, however they end."""
    await workflow.wait_condition(lambda: all(task.done() for task in tasks))
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at: asyncio would complain of what nobody has
