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

from workflows import names, ports
from workflows.amending import Amending
from workflows.approvals import Gate
from workflows.book import Book, Question
from workflows.budget import Spending
from workflows.calls import Calls
from workflows.children import Children
from workflows.closing import Closing
from workflows.continuing import Continuing, only_continued
from workflows.contracts import (
    CancelRun,
    Checkpoint,
    DescribeTools,
    FindQuestions,
    OpenRun,
    RunResult,
    RunState,
    RunView,
    StartRun,
    ToolSpec,
    Verb,
    Verdict,
    VerdictCode,
)
from workflows.desk import Desk
from workflows.details import current_details
from workflows.ends import StepFailed
from workflows.errors import ErrorType
from workflows.freshness import Freshness
from workflows.helm import Answer, Delivery, Helm
from workflows.interrupts import Interrupts
from workflows.outside import Outside
from workflows.pausing import Pausing
from workflows.reporting import Reporter
from workflows.saga import Saga
from workflows.stepper import Stepper
from workflows.steps import Steps
from workflows.unwinding import Unwinding
from workflows.views import checkpoint_of, view_of

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
        gate = Gate(request.run_id, workflow.info().run_id)
        own = request.model_copy(update={"carried": None})
        self._request = request
        self._book = Book(own, workflow.now(), gate, Saga())
        self._tools: dict[str, ToolSpec] = {}
        self._call = Calls(self._book, self._changed)
        self._helm = Helm(self._book, self._call, self._refuse_signal)
        self._desk = Desk(self._book, self._call, self._helm, self._changed)
        self._reporter = Reporter(self._book)
        self._helm.take(Verb.CANCEL, CancelRun, self._take_cancel)
        Pausing(self._book, self._helm, self._look_again, self._recall)
        self._unwinding = Unwinding(self._book, self._desk, self._call, self._changed)
        self._children = Children(self._book, self._call, self._unwinding.undo_child, self._changed)
        self._helm.forward = self._children.forward
        self._interrupts = Interrupts(
            self._book, self._call, self._helm, self._children, self._changed
        )
        self._outside = Outside(self._book, self._helm, self._interrupts, self._changed)
        self._spending = Spending(self._book, self._helm, self._changed)
        self._closing = Closing(self._book, self._desk, self._call, self._unwinding, self._changed)
        self._cancelled_by_temporal = False
        self._stepper = Stepper(
            *(self._book, self._desk, self._call, self._tools, self._changed),
            *(self._unwinding.undo, self._interrupts, self._children, self._outside),
            self._spending,
        )
        self._amending = Amending(
            *(self._book, self._call, self._helm, self._desk, self._unwinding),
            *(self._children, self._tools, lambda: self._stepper.calling.heard),
        )
        self._freshness = Freshness(self._book, self._stepper.facts, self._tools, self._desk)
        self._continuing = Continuing(
            *(self._book, self._call, self._desk, self._tools, self._stepper.calling),
            parts=(
                *(self._helm, self._desk, self._interrupts, self._outside, self._spending),
                *(self._amending, self._stepper.asking, self._stepper.calling),
            ),
        )
        self._steps = Steps(
            *(self._book, self._call, self._stepper, self._changed),
            *(self._unwinding.undo, self._interrupts, self._continuing.due),
        )
        self._settled: set[str] = set()
        if request.carried is not None:
            self._stepper.facts.update(self._continuing.restore(request.carried))
            self._settled.update(request.carried.settled)
        self._shown: tuple[str, int] | None = None
        # What is no tenant's name goes into no query; the run is refused when it is opened.
        if request.problem() is None:
            workflow.upsert_search_attributes([names.TENANT.value_set(request.tenant)])

    def _look_again(self) -> list[str]:
        return self._freshness.look()

    async def _recall(self) -> list[str]:
        return await self._unwinding.recall()

    async def drive(self, forward: Callable[[], Awaitable[str | None]]) -> RunResult:
        """Open the run, take its steps, and bring it to its end.

        Args:
            forward: Takes the steps, and returns why the run cannot finish, or ``None``. It ends
                when ``book.cancel`` is set.

        Raises:
            ApplicationError: ``PlanInvalid``, ``RunIdTaken``, ``StartRefused``, or ``RunFailed``
                with the result in its details.
        """
        request = self._request
        await self._undisturbed(self._open(request))
        desk = asyncio.create_task(self._desk.work())
        # What was sent while the run was being opened is judged before anything is called.
        await self._undisturbed(workflow.wait_condition(lambda: self._desk.idle))
        failure = await self._within_history(forward)
        self._book.closing = True
        result = await self._undisturbed(self._closing.close(failure))
        desk.cancel()
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

    async def _within_history(self, forward: Callable[[], Awaitable[str | None]]) -> str | None:
        """Take the steps; a run fails before the server would end it for its history."""
        book, ours = self._book, CancelRun(actor=ITSELF)

        async def watch() -> None:
            await workflow.wait_condition(lambda: self._continuing.too_long() is not None)
            book.cancel = book.cancel or ours

        watching = asyncio.create_task(watch())
        try:
            failure = await forward()
        finally:
            watching.cancel()
        if book.cancel is ours:
            book.cancel = None
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
        if not self._book.ending:
            self._book.cancel = CancelRun(actor=TEMPORAL)

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
        described = await self._call(
            ports.DESCRIBE_TOOLS, DescribeTools(plan=request.plan), "describe the plan's tools"
        )
        if described.problems:
            problems = [problem.model_dump() for problem in described.problems]
            text = "; ".join(f"{p.where}: {p.reason}" for p in described.problems)[:LONGEST_ERROR]
            self._book.ended, self._book.error = RunState.FAILED, text
            self._changed()
            raise ApplicationError(text, problems, type=ErrorType.PLAN_INVALID, non_retryable=True)
        self._tools.update(described.tools)
        opening = OpenRun(
            request=request,
            tools=described.tools,
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
        asked = OpenRun(request=self._book.request, tools={}, execution=first, continues=True)
        await self._record(asked)

    async def _record(self, asked: OpenRun) -> None:
        try:
            opened = await self._call(ports.OPEN_RUN, asked, "open the run")
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError):
                self._book.ended, self._book.error = RunState.FAILED, error.cause.message
                self._changed()
                raise error.cause from None
            raise
        self._book.saw(opened.head)
        self._continuing.begun()
        self._changed()

    async def _all_stands(self) -> bool:
        """Return whether what other runs have made for this one still stands.

        Where it does not, a human takes note of it first, or cancels the run.

        Raises:
            StepFailed: What this run itself has made does not stand any more.
        """
        book = self._book
        lost = await self._undisturbed(self._unwinding.undo_orphaned())
        if lost:
            raise StepFailed(f"what {', '.join(lost)} did has been undone, before a reset")
        if not any(view.made_by for view in book.steps.values()):
            return True
        asked = FindQuestions(tenant=book.request.tenant, run_id=book.request.run_id)
        found = await self._undisturbed(
            self._call(ports.FIND_QUESTIONS, asked, "look for what was undone")
        )
        for item in found.questions:
            self._desk.ask(Question(item.intervention_id, item.step_id, item.question))
        await workflow.wait_condition(lambda: not book.questions or self._book.cancel is not None)
        return not found.questions

    def _changed(self) -> None:
        """Show where the run stands: search attributes and the Web UI's current details."""
        gate = self._book.gate
        # What was decided early is pending, too: nothing has come of it yet.
        state, pending = self._book.state.value, len(gate.pending) + len(gate.held)
        if self._shown != (state, pending):
            self._shown = (state, pending)
            workflow.upsert_search_attributes(
                [
                    names.RUN_STATE.value_set(state),
                    names.PENDING_APPROVALS.value_set(pending),
                ]
            )
        workflow.set_current_details(current_details(self._book))
        self._reporter.changed()

    # Whatever is sent, also with no argument or with several, must not raise here: the run could
    # not move on any more.
    @workflow.signal(name=names.DECIDE)
    def decide_signal(self, decision: Any = None, *_: Any) -> None:
        """Take a decision; its verdict shows in the view and in the events."""
        if self._children.decides(decision) is None:
            self._book.gate.receive(decision)

    @workflow.update(name=names.DECIDE)
    async def decide(self, decision: Any = None, *_: Any) -> Verdict:
        """Take a decision and return its verdict; an early one is held and says so at once."""
        child = self._children.decides(decision)
        if child is not None:
            return Verdict(
                decision_id="",
                approval_id=str(decision["approval_id"]),
                code=VerdictCode.HELD,
                message=f"handed on to child run {child}",
            )
        decision_id = self._book.gate.receive(decision)
        verdicts = self._book.gate.verdicts
        await workflow.wait_condition(lambda: decision_id in verdicts)
        return verdicts[decision_id]

    @workflow.signal(name=names.CHILD)
    def child_signal(self, report: Any = None, *_: Any) -> None:
        """Take note of where a child run stands."""
        self._children.report(report)

    @workflow.signal(name=names.FORWARDED)
    def forwarded_signal(self, forwarded: Any = None, *_: Any) -> None:
        """Take what this run's parent hands on; the ledger knows whether the parent has it."""
        self._helm.receive_forwarded(forwarded)

    async def _take_cancel(self, cancel: CancelRun, _: Delivery) -> Answer:
        if self._book.closing:
            return Answer(True, "the run is ending already; nothing changed")
        if self._book.cancel is not None:
            return Answer(True, f"{self._book.cancel.actor} has cancelled the run already")
        self._book.cancel = cancel
        return Answer(True, f"the run is being cancelled ({cancel.mode})")

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, _: Sequence[RawValue]) -> None:
        """Note a signal of an unknown name, which would otherwise vanish without a trace."""
        known = ", ".join((names.DECIDE, *self._helm.verbs))
        self._refuse_signal(name, f"there is no such signal; known are {known}")

    def _refuse_signal(self, name: str, reason: str) -> None:
        self._book.refuse(workflow.now(), name, reason)
        workflow.set_current_details(current_details(self._book))

    @workflow.query(name=names.VIEW)
    def view(self) -> RunView:
        """Return where the run stands."""
        return view_of(self._book)

    @workflow.query(name=names.CHECKPOINT)
    def checkpoint(self) -> Checkpoint:
        """Return the run's state as one document."""
        return checkpoint_of(self._book, workflow.now(), self._spending.shown())


async def ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until all of them have ended, however they end."""
    await workflow.wait_condition(lambda: all(task.done() for task in tasks))
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at: asyncio would complain of what nobody has
