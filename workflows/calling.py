"""Calling a step's tool as the run's durability has it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows import ports
from workflows.book import Book
from workflows.budget import Spending
from workflows.calls import Calls, failed
from workflows.contracts import (
    AttemptsUsed,
    Carried,
    FailedStep,
    FindStanding,
    StepReport,
    StepState,
    Stretch,
    StretchReport,
    Succeeded,
    ToolCall,
    ToolReport,
    ToolSpec,
    stretch_name,
)
from workflows.contracts.tools import Effect
from workflows.durability import LONGEST_LOCAL, Durability
from workflows.ends import PROVEN, attempts_of, cut_short, type_of
from workflows.errors import ErrorType
from workflows.options import local_call, stretch_call, tool_call
from workflows.stretches import stretch_of


class Calling:
    """Makes the tool calls of one run.

    What a local activity returns is in history only when its workflow task ends. A crash before
    that makes it run again, and all that was decided on it is decided again. A success is found in
    the ledger then, with its output, so the run takes the same way. Any other end may come out
    differently, and the run would go another way than the effects that are there already. So after
    such an end calls are activities again, which are only begun once the end is in history.

    A stretch reports on several steps at once. The step that it begins with gets its own report;
    the others find theirs when they come to their call.
    """

    def __init__(
        self,
        book: Book,
        call: Calls,
        tools: Mapping[str, ToolSpec],
        facts: Mapping[str, Any],
        spending: Spending,
    ) -> None:
        self._book = book
        self._call = call
        self._tools = tools
        self._facts = facts
        self._spending = spending
        self._used: dict[str, int] = {}
        """Attempts that the calls of each step have used up: a step may be told to try again."""
        self._mode = book.request.mode
        self._ahead: dict[str, ToolReport | FailedStep] = {}
        """What a stretch has reported of steps that have not come to their call yet."""
        self._uncertain = 0
        """Ends so far that a crash might change."""
        self._written = 0
        """How many of them are known to be in history."""
        self._stretching = False
        self._stretches = 0
        """The number of the newest one."""

    @property
    def idle(self) -> bool:
        """Whether every step that a stretch has reported on has come to its call."""
        return not self._ahead

    @property
    def heard(self) -> bool:
        """Whether no stretch is under way that may begin steps that the run has not heard of."""
        return not self._stretching

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``.

        What is only in history once this execution's last workflow task has ended is there then.
        """
        book = self._book
        pending = {view.id for view in book.in_state(StepState.PENDING)}
        open_ = pending.union(book.progress)
        return {"attempts_used": {id_: n for id_, n in self._used.items() if id_ in open_}}

    def restore(self, carried: Carried) -> None:
        """Take over what another execution has carried."""
        self._used = dict(carried.attempts_used)

    def knows(self, step_id: str) -> bool:
        """Return whether a step's call has been made in a stretch."""
        return step_id in self._ahead

    async def execute(self, step_id: str, call: ToolCall, *, alone: bool = False) -> ToolReport:
        """Make one call, or tell what a stretch has made of it.

        Args:
            step_id: The step's.
            call: The call.
            alone: As an activity of its own in any mode, which can be ended at any time.

        Raises:
            ActivityError: As the activity ended.
            StepFailed: The run ends before the call has begun.
        """
        used = max(call.attempts_before, self._used.get(step_id, 0))
        if self._mode is not Durability.SYNC:
            call = call.model_copy(update={"attempts_before": used})
        try:
            report = await self._made(step_id, call, alone=alone)
        except ActivityError as error:
            self._used[step_id] = max(used, attempts_of(error))
            raise
        finally:
            self._book.unheard.discard(step_id)
        self._used[step_id] = max(used, report.outcome.attempts)
        return report

    async def may_have_happened(self, step_id: str, error: ActivityError) -> bool:
        """Return whether a call that has failed for good may have made its effect."""
        request, saga = self._book.request, self._book.saga
        if step_id not in saga.unsettled() or type_of(error) in PROVEN:
            return False
        if type_of(error) != ErrorType.INVALID_PARAMS:
            return True
        # Refused before it was claimed, unless an earlier attempt has seen the params otherwise.
        asked = FindStanding(tenant=request.tenant, run_id=request.run_id, step_id=step_id)
        found = await self._call(ports.FIND_STANDING, asked, f"{step_id}: was it ever called?")
        self._book.saw(found.head)
        return bool(found.effects)

    async def _made(self, step_id: str, call: ToolCall, *, alone: bool) -> ToolReport:
        known = self._ahead.pop(step_id, None)
        if known is not None:
            return _told(known)
        if call.tool.effect is Effect.WRITE:
            self._book.saga.register(step_id)
        if alone:
            return await self._remotely(step_id, call)
        if self._mode is Durability.EXIT and not self._wanted():
            stretch = stretch_of(
                self._book,
                self._tools,
                self._facts,
                call,
                self._spending.calls_left(),
                self._stretches + 1,
                self._used,
            )
            if stretch is not None:
                return await self._run(stretch)
        if self._mode is not Durability.SYNC and call.tool.timeout <= LONGEST_LOCAL:
            return await self._locally(step_id, call)
        return await self._remotely(step_id, call)

    async def _remotely(self, step_id: str, call: ToolCall) -> ToolReport:
        uncertain = self._uncertain
        options = tool_call(call.tool.timeout, f"{step_id}: {call.tool.name}")
        report = await self._call(ports.EXECUTE_TOOL, call, step_id, options=options)
        self._written = max(self._written, uncertain)
        return report

    async def _locally(self, step_id: str, call: ToolCall) -> ToolReport:
        if self._uncertain > self._written:
            return await self._remotely(step_id, call)
        summary = f"{step_id}: {call.tool.name}"
        local = local_call(step_id, call.attempts_before, call.tool.timeout, summary)
        try:
            report = await self._call(ports.EXECUTE_TOOL, call, step_id, local=local)
        except ActivityError:
            self._uncertain += 1
            raise
        if not isinstance(report.outcome, Succeeded):
            self._uncertain += 1
        return report

    async def _run(self, stretch: Stretch) -> ToolReport:
        report = await self._reported(stretch)
        first, *others = report.steps
        for other in others:
            self._take_in(other)
        if report.failed is not None:
            self._register(report.failed.step_id)
            self._ahead[report.failed.step_id] = report.failed
        return first.report

    async def _reported(self, stretch: Stretch) -> StretchReport:
        """Run a stretch; what it had begun where it was stopped unheard ends all the same."""
        uncertain = self._uncertain
        self._stretches = stretch.number
        self._stretching = True
        try:
            report = await self._undisturbed(stretch)
        finally:
            self._stretching = False
        if report is None:
            # A worker that is cut off from Temporal does not hear of it: the ledger tells it.
            name = stretch_name(workflow.info().run_id, stretch.number)
            self._book.given_up.append(name)
            if self._book.stopping:
                raise cut_short(self._book.saga, stretch.first.step_id)
            self._stretches += 1
            more = {"number": self._stretches, "again": True, "follows": stretch.number}
            report = await self._stretch(stretch.model_copy(update=more))
            self._book.given_up.remove(name)
        self._written = max(self._written, uncertain)
        return report

    async def _stretch(self, stretch: Stretch) -> StretchReport:
        timeouts = (self._tools[step.tool].timeout for step in stretch.following)
        steps = [stretch.first.step_id, *(step.id for step in stretch.following)]
        summary = f"{steps[0]} to {steps[-1]}: {len(steps)} steps"
        options = stretch_call((stretch.first.tool.timeout, *timeouts), summary)
        again = stretch.model_copy(update={"again": True})
        return await self._call(ports.RUN_STRETCH, stretch, steps[0], options=options, again=again)

    async def _undisturbed(self, stretch: Stretch) -> StretchReport | None:
        """Return how far a stretch has come; ``None`` if it was stopped and that is not known.

        It is stopped after the outcome of the step that is under way. What it has done is in the
        ledger in any case: run again it tells of it, and a run that ends looks there.
        """
        running = asyncio.create_task(self._stretch(stretch))
        try:
            await workflow.wait_condition(lambda: running.done() or self._wanted())
        except asyncio.CancelledError:
            if not self._book.stopping:
                # Not the end of the run: this worker drops it from its memory.
                running.cancel()
                raise
        stopped = not running.done()
        if stopped:
            running.cancel()
            await workflow.wait_condition(running.done)
        try:
            report = await running
        except (ActivityError, asyncio.CancelledError) as error:
            # A failure for good says how its step has ended. Anything else says nothing: what
            # would have been tried again, or a worker that has died after it was told to stop.
            cause = error.__cause__
            typed = cause if isinstance(cause, ApplicationError) else None
            if not stopped or (typed and (typed.non_retryable or self._book.stopping)):
                raise
            return None
        return report if report.steps else None

    def _wanted(self) -> bool:
        """Return whether the run wants to look before the next step."""
        return self._book.paused is not None or self._book.amending or self._book.stopping

    def _register(self, step_id: str) -> None:
        if self._tools[self._book.steps[step_id].tool].effect is Effect.WRITE:
            self._book.saga.register(step_id)

    def _take_in(self, step: StepReport) -> None:
        """Note at once what a stretch has done: the run may end before the step has its turn."""
        self._ahead[step.step_id] = step.report
        self._register(step.step_id)
        outcome = step.report.outcome
        if not isinstance(outcome, Succeeded):
            return
        if outcome.effect is not None:
            self._book.saga.committed(step.step_id, outcome.effect.entry_id)
            self._book.effects[outcome.effect.entry_id] = outcome.effect
        else:
            self._book.saga.relies(step.step_id, outcome.entry_id)
        self._book.set_step(step.step_id, StepState.SUCCEEDED, output=outcome.output)


def _told(known: ToolReport | FailedStep) -> ToolReport:
    if isinstance(known, ToolReport):
        return known
    cause = ApplicationError(
        known.message,
        AttemptsUsed(attempts=known.attempts).model_dump(),
        type=known.type,
        non_retryable=True,
    )
    raise failed(ports.EXECUTE_TOOL, known.step_id, cause) from cause
