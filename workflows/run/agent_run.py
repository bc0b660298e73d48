"""What every run does, whatever its steps come from, to its end; and the run of a plan.

A run validates nothing and touches nothing outside: it decides which port to call next, waits for
humans without holding a process, and unwinds what it has done when it cannot finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows import names, ports
from surehand.workflows.contracts import runs
from surehand.workflows.contracts.base import OfRun, RunState, StepState
from surehand.workflows.contracts.runs import RunResult, StartRun
from surehand.workflows.contracts.steering import CancelMode, CancelRun, Verb
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import Goto, Step
from surehand.workflows.run import run_core, step_rules
from surehand.workflows.run.child_runs import ChildRunner
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.deliveries import Answer, Delivery, accept, refuse
from surehand.workflows.run.inbox import InboxWorker, VerbHandler
from surehand.workflows.run.questions import Approvals, Questions
from surehand.workflows.run.run_changes import Amendment, Freshness, Pausing
from surehand.workflows.run.run_data import OPEN, WAITING, RunData
from surehand.workflows.run.run_records import StepFailed
from surehand.workflows.run.run_views import checkpoint_of, result_of, view_of
from surehand.workflows.run.step_calls import Spending, ToolCalls
from surehand.workflows.run.step_runner import StepRunner
from surehand.workflows.run.step_scheduler import Scheduler

T = TypeVar("T")

#: Who cancels when Temporal's own cancellation arrives: it carries no actor.
TEMPORAL: Final = "temporal"
#: Who has a run end whose history is full.
ITSELF: Final = "the run itself"
#: Characters of the message that a run fails with; all of it is in its result.
LONGEST_ERROR: Final = 4000


class BaseRun:
    """One durable execution: its parts, and what it takes from outside."""

    @workflow.init
    def __init__(self, request: StartRun) -> None:
        info = workflow.info()
        continued = run_core.why_not_continued(request) is None
        known = request if continued else request.model_copy(update={"carried": None})
        data = self._data = RunData.new(known, info.run_id, workflow.now())
        self._request = request
        self._cancelled_by_temporal = False
        self._declined = False
        core = self._core = run_core.RunCore(data)
        approvals = Approvals(core)
        compensation = self._compensation = Compensation(core)
        children = self._children = ChildRunner(core, compensation)
        questions = Questions(core)
        spending = Spending(core)
        tool_calls = ToolCalls(core, compensation, spending)
        runner = self._runner = StepRunner(
            core, approvals, compensation, questions, children, tool_calls
        )
        freshness = self._freshness = Freshness(core, approvals)
        pausing = Pausing(core, compensation, freshness)
        self._amendment = Amendment(core, approvals, compensation, tool_calls)
        continuing = self._continuing = run_core.Continuing(core)
        self._admission = run_core.Admission(core, continuing)
        self._scheduler = Scheduler(core, runner, compensation, questions, continuing)
        self._completion = Completion(core, approvals, compensation)
        handlers = {
            Verb.CANCEL: VerbHandler(self._take_cancel),
            Verb.PAUSE: VerbHandler(pausing.pause),
            Verb.RESUME: VerbHandler(pausing.resume, pausing.find_token),
            # An answer can be quicker than the report that its question is recorded.
            Verb.ANSWER: VerbHandler(
                questions.take_answers, questions.find_questions, lambda: not data.opening
            ),
            Verb.EVENT: VerbHandler(questions.take_event),
            Verb.TOP_UP: VerbHandler(spending.top_up),
            Verb.AMEND: VerbHandler(self._amendment.amend),
            Verb.RESOLVE: VerbHandler(compensation.settle_intervention),
        }
        self._inbox = InboxWorker(core, approvals, children, handlers)
        # What is no tenant's name goes into no query; the run is refused when it is opened.
        if request.problem() is None:
            workflow.upsert_search_attributes(
                [
                    ports.TENANT.value_set(request.tenant),
                    ports.PLAN.value_set(request.plan.name),
                ]
            )

    async def drive(self, forward: Callable[[], Awaitable[str | None]]) -> RunResult:
        """Open the run, take its steps, and bring it to its end.

        ``forward`` takes the steps, and returns why the run cannot finish, or ``None``. It ends
        when ``data.cancel`` is set.

        Raises:
            ApplicationError: ``PlanInvalid``, ``RunIdTaken``, ``StartRefused``, or ``RunFailed``
                with the result in its details. A run that people rejected returns its result.
        """
        request = self._request
        await self._finish_despite_cancel(self._open_run(request))
        inbox = asyncio.create_task(self._inbox.work())
        # What was sent while the run was being opened is judged before anything is called.
        await self._finish_despite_cancel(workflow.wait_condition(lambda: self._data.inbox.idle))
        failure = await self._forward_within_history(lambda: self._take_steps(forward))
        self._data.closing = True
        result = await self._finish_despite_cancel(self._completion.close_run(failure))
        inbox.cancel()
        # If people say no, the run ends as they want: Temporal shows it as completed, unless
        # something is left to look after.
        as_decided = self._declined and not result.uncompensated
        if result.state is RunState.FAILED and not as_decided:
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

    async def _take_steps(self, forward: Callable[[], Awaitable[str | None]]) -> str | None:
        admitted = False
        try:
            admitted = await self._admission.wait_for_place()
        except asyncio.CancelledError:
            self._note_cancellation()
        if admitted:
            return await forward()
        self._data.stopping = True  # nothing has begun
        return None

    async def _forward_within_history(
        self, forward: Callable[[], Awaitable[str | None]]
    ) -> str | None:
        """Take the steps; a run fails before the server would end it for its history."""
        data, ours = self._data, CancelRun(actor=ITSELF)

        async def watch() -> None:
            await workflow.wait_condition(
                lambda: not data.closing and self._continuing.what_fills_history() is not None
            )
            data.cancel = data.cancel or ours

        watching = asyncio.create_task(watch())
        try:
            failure = await forward()
        finally:
            watching.cancel()
        if data.cancel is ours:
            data.cancel = None
            return failure or self._continuing.what_fills_history()
        return failure

    async def _finish_despite_cancel(self, work: Coroutine[Any, Any, T]) -> T:
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

    def _note_failure(self, failed: StepFailed) -> None:
        self._declined = failed.declined

    def _note_cancellation(self) -> None:
        self._cancelled_by_temporal = True
        if not self._data.ending:
            self._data.cancel = CancelRun(actor=TEMPORAL)

    async def _open_run(self, request: StartRun) -> None:
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
        if (refused := run_core.why_not_continued(request)) is not None:
            raise ApplicationError(refused, type=ErrorType.RUN_ID_INVALID, non_retryable=True)
        continues = request.carried is not None
        asked = runs.OpenRun(
            request=self._data.request if continues else request,
            execution=info.first_execution_run_id,
            continues=continues,
            started_at=None if continues else info.workflow_start_time,
        )
        try:
            opened = await self._core.call(ports.OPEN_RUN, asked, "open the run")
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError):
                self._data.ended, self._data.error = RunState.FAILED, error.cause.message
                self._core.show_change()
                raise error.cause from None
            raise
        self._data.tools.update(opened.tools)
        self._data.note_foreign(opened.foreign)
        self._data.weight = opened.weight
        self._admission.note_queue(opened.queued)
        self._continuing.note_opened()
        self._core.show_change()

    async def _try_to_complete(self) -> bool:
        """Return whether the run may complete; mostly that is recorded then.

        If what other runs have made for it does not stand any more, a human takes note of it first,
        or cancels the run. ``StepFailed``: what this run itself has made does not stand any more.
        """
        data = self._data
        if not data.inbox.idle:
            # Sent before the last step had ended: a cancel still undoes it all.
            await self._finish_despite_cancel(workflow.wait_condition(lambda: data.inbox.idle))
            return False
        relies = data.replays or any(view.made_by for view in data.steps.values())
        # Calls of a revoked batch may still be claimed: `undo_orphaned` bars them first.
        if not relies and not data.revoked_batches:
            # Before anything else can happen: what is recorded as the end is not to be cancelled.
            data.closing = True
            completing = self._completion.complete_if_nothing_else_stands()
            if await self._finish_despite_cancel(completing):
                return True
            data.closing = False
            if self._cancelled_by_temporal:
                self._note_cancellation()
        lost = await self._finish_despite_cancel(self._compensation.undo_orphaned())
        if lost:
            raise StepFailed(f"what {', '.join(lost)} did has been undone, before a reset")
        if not relies:
            return True
        asked = OfRun(**data.ids)
        found = await self._finish_despite_cancel(
            self._core.call(ports.FIND_INTERVENTIONS, asked, "look for what was undone")
        )
        for item in found.interventions:
            self._compensation.show_intervention(item)
        await workflow.wait_condition(lambda: not data.interventions or data.cancel is not None)
        return not found.interventions

    @property
    def run_state(self) -> RunState:
        return self._data.state

    # Whatever is sent, also with no argument or with several, must not raise here: the run could
    # not move on any more.
    @workflow.signal(name=names.CHILD)
    def child_signal(self, report: Any = None, *_: Any) -> None:
        """Take note of where a child run stands."""
        self._children.take_report(report)

    @workflow.signal(name=names.FORWARDED)
    def forwarded_signal(self, forwarded: Any = None, *_: Any) -> None:
        """Take what this run's parent hands on; the ledger knows whether the parent has it."""
        self._inbox.receive_forwarded(forwarded)

    async def _take_cancel(self, cancel: CancelRun, _: Delivery) -> Answer:
        if (first := self._data.cancel) is not None:
            answer = accept if first.mode is cancel.mode else refuse
            return answer(f"{first.actor} has cancelled the run already ({first.mode})")
        if self._data.closing:
            return accept("the run is ending already; nothing changed")
        self._data.cancel = cancel
        return accept(f"the run is being cancelled ({cancel.mode})")

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, _: Sequence[RawValue]) -> None:
        """Note a signal of an unknown name, which would otherwise vanish without a trace."""
        self._core.refuse_signal(name, f"there is no such signal; known are {', '.join(Verb)}")

    @workflow.query(name=names.VIEW)
    def view(self) -> runs.RunView:
        """Return where the run stands."""
        return view_of(self._data)

    @workflow.query(name=names.CHECKPOINT)
    def checkpoint(self) -> runs.Checkpoint:
        """Return the run's state as one document."""
        return checkpoint_of(self._data, workflow.now())


def _take_verb(verb: Verb) -> None:
    """Define a verb's signal and update for all runs: what the SDK finds out of them, it does once.

    Whatever is sent, also with no argument or with several, must not raise in a signal: the run
    could not move on any more.
    """

    @workflow.signal(name=verb)
    def by_signal(run: BaseRun, payload: Any = None, *_: Any) -> None:
        run._inbox.receive_signal(verb, payload)

    @workflow.update(name=verb)
    async def by_update(run: BaseRun, payload: Any = None, *_: Any) -> Any:
        return await run._inbox.answer_update(verb, payload)

    setattr(BaseRun, f"signal_{verb}", by_signal)
    setattr(BaseRun, f"update_{verb}", by_update)


for _verb in Verb:
    _take_verb(_verb)


async def wait_until_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until all of them have ended, however they end."""
    await workflow.wait_condition(lambda: all(task.done() for task in tasks))
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at: asyncio would complain of what nobody has


@workflow.defn(name=names.WORKFLOW, sandboxed=False)
class AgentRun(BaseRun):
    """One durable execution of a plan."""

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        """Run the plan and return its result; a failure raises ``RunFailed`` with it."""
        return await self.drive(self._forward)

    async def _forward(self) -> str | None:
        """Run the plan's steps; returns why it cannot finish, or ``None``."""
        data, running = self._data, dict[str, asyncio.Task[Goto | None]]()
        if not data.lives:
            data.settled |= self._take_over_facts()
        failure, dropped = None, False
        try:
            while self._data.cancel is None:
                if self._may_amend(running):
                    await self._finish_despite_cancel(self._amendment.apply_plan(running))
                self._freshness.begin_reads()
                knows = self._runner.tool_calls.has_report
                ready = self._find_ready(running)
                if (running or ready) and self._continuing.is_possible():
                    # Whoever has woken up with it goes first: else a wait that is over, such as an
                    # approval's, is over in each execution, and none of them gets to it.
                    await asyncio.sleep(0)
                    # The end of a step is known here only, until it is settled.
                    if not any(task.done() for task in running.values()):
                        if self._continuing.is_possible():
                            self._continuing.continue_as_new()
                        continue
                held = self._continuing.is_due()
                for step in ready:
                    # What was under way in the execution before goes on, whatever is held back.
                    under_way = step.id in data.progress or step.id in data.stale
                    if not held or under_way or knows(step.id):
                        running[step.id] = asyncio.create_task(self._scheduler.run_planned(step))
                if not running and not ready:
                    if data.amending:
                        await workflow.wait_condition(
                            lambda: (
                                not data.amending
                                or data.cancel is not None
                                or self._may_amend(running)
                            )
                        )
                    elif await self._try_to_complete() and not data.amending:
                        return None
                    continue
                await workflow.wait_condition(partial(self._has_something_to_do, running, held))
                for step_id in [s for s, task in running.items() if task.done()]:
                    step = data.request.plan.step(step_id)
                    task = running.pop(step_id)
                    await self._finish_despite_cancel(self._freshness.note_end(step, running))
                    failure = failure or self._settle_step(step, task)
                if failure is not None:
                    break
        except StepFailed as lost:
            failure = lost.reason
        except asyncio.CancelledError:
            self._note_cancellation()
        except GeneratorExit:
            dropped = True  # Nobody has this run any more: there is nothing to wait in.
            raise
        finally:
            if not dropped:
                # A call under way ends and is recorded; a wait for a human ends at once.
                data.stopping = True
                for task in running.values():
                    task.cancel()
                await self._finish_despite_cancel(wait_until_ended(list(running.values())))
        return failure

    def _take_over_facts(self) -> set[str]:
        """Take the facts of the run that this one begins from; returns the steps that are done."""
        data, linked = self._data, self._data.request.linked
        if linked is None:
            return set()
        taken = {k: v for k, v in linked.outputs.items() if k in data.steps}
        for step_id, output in taken.items():
            data.facts[step_id] = output
            data.set_step(
                step_id, StepState.SUCCEEDED, output=output, made_by=linked.run_id, replayed=True
            )
        self._core.add_line(f"begins from run {linked.run_id}")
        return set(taken)

    def _find_ready(self, running: dict[str, asyncio.Task[Goto | None]]) -> list[Step]:
        """Return the steps that can begin; held for another plan, those that have been called."""
        data, knows = self._data, self._runner.tool_calls.has_report
        ready = data.request.plan.ready(frozenset(data.settled), frozenset(running))
        if not data.amending:
            return ready
        # What had begun in the execution before is under way: the plan waits for it.
        begun = data.unacknowledged | data.progress.keys()
        return [step for step in ready if knows(step.id) or step.id in begun]

    def _may_amend(self, running: dict[str, asyncio.Task[Goto | None]]) -> bool:
        """Return whether all that was done under the plan so far has had its turn."""
        return self._amendment.is_due(running) and not self._find_ready(running)

    def _has_something_to_do(
        self, running: dict[str, asyncio.Task[Goto | None]], held: bool
    ) -> bool:
        return (
            any(task.done() for task in running.values())
            or self._data.cancel is not None
            or self._may_amend(running)
            or self._freshness.has_reads_to_begin()
            or self._continuing.is_possible()
            or self._continuing.is_due() is not held
        )

    def _settle_step(self, step: Step, task: asyncio.Task[Goto | None]) -> str | None:
        """Take note of a finished step; returns why the run cannot go on, or ``None``."""
        plan, settled = self._data.request.plan, self._data.settled
        settled.add(step.id)
        try:
            follows = task.result()
        except StepFailed as failed:
            goes_on = step_rules.after_failure(plan, step, failed)
            if goes_on is None:
                self._note_failure(failed)
                return f"step {step.id}: {failed.reason}"
            follows = goes_on.at
        if follows is not None:
            for skipped in plan.skipped_by_goto(step.id, follows.goto) - settled:
                if self._data.steps[skipped].state is StepState.PENDING:
                    self._data.set_step(skipped, StepState.SKIPPED)
                    settled.add(skipped)
            self._core.add_line(f"going on at {follows.goto}", step.id)
        return None


#: Of the states in which a step waits, those in which its call has been made.
_CALLED: Final = frozenset({StepState.WAITING_RATE_LIMIT, StepState.PAUSED_FAILURE})


@dataclass(eq=False)
class Completion(run_core.RunPart):
    """Brings one run to its end."""

    _approvals: Approvals
    _compensation: Compensation
    _completed: runs.RunClosed | None = None

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

    async def _record_end(self, state: RunState, *, standing: bool = False) -> runs.RunClosed:
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
            runs.CloseRun(
                **data.ids,
                state=state,
                error=data.error,
                skipped={v.id: v.tool for v in data.in_state(StepState.SKIPPED)},
                standing=data.saga.standing_digest() if standing else None,
            ),
            "close the run",
        )

    async def _show_end(self, state: RunState, closed: runs.RunClosed) -> RunResult:
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
