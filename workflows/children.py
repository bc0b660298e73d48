"""Child runs of one run: started by its steps, seen through it, steered and undone with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from temporalio import workflow
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
    ChildReport,
    Compensate,
    CompensationOutcome,
    CompensationReport,
    EffectView,
    Forwarded,
    Interrupt,
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
from workflows.options import compensation_call, fair, move_timeout
from workflows.payloads import Malformed, parse
from workflows.plan import Plan
from workflows.tree import too_deep

#: Room for ``/step/number`` behind it, and for Temporal's own limit of 255.
LONGEST_ID: Final = 230
#: Characters of JSON of what a child waits for, with all that waits in its own children.
LARGEST_REPORT: Final = 16 * 1024 * 1024
#: States of a child that its parent's step shows as its own.
_SHOWN: Final = {state.value: state for state in StepState}


class Children:
    """The child runs of one run."""

    def __init__(self, book: Book, call: Calls, changed: Callable[[], None]) -> None:
        self._book = book
        self._call = call
        self._changed = changed
        self._running: dict[str, str] = {}
        """Run ids of children under way, by step id."""
        self._starting: dict[str, list[Delivery]] = {}
        """What children are to be told that cannot hear yet, by step id."""
        self._told_to_end: set[str] = set()
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
        request = self._book.request
        if (deep := too_deep(request.level)) is not None:
            raise StepRefused(deep, called=False)
        self._tries[step_id] += 1
        child_id = child_run_id(request.run_id, step_id, self._tries[step_id])
        if len(child_id) > LONGEST_ID:
            raise StepRefused(f"child runs are nested too deeply: {child_id}", called=False)
        start = StartRun(
            run_id=child_id,
            tenant=request.tenant,
            user=request.user,
            plan=plan,
            parent=Parent(run_id=request.run_id, step_id=step_id),
            durability=request.durability,
            level=request.level + 1,
            room=room,
        )
        self._running[step_id], self._starting[step_id] = child_id, []
        try:
            return await self._run(step_id, start)
        except WorkflowAlreadyStartedError as error:
            raise StepRefused(f"there is a run {child_id} already", called=False) from error
        finally:
            del self._running[step_id]
            self._starting.pop(step_id, None)
            self._book.reports.pop(step_id, None)

    async def _run(self, step_id: str, start: StartRun) -> RunResult:
        child_id, plan = start.run_id, start.plan
        handle: Any = await workflow.start_child_workflow(
            plan.code or names.WORKFLOW,
            start,
            id=child_id,
            result_type=RunResult,
            # A parent that is stopped from outside leaves nobody behind who goes on.
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            task_timeout=move_timeout(len(plan.steps)),
            priority=fair(start.tenant),
            memo={"plan": plan.name},
            static_summary=f"{step_id}: {plan.name}",
        )
        for delivery in self._starting.pop(step_id):
            self._hand_on(step_id, child_id, delivery)
        # It may have reported already: what it shows stays.
        self._book.set_step(step_id, self._book.steps[step_id].state, child=child_id)
        self._changed()
        return await self._ended(step_id, child_id, asyncio.ensure_future(handle))

    def under_way(self, step_id: str) -> bool:
        """Return whether a step's child run has not ended."""
        return step_id in self._running

    async def _ended(self, step_id: str, child_id: str, end: asyncio.Future[Any]) -> RunResult:
        try:
            await workflow.wait_condition(end.done)
        except asyncio.CancelledError:
            if step_id not in self._told_to_end:
                await workflow.get_external_workflow_handle(child_id).cancel()
            # It undoes what it has done before anything else of this run is undone.
            await workflow.wait_condition(end.done)
            self._note(step_id, end)
            raise
        return self._note(step_id, end)

    def _note(self, step_id: str, end: asyncio.Future[Any]) -> RunResult:
        """Keep what a child has done, and return its result if it has completed."""
        result, why = _result_of(end)
        if result is None:
            raise StepFailed(f"child run of {step_id}: {why}")
        if result.state is RunState.COMPLETED:
            self._book.child_results[step_id] = result
            return result
        self._book.child_results[step_id] = result.model_copy(update={"effects": []})
        raise StepFailed(f"child run {result.run_id}: {why}")

    def report(self, payload: Any) -> None:
        """Take note of where a child stands; what is no report of a child of ours is dropped."""
        try:
            report = parse(ChildReport, payload, LARGEST_REPORT)
        except Malformed:
            return
        if self._running.get(report.step_id) != report.run_id:
            return
        self._book.reports[report.step_id] = report
        shown = _SHOWN.get(report.state.value, StepState.RUNNING)
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

    async def undo(self, step_id: str, *, cleanup: bool) -> CompensationReport | None:
        """Undo what a completed child has done, last first; ``None`` when nothing is to be asked.

        Returns:
            The report of the first effect that only a human can settle.
        """
        request, result = self._book.request, self._book.child_results.get(step_id)
        for effect in reversed(result.effects if result else []):
            if result is None or effect.undoes is not None or effect.state != "committed":
                continue
            owner = effect.run_id or result.run_id
            report = await self._call(
                ports.COMPENSATE,
                Compensate(
                    tenant=request.tenant,
                    run_id=owner,
                    step_id=effect.step_id,
                    user=request.user,
                    cleanup=cleanup,
                    parent=request.run_id,
                ),
                step_id,
                options=compensation_call(f"{step_id}: undo {effect.tool} of {owner}"),
            )
            if report.outcome is CompensationOutcome.HUMAN_NEEDED:
                return report
            if report.outcome is CompensationOutcome.UNCOMPENSATED:
                self._stands(step_id, effect, report.reason)
            else:
                self._change(step_id, effect, state="compensated")
        return None

    def keep(self) -> None:
        """Leave what completed children have done as it is, and say so."""
        for step_id, result in list(self._book.child_results.items()):
            for effect in result.effects:
                if effect.undoes is None and effect.state == "committed":
                    self._stands(step_id, effect, "kept on cancel")

    def _stands(self, step_id: str, effect: EffectView, reason: str) -> None:
        self._change(step_id, effect, reason=reason)
        result = self._book.child_results[step_id]
        left = [*result.uncompensated, effect.model_copy(update={"reason": reason})]
        self._book.child_results[step_id] = result.model_copy(update={"uncompensated": left})

    def _change(self, step_id: str, effect: EffectView, **changes: Any) -> None:
        result = self._book.child_results[step_id]
        effects = [
            one.model_copy(update=changes) if one.entry_id == effect.entry_id else one
            for one in result.effects
        ]
        self._book.child_results[step_id] = result.model_copy(update={"effects": effects})


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
