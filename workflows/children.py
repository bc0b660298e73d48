"""Child runs of one run: started by its steps, seen through it, steered and undone with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)

from workflows import names, ports
from workflows.book import Book
from workflows.calls import Calls
from workflows.contracts import (
    AnswerInterrupts,
    ChildFound,
    ChildReport,
    Forwarded,
    Interrupt,
    LookAtChild,
    Parent,
    RunResult,
    RunState,
    StartRun,
    StepState,
    Verb,
)
from workflows.ends import StepFailed, StepRefused
from workflows.errors import ErrorType
from workflows.helm import HANDED_ON, Delivery
from workflows.identity import child_run_id, run_of_approval
from workflows.options import fair, move_timeout
from workflows.payloads import Malformed, parse
from workflows.plan import Plan
from workflows.tree import too_deep

#: Room for ``/step/number`` behind it, and for Temporal's own limit of 255.
LONGEST_ID: Final = 230
#: Characters of JSON of what a child waits for, with all that waits in its own children.
LARGEST_REPORT: Final = 16 * 1024 * 1024
#: Pauses between looks at a child run that another life of this run has started: each twice as long
#: as the one before. Each look adds to the run's history; whatever the child reports comes at once.
FIRST_LOOK: Final = timedelta(seconds=1)
LONGEST_LOOK: Final = timedelta(minutes=10)
#: Reports that are kept of child runs which this life has not come to.
MOST_EARLY: Final = 1000
#: States of a child that its parent's step shows as its own.
_SHOWN: Final = {state.value: state for state in StepState}


class Children:
    """The child runs of one run."""

    def __init__(
        self,
        book: Book,
        call: Calls,
        undo: Callable[[str, str], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self._book = book
        self._call = call
        self._undo = undo
        self._changed = changed
        self._running: dict[str, str] = {}
        """Run ids of children under way, by step id."""
        self._starting: dict[str, list[Delivery]] = {}
        """What children are to be told that cannot hear yet, by step id."""
        self._told_to_end: set[str] = set()
        self._reported: set[str] = set()
        """Steps whose child run has reported since somebody has looked."""
        self._early: dict[str, ChildReport] = {}
        """What child runs of an earlier life of this run have reported, by their run ids."""
        self._tries: Counter[str] = Counter()

    async def run(self, step_id: str, plan: Plan, room: int) -> RunResult:
        """Run a child to its end and return its result.

        Args:
            step_id: The step that it is.
            plan: Its plan.
            room: How many steps it may have, with all runs inside it.

        Raises:
            StepFailed: It has not completed; what it had done, it has undone itself.
        """
        while True:
            start = self._start_of(step_id, plan, room)
            self._running[step_id], self._starting[step_id] = start.run_id, []
            try:
                return await self._run(step_id, start)
            except WorkflowAlreadyStartedError:
                # This run was reset: an earlier life of it has started that one.
                self._hand_on_all(step_id, start.run_id)
                result = await self._joined(step_id, start)
                if result is not None:
                    return result
            finally:
                del self._running[step_id]
                self._starting.pop(step_id, None)
                self._book.reports.pop(step_id, None)

    def _start_of(self, step_id: str, plan: Plan, room: int) -> StartRun:
        request = self._book.request
        if (deep := too_deep(request.level)) is not None:
            raise StepRefused(deep, called=False)
        self._tries[step_id] += 1
        child_id = child_run_id(request.run_id, step_id, self._tries[step_id])
        if len(child_id) > LONGEST_ID:
            raise StepRefused(f"child runs are nested too deeply: {child_id}", called=False)
        return StartRun(
            run_id=child_id,
            tenant=request.tenant,
            user=request.user,
            plan=plan,
            parent=Parent(run_id=request.run_id, step_id=step_id),
            durability=request.durability,
            level=request.level + 1,
            room=room,
        )

    async def _run(self, step_id: str, start: StartRun) -> RunResult:
        child_id, plan = start.run_id, start.plan
        handle: Any = await workflow.start_child_workflow(
            plan.code or names.WORKFLOW,
            start,
            id=child_id,
            # One that has ended, too: it has done what it was started for, and is not done again.
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            result_type=RunResult,
            # A parent that is stopped from outside leaves nobody behind who goes on.
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            task_timeout=move_timeout(len(plan.steps)),
            priority=fair(start.tenant),
            memo={"plan": plan.name},
            static_summary=f"{step_id}: {plan.name}",
        )
        self._hand_on_all(step_id, child_id)
        # It may have reported already: what it shows stays.
        self._book.set_step(step_id, self._book.steps[step_id].state, child=child_id)
        self._changed()
        return await self._ended(step_id, asyncio.ensure_future(handle))

    def _hand_on_all(self, step_id: str, child_id: str) -> None:
        for delivery in self._starting.pop(step_id):
            self._hand_on(step_id, child_id, delivery)

    async def _joined(self, step_id: str, start: StartRun) -> RunResult | None:
        """Wait for a child run that there is already, and return its result.

        It is no child of this execution at the server, so it is looked at, at growing intervals and
        whenever it reports. ``None`` says that another one is to be started: this one had not
        completed, or was started with another plan or input, and is undone.

        Raises:
            StepFailed: It was open, and has not completed.
        """
        child_id, pause, waited, ends = start.run_id, FIRST_LOOK, False, False
        cancelled: asyncio.CancelledError | None = None
        found = ChildFound(open=True)
        self._book.say(workflow.now(), f"child run {child_id} is there already", step_id)
        early = self._early.pop(child_id, None)
        shown = StepState.RUNNING if early is None else _shown(early)
        self._book.set_step(step_id, shown, child=child_id)
        if early is not None:
            self._book.reports[step_id] = early
        self._changed()
        asked = LookAtChild(tenant=start.tenant, run_id=child_id, plan=start.plan)
        while found.open:
            try:
                found = await self._call(ports.LOOK_AT_CHILD, asked, f"look at {child_id}")
                if not found.open:
                    break
                waited = True
                if (not found.same or cancelled is not None) and not ends:
                    ends = True
                    await self._cancel(step_id, child_id)
                self._reported.discard(step_id)
                with suppress(asyncio.TimeoutError):
                    reported = partial(self._reported.__contains__, step_id)
                    await workflow.wait_condition(reported, timeout=pause)
                pause = FIRST_LOOK if step_id in self._reported else min(pause * 2, LONGEST_LOOK)
            except asyncio.CancelledError as error:
                if not self._book.stopping and not self._book.ending:
                    raise  # this worker drops the run from its memory, or its step is given up
                # It undoes what it has done before anything else of this run is undone.
                cancelled = error
        if cancelled is not None:
            raise cancelled
        completed = found.result is not None and found.result.state is RunState.COMPLETED
        if not found.same or not (completed or waited):
            why = found.why if found.same else "it was started with another plan or input"
            text = f"not taken over: child run {child_id}: {why}; what it has left is undone"
            self._book.say(workflow.now(), text, step_id)
            await self._undo(step_id, child_id)
            return None
        return await self._note(step_id, found.result, found.why)

    async def _cancel(self, step_id: str, child_id: str) -> None:
        """Have a child run end that was not told to yet; it may have ended meanwhile."""
        if step_id not in self._told_to_end:
            with suppress(ApplicationError):
                await workflow.get_external_workflow_handle(child_id).cancel()

    def under_way(self, step_id: str) -> bool:
        """Return whether a step's child run has not ended."""
        return step_id in self._running

    async def _ended(self, step_id: str, end: asyncio.Future[Any]) -> RunResult:
        try:
            await workflow.wait_condition(end.done)
        except asyncio.CancelledError:
            await self._cancel(step_id, self._running[step_id])
            # It undoes what it has done before anything else of this run is undone.
            await workflow.wait_condition(end.done)
            result, _ = _result_of(end)
            self._take_note(step_id, result)
            raise
        result, why = _result_of(end)
        return await self._note(step_id, result, why)

    async def _note(self, step_id: str, result: RunResult | None, why: object) -> RunResult:
        """Take note of the end of a child run, and return its result if it has completed."""
        self._take_note(step_id, result)
        if result is None:
            if not self._book.stopping:
                # It was stopped from outside, and has not undone what it had done.
                await self._undo(step_id, self._running[step_id])
            raise StepFailed(f"child run of {step_id}: {why}")
        if result.state is not RunState.COMPLETED:
            raise StepFailed(f"child run {result.run_id}: {why}")
        return result

    def _take_note(self, step_id: str, result: RunResult | None) -> None:
        if result is None:
            return
        completed = result.state is RunState.COMPLETED
        self._book.saga.ended(step_id, result.run_id, completed=completed)
        for effect in result.effects:
            of_child = {"run_id": effect.run_id or result.run_id, "inside": step_id}
            self._book.effects[effect.entry_id] = effect.model_copy(update=of_child)

    def report(self, payload: Any) -> None:
        """Take note of where a child stands; what is no report of a child of ours is dropped."""
        try:
            report = parse(ChildReport, payload, LARGEST_REPORT)
        except Malformed:
            return
        if self._running.get(report.step_id) != report.run_id:
            if len(self._early) < MOST_EARLY:
                self._early[report.run_id] = report
            return
        self._book.reports[report.step_id] = report
        self._reported.add(report.step_id)
        shown = _shown(report)
        if shown not in (StepState.FAILED, StepState.SKIPPED, StepState.SUCCEEDED):
            self._book.set_step(report.step_id, shown)
        self._changed()

    def forward(self, delivery: Delivery) -> None:
        """Hand on to the children what they are told together with this run."""
        message = delivery.message
        for step_id, child_id in self._running.items():
            if isinstance(message, AnswerInterrupts):
                if not any(name.startswith(f"{step_id}/") for name in message.answers):
                    continue
            elif delivery.verb not in HANDED_ON:
                continue
            if step_id in self._starting:
                self._starting[step_id].append(delivery)
            else:
                self._hand_on(step_id, child_id, delivery)

    def _hand_on(self, step_id: str, child_id: str, delivery: Delivery) -> None:
        if delivery.verb is Verb.CANCEL:
            self._told_to_end.add(step_id)
        handed = Forwarded(
            steering_id=delivery.steering_id, verb=delivery.verb, content=delivery.content
        )
        self._send(child_id, names.FORWARDED, handed)

    def decides(self, decision: Any) -> str | None:
        """Hand on a decision on a child's request; returns the child's run id, if it is one."""
        named = decision.get("approval_id") if isinstance(decision, dict) else None
        found = run_of_approval(named) if isinstance(named, str) else None
        if found is None:
            return None
        for step_id, child_id in self._running.items():
            if step_id in self._starting:
                continue
            if found[0] == child_id or found[0].startswith(f"{child_id}~"):
                self._send(child_id, names.DECIDE, decision)
                return child_id
        return None

    def questions(self) -> Iterator[tuple[str, Interrupt]]:
        """Yield the children's questions under the ids that this run's people answer them by."""
        for step_id, report in self._book.reports.items():
            for interrupt in report.interrupts:
                yield f"{step_id}/{interrupt.interrupt_id}", interrupt

    def _send(self, child_id: str, name: str, message: Any) -> None:
        async def send() -> None:
            try:
                await workflow.get_external_workflow_handle(child_id).signal(name, message)
            except ApplicationError:
                self._book.say(workflow.now(), f"{name}: {child_id} has ended already")

        task = asyncio.create_task(send())
        self._book.sending.add(task)
        task.add_done_callback(self._book.sending.discard)


def _shown(report: ChildReport) -> StepState:
    """Return what the parent's step shows."""
    return _SHOWN.get(report.state.value, StepState.RUNNING)


def _result_of(end: asyncio.Future[Any]) -> tuple[RunResult | None, object]:
    """Return how a child has ended, as far as it says so, and why it has not completed."""
    error = None if end.cancelled() else end.exception()
    if error is None and not end.cancelled():
        result: RunResult = end.result()
        return result, result.error or result.state
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    if isinstance(cause, ApplicationError) and cause.type == ErrorType.RUN_FAILED and cause.details:
        return RunResult.model_validate(cause.details[0]), cause
    return None, cause or "cancelled"
