"""Calling a step's tool as the run's durability has it, alone or in a batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient, failed
from surehand.workflows.contracts.effects import FindRemaining
from surehand.workflows.contracts.states import ENDED_STEPS, StepState
from surehand.workflows.contracts.tools import (
    MODEL,
    Batch,
    BatchReport,
    Effect,
    FailedStep,
    NextStep,
    StepReport,
    Succeeded,
    ToolCall,
    ToolReport,
    batch_name,
)
from surehand.workflows.control.budget import Spending
from surehand.workflows.errors import ErrorType
from surehand.workflows.options import local_call, tool_call
from surehand.workflows.plan.durability import LONGEST_LOCAL
from surehand.workflows.plan.plan import ITERATION, Step, item_id
from surehand.workflows.plan.references import references, resolve
from surehand.workflows.state.records import PROVEN, cut_short, type_of, used_by
from surehand.workflows.state.run_state import OPEN, RunData

#: Steps of one batch: the run hears of all of them at once, at its end.
MOST_STEPS: Final = 100
#: Bytes of what a batch takes along of earlier outputs.
MOST_FACTS: Final = 256 * 1024


def batch_of(data: RunData, call: ToolCall, most: int | None, number: int) -> Batch | None:
    """Return the batch that begins with a call; ``None`` if nothing can follow it at once.

    Args:
        data: Where the run stands.
        call: The call of a step that is under way.
        most: Calls that the run's budget lets follow one another; ``None``: as many as come.
    """
    if call.joined is not None:
        return None  # it waits for another run's human, whoever has to wait behind it
    plan, facts = data.request.plan, data.facts
    step = plan.step(call.step_id)
    list_ = step if ITERATION.search(call.step_id) else None
    begun = {call.step_id} if list_ is None else {call.step_id, list_.id}
    open_ = {view.id for view in data.in_state(*OPEN)}
    this = step if list_ is None else step.model_copy(update={"id": call.step_id})
    if open_ - begun or plan.interrupted(this, "after"):
        return None
    if plan.ready(_ended(data), frozenset(begun)):
        return None  # it is about to start beside this one
    follows = _steps(data, call.step_id) if list_ is None else _items(data, list_)
    made = {call.step_id}
    following: list[NextStep] = []
    taken: dict[str, Any] = {}
    size = 0
    longest = MOST_STEPS if most is None else min(most, MOST_STEPS)
    for next_, own in islice(follows, longest - 1):
        if not _unattended(data, next_):
            break
        roots = {reference.split(".")[0] for _, reference in references(next_.params)}
        earlier = sorted(roots - made - taken.keys() - own.keys())
        more = {root: facts[root] for root in earlier if root in facts}
        size += len(json.dumps([more, own]))
        if size > MOST_FACTS:
            break
        taken |= more
        following.append(
            NextStep(
                id=next_.id,
                tool=next_.tool,
                params=next_.params,
                own=own,
                attempts_before=data.of_step(next_.id).attempts_used,
            )
        )
        made.add(next_.id)
    if not following:
        return None
    named = {step.tool: data.tools[step.tool] for step in following}
    return Batch(number=number, first=call, following=following, tools=named, facts=taken)


def _ended(data: RunData) -> frozenset[str]:
    steps = data.request.plan.steps
    return frozenset(step.id for step in steps if data.steps[step.id].state in ENDED_STEPS)


#: A step that follows, and the facts that only it is told.
_Next = tuple[Step, dict[str, Any]]


def _steps(data: RunData, first: str) -> Iterator[_Next]:
    """Yield the steps of a plan that follow one another."""
    plan, done = data.request.plan, _ended(data) | {first}
    while len(ready := plan.ready(done, frozenset())) == 1:
        yield ready[0], {}
        done |= {ready[0].id}


def _items(data: RunData, step: Step) -> Iterator[_Next]:
    """Yield the items of a list that are still to come, where one follows another."""
    if step.parallel > 1 or step.for_each is None:
        return
    items = data.progress_of(step.id).items
    for number, item in enumerate(resolve(step.for_each, data.facts) if items is None else items):
        if data.steps[item_id(step.id, number)].state is StepState.PENDING:
            yield step.of_item(number), {step.item: item}


def _unattended(data: RunData, step: Step) -> bool:
    """Return whether a step only calls a tool, and no policy or interrupt asks for a human."""
    plan = data.request.plan
    if step.when is not None or step.for_each is not None or step.time_limit is not None:
        return False
    if step.id in data.stale or step.id in data.held:  # its attempts are counted on, or it waits
        return False
    if data.of_step(step.id).renewed:  # somebody has to look at it, whatever its policies say
        return False
    if not step.tool or plan.approvals(step) or data.tools[step.tool].approval is not None:
        return False
    return not (plan.interrupted(step, "before") or plan.interrupted(step, "after"))


class ToolCalls:
    """Makes the tool calls of one run.

    What a local activity returns is in history only when its workflow task ends. A crash before
    that makes it run again, and all that was decided on it is decided again. A success is found in
    the ledger then, with its output, so the run takes the same way. Any other end may come out
    differently, and the run would go another way than the effects that are there already. So after
    such an end calls are activities again, which are only begun once the end is in history.

    A batch reports on several steps at once. The step that it begins with gets its own report;
    the others find theirs when they come to their call.
    """

    def __init__(
        self,
        data: RunData,
        call: ActivityClient,
        spending: Spending,
    ) -> None:
        self._data = data
        self._call = call
        self._spending = spending
        self._mode = data.request.mode
        # Of this execution's history: what is not in it when it ends is in none.
        self._uncertain = 0
        """Ends so far that a crash might change."""
        self._written = 0
        """How many of them are known to be in history."""
        self._batching = False

    @property
    def heard(self) -> bool:
        """Whether no batch is under way that may begin steps that the run has not heard of."""
        return not self._batching

    def knows(self, step_id: str) -> bool:
        """Return whether a step's call has been made in a batch."""
        return step_id in self._data.reported

    async def execute(self, step_id: str, call: ToolCall, *, alone: bool = False) -> ToolReport:
        """Make one call, or tell what a batch has made of it.

        Args:
            alone: As an activity of its own in any mode, which can be ended at any time.

        Raises:
            ActivityError: As the activity ended.
            StepFailed: The run ends before the call has begun.
        """
        known = self._data.of_step(step_id)
        used = max(call.attempts_before, known.attempts_used)
        if self._mode.calls_here:
            call = call.model_copy(update={"attempts_before": used})
        try:
            report = await self._made(step_id, call, alone=alone)
        except ActivityError as error:
            lost = used_by(error)
            known.attempts_used = max(used, lost.attempts)
            self._spending.add_usage(lost.usage, calls=0)
            self._data.note_foreign(filter(None, [lost.foreign]))
            raise
        finally:
            self._data.unacknowledged.discard(step_id)
        known.attempts_used = max(used, report.outcome.attempts)
        self._data.note_foreign(filter(None, [report.foreign]))
        self._data.add_story(report.story)
        return report

    async def may_have_happened(self, step_id: str, error: ActivityError) -> bool:
        """Return whether a call that has failed for good may have made its effect."""
        request, saga = self._data.request, self._data.saga
        if step_id not in saga.unsettled() or type_of(error) in PROVEN:
            return False
        if type_of(error) not in (ErrorType.INVALID_PARAMS, ErrorType.QUOTA_EXCEEDED):
            return True
        # Refused before it was claimed, unless an earlier attempt has called: it may have seen the
        # params otherwise, or have died, and its approval has run out since.
        asked = FindRemaining(tenant=request.tenant, run_id=request.run_id, step_id=step_id)
        found = await self._call(ports.FIND_REMAINING, asked, f"{step_id}: was it ever called?")
        self._data.keep_head(found.head)
        return bool(found.effects)

    async def _made(self, step_id: str, call: ToolCall, *, alone: bool) -> ToolReport:
        known = self._data.reported.pop(step_id, None)
        if known is not None:
            return _told(known)
        if call.tool.effect is Effect.WRITE:
            self._data.saga.register(step_id)
        if call.tool.name == MODEL:
            return await self._take_turn(call)
        batch: Batch | None = None
        if self._mode.in_batches and not alone and not self._wanted():
            most = self._spending.calls_left(step_id)
            batch = batch_of(self._data, call, most, self._data.batches + 1)
        if batch is None:
            batch = Batch(first=call)
            if not alone and self._mode.calls_here and call.tool.timeout <= LONGEST_LOCAL:
                return await self._locally(batch)
        return await self._remotely(batch)

    async def _take_turn(self, call: ToolCall) -> ToolReport:
        uncertain, step_id = self._uncertain, call.step_id
        options = tool_call(call.tool.longest_attempt, f"{step_id}: {call.tool.name}")
        report = await self._call(ports.TAKE_TURN, call, step_id, options=options)
        self._written = max(self._written, uncertain)
        return report

    async def _locally(self, batch: Batch) -> ToolReport:
        if self._uncertain > self._written:
            return await self._remotely(batch)
        call = batch.first
        summary = f"{call.step_id}: {call.tool.name}"
        local = local_call(call.step_id, call.attempts_before, call.tool.longest_attempt, summary)
        try:
            reported = await self._call(ports.EXECUTE_TOOLS, batch, call.step_id, local=local)
        except ActivityError:
            self._uncertain += 1
            raise
        report = reported.steps[0].report
        if not isinstance(report.outcome, Succeeded):
            self._uncertain += 1
        return report

    async def _remotely(self, batch: Batch) -> ToolReport:
        uncertain = self._uncertain
        if batch.number is None:
            report = await self._execute(batch)
        else:
            report = await self._stoppable(batch, batch.number)
        self._written = max(self._written, uncertain)
        first, *others = report.steps
        for other in others:
            self._take_in(other)
        if report.failed is not None:
            self._register(report.failed.step_id)
            self._data.reported[report.failed.step_id] = report.failed
        return first.report

    async def _stoppable(self, batch: Batch, number: int) -> BatchReport:
        """Run a batch; what it had begun where it was stopped unacknowledged ends all the same."""
        self._data.batches = number
        self._batching = True
        try:
            report = await self._undisturbed(batch)
        finally:
            self._batching = False
        if report is None:
            # A worker that is cut off from Temporal does not hear of it: the ledger tells it.
            name = batch_name(workflow.info().run_id, number)
            self._data.revoked_batches.append(name)
            if self._data.stopping:
                raise cut_short(self._data.saga, batch.first.step_id)
            self._data.batches += 1
            more = {"number": self._data.batches, "again": True, "follows": number}
            report = await self._execute(batch.model_copy(update=more))
            self._data.revoked_batches.remove(name)
        return report

    async def _execute(self, batch: Batch) -> BatchReport:
        first, following = batch.first, batch.following
        times = (self._data.tools[step.tool].longest_attempt for step in following)
        summary = f"{first.step_id}: {first.tool.name}"
        if following:
            summary = f"{first.step_id} to {following[-1].id}: {len(following) + 1} steps"
        options = tool_call(sum(times, first.tool.longest_attempt), summary)
        again = batch.model_copy(update={"again": True})
        return await self._call(
            ports.EXECUTE_TOOLS, batch, first.step_id, options=options, again=again
        )

    async def _undisturbed(self, batch: Batch) -> BatchReport | None:
        """Return how far a batch has come; ``None`` if it was stopped and that is not known.

        It is stopped after the outcome of the step that is under way. What it has done is in the
        ledger in any case: run again it tells of it, and a run that ends looks there.
        """
        running = asyncio.create_task(self._execute(batch))
        try:
            await workflow.wait_condition(lambda: running.done() or self._wanted())
        except asyncio.CancelledError:
            if not self._data.stopping:
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
            if not stopped or (typed and (typed.non_retryable or self._data.stopping)):
                raise
            return None
        return report if report.steps else None

    def _wanted(self) -> bool:
        """Return whether the run wants to look before the next step."""
        return self._data.paused is not None or self._data.amending or self._data.stopping

    def _register(self, step_id: str) -> None:
        if self._data.tools[self._data.steps[step_id].tool].effect is Effect.WRITE:
            self._data.saga.register(step_id)

    def _take_in(self, step: StepReport) -> None:
        """Note at once what a batch has done: the run may end before the step has its turn."""
        self._data.reported[step.step_id] = step.report
        self._register(step.step_id)
        outcome = step.report.outcome
        if not isinstance(outcome, Succeeded):
            return
        self._data.note_success(step.step_id, outcome)
        self._data.set_step(step.step_id, StepState.SUCCEEDED, output=outcome.output)


def _told(known: ToolReport | FailedStep) -> ToolReport:
    if isinstance(known, ToolReport):
        return known
    cause = ApplicationError(
        known.message,
        known.used.model_dump(),
        type=known.type,
        non_retryable=True,
    )
    raise failed(ports.EXECUTE_TOOLS, known.step_id, cause) from cause
