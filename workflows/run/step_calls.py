"""The tool calls of steps: in the run's durability, within its budget and their time limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows import ports
from surehand.workflows.contracts import tools
from surehand.workflows.contracts.base import ENDED_STEPS, StepState, Usage
from surehand.workflows.contracts.effects import FindRemaining
from surehand.workflows.contracts.runs import TopUp
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import ITERATION, LONGEST_LOCAL, Step, item_id
from surehand.workflows.plan.references import references, resolve
from surehand.workflows.ports import call_failure, local_call, tool_call
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.deliveries import Answer, Delivery, accept, refuse
from surehand.workflows.run.run_core import RunPart, wait_at_most
from surehand.workflows.run.run_data import OPEN, RunData
from surehand.workflows.run.run_records import PROVEN, StepFailed, cut_short, type_of, used_by

T = TypeVar("T")


class Spending(RunPart):
    """Keeps the budget of one run: where it is used up, steps wait for more."""

    def add_usage(self, usage: Usage, *, calls: int = 1) -> None:
        """Add what one call has used; one that has failed counts for no call."""
        spent = self._data.spent
        spent.steps += calls
        spent.tokens += usage.tokens
        spent.money += Decimal(usage.money)

    def what_is_used_up(self, step_id: str | None = None) -> str | None:
        """Return what is used up, as one clause; ``None``: there is enough for another call.

        The call of ``step_id`` is not counted: it is the one that would be made.
        """
        data = self._data
        limits, more, spent = data.request.plan.budget, data.more_budget, data.spent
        if limits.steps is not None:
            calls = self._count_calls(but=step_id)
            if calls >= limits.steps + more.steps:
                return f"{calls} calls"
        if limits.tokens is not None and spent.tokens >= limits.tokens + more.tokens:
            return f"{spent.tokens} tokens"
        if limits.money is not None and spent.money >= Decimal(limits.money) + Decimal(more.money):
            return f"{spent.money} of money"
        if limits.time is not None:
            lasted = workflow.now() - data.started_at
            if lasted >= limits.time + more.time:
                return f"{lasted} of time"
        return None

    def _count_calls(self, *, but: str | None) -> int:
        data = self._data
        under_way = sum(at.counted for id_, at in data.progress.items() if id_ != but)
        return data.spent.steps + len(data.reported) + under_way

    def calls_left(self, step_id: str) -> int | None:
        """Return how many calls may follow one another unlooked at; ``None``: as many as come.

        Where a call itself says what it has used, that is one. ``step_id`` makes the first of them.
        """
        limits = self._data.request.plan.budget
        if (limits.tokens, limits.money, limits.time) != (None, None, None):
            return 1
        if limits.steps is None:
            return None
        return limits.steps + self._data.more_budget.steps - self._count_calls(but=step_id)

    async def top_up(self, asked: TopUp, _: Delivery) -> Answer:
        if not (asked.steps or asked.tokens or Decimal(asked.money) or asked.time):
            return refuse("nothing was added: give steps, tokens, money or time")
        more = self._data.more_budget
        self._data.more_budget = more.model_copy(
            update={
                "steps": more.steps + asked.steps,
                "tokens": more.tokens + asked.tokens,
                "money": str(Decimal(more.money) + Decimal(asked.money)),
                "time": more.time + asked.time,
            }
        )
        still = self.what_is_used_up()
        return accept(f"added; still used up: {still}" if still else "added")


#: Steps of one batch: the run hears of all of them at once, at its end.
LONGEST_BATCH: Final = 100
#: Bytes of what a batch takes along of earlier outputs.
MOST_FACTS: Final = 256 * 1024


def make_batch(
    data: RunData, call: tools.ToolCall, most: int | None, number: int
) -> tools.Batch | None:
    """Return the batch that begins with a call; ``None`` if nothing can follow it at once.

    ``most`` calls may follow one another within the run's budget; ``None``: as many as come.
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
    if plan.ready(_ended_steps(data), frozenset(begun)):
        return None  # it is about to start beside this one
    follows = (
        _following_steps(data, call.step_id) if list_ is None else _following_items(data, list_)
    )
    made = {call.step_id}
    following: list[tools.NextStep] = []
    taken: dict[str, Any] = {}
    size = 0
    longest = LONGEST_BATCH if most is None else min(most, LONGEST_BATCH)
    for next_, own in islice(follows, longest - 1):
        if not _needs_nobody(data, next_):
            break
        roots = {reference.split(".")[0] for _, reference in references(next_.params)}
        earlier = sorted(roots - made - taken.keys() - own.keys())
        more = {root: facts[root] for root in earlier if root in facts}
        size += len(json.dumps([more, own]))
        if size > MOST_FACTS:
            break
        taken |= more
        following.append(
            tools.NextStep(
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
    return tools.Batch(number=number, first=call, following=following, tools=named, facts=taken)


def _ended_steps(data: RunData) -> frozenset[str]:
    steps = data.request.plan.steps
    return frozenset(step.id for step in steps if data.steps[step.id].state in ENDED_STEPS)


#: A step that follows, and the facts that only it is told.
_Next = tuple[Step, dict[str, Any]]


def _following_steps(data: RunData, first: str) -> Iterator[_Next]:
    plan, done = data.request.plan, _ended_steps(data) | {first}
    while len(ready := plan.ready(done, frozenset())) == 1:
        yield ready[0], {}
        done |= {ready[0].id}


def _following_items(data: RunData, step: Step) -> Iterator[_Next]:
    """Yield the items of a list that are still to come, where one follows another."""
    if step.parallel > 1 or step.for_each is None:
        return
    items = data.progress_of(step.id).items
    for number, item in enumerate(resolve(step.for_each, data.facts) if items is None else items):
        if data.steps[item_id(step.id, number)].state is StepState.PENDING:
            yield step.of_item(number), {step.item: item}


def _needs_nobody(data: RunData, step: Step) -> bool:
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


#: Failures of a call that was not claimed, unless an earlier attempt has called.
_BEFORE_CLAIM: Final = (
    ErrorType.INVALID_PARAMS,
    ErrorType.LIMIT_EXCEEDED,
    ErrorType.QUOTA_EXCEEDED,
)


class TimeOver(Exception):
    """A call was given up before it had ended; what of it has happened is in the ledger."""


async def end_within(
    left: timedelta, work: Coroutine[Any, Any, T], is_stopping: Callable[[], bool]
) -> T:
    """Return what a call returns, or have it tried no more when its time is over.

    An attempt that is under way then ends and is recorded, and its end counts. ``TimeOver``: it was
    given up between two attempts, or its last one has failed for a moment.
    """
    running = asyncio.create_task(work)
    over = False
    try:
        over = not await wait_at_most(running.done, left)
    except asyncio.CancelledError:
        running.cancel()
        if not is_stopping():
            # Not the end of the run: this worker drops it from its memory.
            raise
    if over:
        running.cancel()
    await workflow.wait_condition(running.done)
    try:
        return await running
    except (ActivityError, asyncio.CancelledError) as error:
        cause = error.__cause__
        if not over or (isinstance(cause, ApplicationError) and cause.non_retryable):
            raise
        raise TimeOver from error


@dataclass(eq=False)
class ToolCalls(RunPart):
    """Makes the tool calls of one run.

    What a local activity returns is in history only when its workflow task ends. A crash before
    that makes it run again, and all that was decided on it is decided again. A success is found in
    the ledger then, with its output, so the run takes the same way. Any other end may come out
    differently, and the run would go another way than the effects that are there already. So after
    such an end calls are activities again, which are only begun once the end is in history.

    A batch reports on several steps at once. The step that it begins with gets its own report;
    the others find theirs when they come to their call.
    """

    _compensation: Compensation
    spending: Spending
    # Of this execution's history: what is not in it when it ends is in none.
    _uncertain: int = 0
    """Ends so far that a crash might change."""
    _written: int = 0
    """How many of them are known to be in history."""
    _batching: bool = False

    def __post_init__(self) -> None:
        self._mode = self._data.request.mode

    @property
    def has_heard_all(self) -> bool:
        """Whether no batch is under way that may begin steps that the run has not heard of."""
        return not self._batching

    def has_report(self, step_id: str) -> bool:
        return step_id in self._data.reported

    async def make_call(self, step: Step, call: tools.ToolCall) -> tools.ToolReport:
        """Make a step's call, and have it tried no more when the step's time is over.

        ``StepFailed``: its time is over, or the run ends before the call has begun.
        """
        limit, data = step.time_limit, self._data
        if limit is None or call.joined is not None:  # it waits for people, at another step
            return await self._make_unlimited(step.id, call, alone=limit is not None)
        began, spent = workflow.now(), data.progress_of(step.id).spent
        if spent >= limit:
            raise StepFailed(_time_over_text(limit))
        try:
            making = self._make_unlimited(step.id, call, alone=True)
            return await end_within(limit - spent, making, lambda: data.stopping)
        except TimeOver as error:
            # Nobody has said whether a write has happened: the plan goes on once it is undone.
            doubt = call.tool.effect is tools.Effect.WRITE
            goes_on = data.request.plan.on_failure(step) not in ("compensate", "pause")
            if doubt and goes_on and not data.stopping:
                await self._compensation.undo_step(step.id)
                doubt = False
            raise StepFailed(_time_over_text(limit), unsettled=doubt) from error
        finally:
            data.set_progress(step.id, spent=spent + (workflow.now() - began))

    def time_after_pause(self, step: Step, pause: timedelta, reason: str) -> timedelta:
        """Return what the step has taken of its time after a pause, if that leaves some."""
        spent = self._data.progress_of(step.id).spent + pause
        if step.time_limit is not None and spent >= step.time_limit:
            raise StepFailed(f"{_time_over_text(step.time_limit)}: {reason}")
        return spent

    async def _make_unlimited(
        self, step_id: str, call: tools.ToolCall, *, alone: bool
    ) -> tools.ToolReport:
        """Make one call, or tell what a batch has made of it.

        ``alone``: as a separate activity in any mode, which can be ended at any time.
        """
        known = self._data.of_step(step_id)
        used = max(call.attempts_before, known.attempts_used)
        if self._mode.calls_here:
            call = call.model_copy(update={"attempts_before": used})
        try:
            report = await self._find_or_make(step_id, call, alone=alone)
        except ActivityError as error:
            lost = used_by(error)
            known.attempts_used = max(used, lost.attempts)
            self.spending.add_usage(lost.usage, calls=0)
            self._data.note_foreign(filter(None, [lost.foreign]))
            raise
        finally:
            self._data.unacknowledged.discard(step_id)
        known.attempts_used = max(used, report.outcome.attempts)
        self._data.note_foreign(filter(None, [report.foreign]))
        self._data.add_story(report.story)
        return report

    async def may_have_happened(self, step_id: str, error: ActivityError) -> bool:
        """Return whether a call that has failed permanently may have made its effect."""
        saga = self._data.saga
        if step_id not in saga.unsettled() or type_of(error) in PROVEN:
            return False
        if type_of(error) not in _BEFORE_CLAIM:
            return True
        # Refused before it was claimed, unless an earlier attempt has called: it may have seen the
        # params otherwise, or have died, and its approval has run out since.
        asked = FindRemaining(**self._data.ids, step_id=step_id)
        summary = f"{step_id}: was it ever called?"
        return bool((await self._core.call(ports.FIND_REMAINING, asked, summary)).effects)

    async def _find_or_make(
        self, step_id: str, call: tools.ToolCall, *, alone: bool
    ) -> tools.ToolReport:
        known = self._data.reported.pop(step_id, None)
        if isinstance(known, tools.ToolReport):
            return known
        if known is not None:
            details = known.used.model_dump()
            cause = ApplicationError(known.message, details, type=known.type, non_retryable=True)
            raise call_failure(ports.EXECUTE_TOOLS, known.step_id, cause) from cause
        if call.tool.effect is tools.Effect.WRITE:
            self._data.saga.register(step_id)
        if call.tool.name == tools.MODEL:
            return await self._take_turn(call)
        batch: tools.Batch | None = None
        if self._mode.in_batches and not alone and not self._run_wants_a_look():
            most = self.spending.calls_left(step_id)
            batch = make_batch(self._data, call, most, self._data.batches + 1)
        if batch is None:
            batch = tools.Batch(first=call)
            if not alone and self._mode.calls_here and call.tool.timeout <= LONGEST_LOCAL:
                return await self._call_locally(batch)
        return await self._call_remotely(batch)

    async def _take_turn(self, call: tools.ToolCall) -> tools.ToolReport:
        uncertain, step_id = self._uncertain, call.step_id
        options = tool_call(call.tool.longest_attempt, f"{step_id}: {call.tool.name}")
        report = await self._core.call(ports.TAKE_TURN, call, step_id, options=options)
        self._written = max(self._written, uncertain)
        return report

    async def _call_locally(self, batch: tools.Batch) -> tools.ToolReport:
        if self._uncertain > self._written:
            return await self._call_remotely(batch)
        call = batch.first
        summary = f"{call.step_id}: {call.tool.name}"
        local = local_call(call.step_id, call.attempts_before, call.tool.longest_attempt, summary)
        try:
            reported = await self._core.call(ports.EXECUTE_TOOLS, batch, call.step_id, local=local)
        except ActivityError:
            self._uncertain += 1
            raise
        report = reported.steps[0].report
        if not isinstance(report.outcome, tools.Succeeded):
            self._uncertain += 1
        return report

    async def _call_remotely(self, batch: tools.Batch) -> tools.ToolReport:
        uncertain = self._uncertain
        if batch.number is None:
            report = await self._execute_batch(batch)
        else:
            report = await self._execute_stoppable(batch, batch.number)
        self._written = max(self._written, uncertain)
        first, *others = report.steps
        for other in others:
            self._note_report(other)
        if report.failed is not None:
            self._register_write(report.failed.step_id)
            self._data.reported[report.failed.step_id] = report.failed
        return first.report

    async def _execute_stoppable(self, batch: tools.Batch, number: int) -> tools.BatchReport:
        """Run a batch; what it had begun where it was stopped unacknowledged ends all the same."""
        self._data.batches = number
        self._batching = True
        try:
            report = await self._execute_until_wanted(batch)
        finally:
            self._batching = False
        if report is None:
            # A worker that is cut off from Temporal does not hear of it: the ledger tells it.
            name = tools.batch_name(workflow.info().run_id, number)
            self._data.revoked_batches.append(name)
            if self._data.stopping:
                raise cut_short(self._data.saga, batch.first.step_id)
            self._data.batches += 1
            more = {"number": self._data.batches, "again": True, "follows": number}
            report = await self._execute_batch(batch.model_copy(update=more))
            self._data.revoked_batches.remove(name)
        return report

    async def _execute_batch(self, batch: tools.Batch) -> tools.BatchReport:
        first, following = batch.first, batch.following
        times = (self._data.tools[step.tool].longest_attempt for step in following)
        summary = f"{first.step_id}: {first.tool.name}"
        if following:
            summary = f"{first.step_id} to {following[-1].id}: {len(following) + 1} steps"
        options = tool_call(sum(times, first.tool.longest_attempt), summary)
        again = batch.model_copy(update={"again": True})
        return await self._core.call(
            ports.EXECUTE_TOOLS, batch, first.step_id, options=options, again=again
        )

    async def _execute_until_wanted(self, batch: tools.Batch) -> tools.BatchReport | None:
        """Return how far a batch has come; ``None`` if it was stopped and that is not known.

        It is stopped after the outcome of the step that is under way. What it has done is in the
        ledger in any case: run again it tells of it, and a run that ends looks there.
        """
        running = asyncio.create_task(self._execute_batch(batch))
        try:
            await workflow.wait_condition(lambda: running.done() or self._run_wants_a_look())
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
            # A permanent failure says how its step has ended. Anything else says nothing: what
            # would have been tried again, or a worker that has died after it was told to stop.
            cause = error.__cause__
            typed = cause if isinstance(cause, ApplicationError) else None
            if not stopped or (typed and (typed.non_retryable or self._data.stopping)):
                raise
            return None
        return report if report.steps else None

    def _run_wants_a_look(self) -> bool:
        return self._data.paused is not None or self._data.amending or self._data.stopping

    def _register_write(self, step_id: str) -> None:
        if self._data.tools[self._data.steps[step_id].tool].effect is tools.Effect.WRITE:
            self._data.saga.register(step_id)

    def _note_report(self, step: tools.StepReport) -> None:
        """Note at once what a batch has done: the run may end before the step has its turn."""
        self._data.reported[step.step_id] = step.report
        self._register_write(step.step_id)
        outcome = step.report.outcome
        if isinstance(outcome, tools.Succeeded):
            self._data.note_success(step.step_id, outcome)
            self._data.set_step(step.step_id, StepState.SUCCEEDED, output=outcome.output)


def _time_over_text(limit: timedelta) -> str:
    return f"its time limit ({limit.total_seconds():g} s) is over"
