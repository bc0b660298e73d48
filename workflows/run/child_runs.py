"""Child runs of one run: started by its steps, seen through it, steered and undone with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError

from surehand.workflows import names, ports
from surehand.workflows.contracts import runs
from surehand.workflows.contracts.approvals import Verdict, VerdictCode
from surehand.workflows.contracts.base import ENDED_STEPS, RunState, StepState
from surehand.workflows.contracts.steering import AnswerInterrupts, Verb
from surehand.workflows.identity import child_run_id, run_of_approval
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import Plan, why_too_deep
from surehand.workflows.ports import fair, move_timeout
from surehand.workflows.run import deliveries
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.run_core import RunPart, wait_at_most
from surehand.workflows.run.run_records import StepFailed, StepRefused

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


@dataclass(eq=False)
class ChildRunner(RunPart):
    """Runs the child runs of one run."""

    _compensation: Compensation

    async def run_child(self, step_id: str, plan: Plan, room: int) -> runs.RunResult:
        """Run a step's plan in a child run to its end and return its result.

        ``StepFailed``: it has not completed; what it had done, it has undone itself.
        """
        children = self._data.children
        while True:
            start = self._make_start(step_id, plan, room)
            children.running[step_id], children.starting[step_id] = start.run_id, []
            try:
                return await self._start_and_wait(step_id, start)
            except WorkflowAlreadyStartedError:
                # This run was reset: an earlier life of it has started that one.
                self._hand_on_waiting(step_id, start.run_id)
                result = await self._join_child(step_id, start)
                if result is not None:
                    return result
            finally:
                del children.running[step_id]
                children.starting.pop(step_id, None)
                children.reports.pop(step_id, None)

    def _make_start(self, step_id: str, plan: Plan, room: int) -> runs.StartRun:
        request = self._data.request
        if (deep := why_too_deep(request.level)) is not None:
            raise StepRefused(deep, called=False)
        number = self._data.children.tries.get(step_id, 0) + 1
        self._data.children.tries[step_id] = number
        child_id = child_run_id(request.run_id, step_id, number)
        if len(child_id) > LONGEST_ID:
            raise StepRefused(f"child runs are nested too deeply: {child_id}", called=False)
        return runs.StartRun(
            run_id=child_id,
            tenant=request.tenant,
            user=request.user,
            plan=plan,
            parent=runs.Parent(run_id=request.run_id, step_id=step_id),
            durability=request.durability,
            level=request.level + 1,
            room=room,
        )

    async def _start_and_wait(self, step_id: str, start: runs.StartRun) -> runs.RunResult:
        child_id, plan = start.run_id, start.plan
        handle: Any = await workflow.start_child_workflow(
            plan.code or names.WORKFLOW,
            start,
            id=child_id,
            # One that has ended, too: it has done what it was started for, and is not done again.
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            result_type=runs.RunResult,
            # A parent that is stopped from outside leaves nobody behind who goes on.
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            task_timeout=move_timeout(len(plan.steps)),
            priority=fair(start.tenant, weight=self._data.weight, priority=plan.priority),
            memo={"plan": plan.name},
            static_summary=f"{step_id}: {plan.name}",
        )
        self._hand_on_waiting(step_id, child_id)
        # It may have reported already: what it shows stays.
        self._core.set_step(step_id, self._data.steps[step_id].state, child=child_id)
        end = asyncio.ensure_future(handle)
        try:
            await workflow.wait_condition(end.done)
        except asyncio.CancelledError:
            await self._cancel_child(step_id, child_id)
            # It undoes what it has done before anything else of this run is undone.
            await workflow.wait_condition(end.done)
            self._note_end(step_id, _result_of(end)[0])
            raise
        return await self._take_end(step_id, *_result_of(end))

    async def _join_child(self, step_id: str, start: runs.StartRun) -> runs.RunResult | None:
        """Wait for a child run that there is already, and return its result.

        It is no child of this execution at the server, so it is looked at, at growing intervals and
        whenever it reports. ``None`` says that another one is to be started: this one had not
        completed, or was started with another plan or input, and is undone.
        """
        child_id, pause, waited, ends = start.run_id, FIRST_LOOK, False, False
        children = self._data.children
        cancelled: asyncio.CancelledError | None = None
        found = runs.ChildFound(open=True)
        self._core.add_line(f"child run {child_id} is there already", step_id)
        early = children.early.pop(child_id, None)
        if early is not None:
            children.reports[step_id] = early
        shown = StepState.RUNNING if early is None else _shown_state(early)
        self._core.set_step(step_id, shown, child=child_id)
        asked = runs.LookAtChild(tenant=start.tenant, run_id=child_id, plan=start.plan)
        while found.open:
            try:
                found = await self._core.call(ports.LOOK_AT_CHILD, asked, f"look at {child_id}")
                if not found.open:
                    break
                waited = True
                if (not found.same or cancelled is not None) and not ends:
                    ends = True
                    await self._cancel_child(step_id, child_id)
                children.reported.discard(step_id)
                has_reported = partial(children.reported.__contains__, step_id)
                pause = (
                    FIRST_LOOK
                    if await wait_at_most(has_reported, pause)
                    else min(pause * 2, LONGEST_LOOK)
                )
            except asyncio.CancelledError as error:
                if not self._data.stopping and not self._data.ending:
                    raise  # this worker drops the run from its memory, or its step is given up
                # It undoes what it has done before anything else of this run is undone.
                cancelled = error
        if cancelled is not None:
            raise cancelled
        completed = found.result is not None and found.result.state is RunState.COMPLETED
        if not found.same or not (completed or waited):
            why = found.why if found.same else "it was started with another plan or input"
            text = f"not taken over: child run {child_id}: {why}; what it has left is undone"
            self._core.add_line(text, step_id)
            await self._compensation.undo_child_run(step_id, child_id)
            return None
        return await self._take_end(step_id, found.result, found.why)

    async def _cancel_child(self, step_id: str, child_id: str) -> None:
        """Have a child run end that was not told to yet; it may have ended meanwhile."""
        if step_id not in self._data.children.told_to_end:
            with suppress(ApplicationError):
                await workflow.get_external_workflow_handle(child_id).cancel()

    async def _take_end(
        self, step_id: str, result: runs.RunResult | None, why: object
    ) -> runs.RunResult:
        """Take note of the end of a child run, and return its result if it has completed."""
        self._note_end(step_id, result)
        if result is None:
            if not self._data.stopping:
                # It was stopped from outside, and has not undone what it had done.
                child_id = self._data.children.running[step_id]
                await self._compensation.undo_child_run(step_id, child_id)
            raise StepFailed(f"child run of {step_id}: {why}")
        if result.state is not RunState.COMPLETED:
            raise StepFailed(f"child run {result.run_id}: {why}")
        return result

    def _note_end(self, step_id: str, result: runs.RunResult | None) -> None:
        if result is None:
            return
        self._data.note_foreign(content.of(result.run_id) for content in result.foreign)
        completed = result.state is RunState.COMPLETED
        self._data.saga.note_child_end(step_id, result.run_id, completed=completed)
        for effect in result.effects:
            of_child = {"run_id": effect.run_id or result.run_id, "inside": step_id}
            self._data.effects[effect.entry_id] = effect.model_copy(update=of_child)

    def take_report(self, payload: Any) -> None:
        """Take note of where a child stands; what is no report of a child of ours is dropped."""
        try:
            report = deliveries.parse(runs.ChildReport, payload, LARGEST_REPORT)
        except deliveries.Malformed:
            return
        children = self._data.children
        if children.running.get(report.step_id) != report.run_id:
            if len(children.early) < MOST_EARLY:
                children.early[report.run_id] = report
            return
        children.reports[report.step_id] = report
        children.reported.add(report.step_id)
        if _shown_state(report) not in ENDED_STEPS:
            self._data.set_step(report.step_id, _shown_state(report))
        self._core.show_change()

    def hand_on_delivery(self, delivery: deliveries.Delivery) -> None:
        """Hand on to the children what they are told together with this run."""
        message, children = delivery.message, self._data.children
        for step_id, child_id in children.running.items():
            if isinstance(message, AnswerInterrupts):
                if not any(name.startswith(f"{step_id}/") for name in message.answers or ()):
                    continue
            elif delivery.verb not in deliveries.HANDED_ON:
                continue
            if step_id in children.starting:
                children.starting[step_id].append(delivery)
            else:
                self._hand_on_one(step_id, child_id, delivery)

    def _hand_on_waiting(self, step_id: str, child_id: str) -> None:
        for delivery in self._data.children.starting.pop(step_id):
            self._hand_on_one(step_id, child_id, delivery)

    def _hand_on_one(self, step_id: str, child_id: str, delivery: deliveries.Delivery) -> None:
        if delivery.verb is Verb.CANCEL:
            self._data.children.told_to_end.add(step_id)
        handed = runs.Forwarded(
            steering_id=delivery.id, verb=delivery.verb, content=delivery.content
        )
        self._core.send_signal(self._send_to_child(child_id, names.FORWARDED, handed))

    def hand_on_decision(self, decision: Any) -> deliveries.Answer | None:
        """Hand on a decision on a child's request, and say so; ``None``: it is on none."""
        named = decision.get("approval_id") if isinstance(decision, dict) else None
        found = run_of_approval(named) if isinstance(named, str) else None
        if found is None:
            return None
        for step_id, child_id in self._data.children.running.items():
            if step_id in self._data.children.starting:
                continue
            if found[0] == child_id or found[0].startswith(f"{child_id}~"):
                self._core.send_signal(self._send_to_child(child_id, Verb.DECIDE, decision))
                verdict = Verdict(
                    decision_id="",
                    approval_id=str(named),
                    code=VerdictCode.HELD,
                    message=f"handed on to child run {child_id}",
                )
                return deliveries.answer_of(verdict)
        return None

    async def _send_to_child(self, child_id: str, name: str, message: Any) -> None:
        try:
            await workflow.get_external_workflow_handle(child_id).signal(name, message)
        except ApplicationError:
            self._core.add_line(f"{name}: {child_id} has ended already")


def _shown_state(report: runs.ChildReport) -> StepState:
    return _SHOWN.get(report.state.value, StepState.RUNNING)


def _result_of(end: asyncio.Future[Any]) -> tuple[runs.RunResult | None, object]:
    """Return how a child has ended, as far as it says so, and why it has not completed."""
    error = None if end.cancelled() else end.exception()
    if error is None and not end.cancelled():
        result: runs.RunResult = end.result()
        return result, result.error or result.state
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    if isinstance(cause, ApplicationError) and cause.type == ErrorType.RUN_FAILED and cause.details:
        return runs.RunResult.model_validate(cause.details[0]), cause
    return None, cause or "cancelled"
