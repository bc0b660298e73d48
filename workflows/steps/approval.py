"""What a step waits for before its call: an approval, a quota, its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.approvals import ApprovalRequest, ApprovalState, RequestApproval
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.tools import Effect, ToolCall, ToolReport
from surehand.workflows.contracts.values import LONGEST_LOOK, SHORTEST_LOOK, QuotaWait
from surehand.workflows.control.interrupts import Decisions
from surehand.workflows.plan.plan import Step
from surehand.workflows.plan.policy import Escalate
from surehand.workflows.state.records import StepFailed, cut_short, leave_if_cancelled
from surehand.workflows.state.run_state import RunData
from surehand.workflows.steps.tool_calls import ToolCalls
from surehand.workflows.wait_condition import comes_true


class QuotaWaits:
    """Has the steps of one run wait for quotas."""

    def __init__(self, data: RunData, changed: Callable[[], None]) -> None:
        self._data = data
        self._changed = changed

    async def wait(self, step_id: str, found: QuotaWait) -> None:
        """Wait until a quota may be free, and say so."""
        data = self._data
        at = data.progress_of(step_id)
        until = at.until
        if until is None:
            until = workflow.now() + min(found.pause, next_look(at.looks))
            data.set_progress(step_id, until=until, looks=at.looks + 1)
            text = f"waiting for its tenant's quota, {found.text}"
            if at.looks == 0:
                data.add_line(workflow.now(), text, step_id)
            data.set_step(step_id, StepState.WAITING_QUOTA, error=text)
            self._changed()
        await workflow.sleep(max(until - workflow.now(), timedelta(0)))
        data.set_progress(step_id, until=None)

    def over(self, step_id: str) -> None:
        """Note that a step has got what it has waited for."""
        if self._data.progress_of(step_id).looks:
            self._data.set_progress(step_id, looks=0, until=None)
            state = self._data.steps[step_id].state
            self._data.set_step(step_id, state, error=None)


def next_look(looks: int) -> timedelta:
    """Return how long to wait for the next look, after so many."""
    # Beyond that it is the longest in any case.
    return min(SHORTEST_LOOK * (1 << min(looks, 10)), LONGEST_LOOK)


#: Requests of one step that nobody has answered before nobody is asked any more. Each adds to the
#: run's history, and the server ends a run whose history is too long without undoing anything.
MOST_UNANSWERED: Final = 200
#: How soon a run looks again at a request whose time is over by its own clock only; each time twice
#: as long.
FIRST_LOOK_AT_DECISIONS: Final = timedelta(seconds=1)
LONGEST_LOOK_AT_DECISIONS: Final = timedelta(minutes=10)


class ApprovalWait:
    """Asks humans about the calls of one run's steps."""

    def __init__(
        self,
        data: RunData,
        decisions: Decisions,
        call: ActivityClient,
        changed: Callable[[], None],
        quotas: QuotaWaits,
    ) -> None:
        self._quotas = quotas
        self._data = data
        self._decisions = decisions
        self._call = call
        self._changed = changed

    async def approved(self, step: Step, call: ToolCall) -> ToolCall:
        """Return the call as it was approved; unchanged, if no human has to be asked.

        Raises:
            StepFailed: It was rejected, nobody has answered in time, or the run is ending.
        """
        data = self._data
        at = data.progress_of(step.id)
        escalated_to, request = at.escalated_to, at.request
        while True:
            if request is None:
                data.set_progress(step.id, call=call, asks=True, escalated_to=escalated_to)
                request = await self._ask(step, call, escalated_to)
            if request is None:
                return call
            data.set_progress(step.id, request=request)
            approval_id = request.approval_id
            state = await self._decided(approval_id, request.expires_at - workflow.now())
            match state:
                case ApprovalState.APPROVED:
                    return call.model_copy(
                        update={"approval_id": approval_id, "params_hash": request.params_hash}
                    )
                case ApprovalState.SUPERSEDED:
                    call = await self._edited(step, call, approval_id)
                case ApprovalState.EXPIRED if self._may_ask_again(step, request):
                    escalated_to = self._again(step, request, escalated_to)
                case _:
                    raise self._refused(approval_id, state)
            request = None
            data.set_progress(step.id, request=None)

    async def _ask(
        self, step: Step, call: ToolCall, escalated_to: str | None
    ) -> ApprovalRequest | None:
        data = self._data
        summary = f"{step.id}: ask for approval of {call.tool.name}"
        while True:
            early = data.gate.early(step.id, data.inbox.queue)
            wanted = RequestApproval(
                call=call,
                number=data.gate.next_number(step.id),
                editors=self._data.of_step(step.id).editors,
                escalated_to=escalated_to,
                early=tuple(self._decisions.to_verify(one) for one in early),
            )
            here = not any(one.update for one in early)
            data.gate.asking.add(step.id)
            try:
                asked = await self._call(ports.REQUEST_APPROVAL, wanted, summary, here=here)
            except asyncio.CancelledError:
                self._leave_if_ending(step)
                raise
            finally:
                data.gate.asking.discard(step.id)
            data.keep_head(asked.head)
            if asked.over_quota is None:
                break
            self._leave_if_ending(step)
            leave_if_cancelled()
            await self._quotas.wait(step.id, asked.over_quota)
        self._quotas.over(step.id)
        request = asked.request
        if request is None:
            return None
        data.note_foreign(request.foreign)
        data.calls[step.id] = request.params_hash
        state = asked.state or ApprovalState.PENDING
        held = data.gate.ask(request, state, asked.decided, verified=asked.verified)
        data.inbox.put_back(held)
        self._leave_if_ending(step)
        leave_if_cancelled()  # An amended plan asks anew.
        for vote in asked.standing:
            data.add_line(workflow.now(), f"{request.approval_id}: approved by {vote}", step.id)
        if state is ApprovalState.PENDING:
            data.add_line(workflow.now(), f"waiting for approval: {request.description}", step.id)
            data.set_step(step.id, StepState.WAITING_APPROVAL)
        self._changed()
        return request

    def _leave_if_ending(self, step: Step) -> None:
        if self._data.stopping:
            raise cut_short(self._data.saga, step.id)

    async def _edited(self, step: Step, call: ToolCall, approval_id: str) -> ToolCall:
        # The row may tell of an edit before the run has heard of it.
        await workflow.wait_condition(lambda: approval_id in self._data.gate.accepted)
        edit = self._data.gate.accepted[approval_id]
        known = self._data.of_step(step.id)
        others = (name for name in known.editors if name != edit.approver)
        known.editors = (*others, edit.approver)
        by = self._data.gate.decided_by(approval_id)
        self._data.add_line(workflow.now(), f"{by} has edited the params: asking again", step.id)
        known.edited = edit.params or {}
        return call.model_copy(update={"params": edit.params or {}, "late": []})

    def _may_ask_again(self, step: Step, request: ApprovalRequest) -> bool:
        known = self._data.of_step(step.id)
        known.unanswered += 1
        return request.on_expiry != "deny" and known.unanswered < MOST_UNANSWERED

    def _again(self, step: Step, request: ApprovalRequest, escalated_to: str | None) -> str | None:
        """Ask once more after a request has expired; returns who alone may decide then."""
        on_expiry = request.on_expiry
        escalated_to = on_expiry.escalate if isinstance(on_expiry, Escalate) else escalated_to
        whom = f" {escalated_to}" if escalated_to else ""
        text = f"{request.approval_id} has expired: asking{whom} again"
        self._data.add_line(workflow.now(), text, step.id)
        return escalated_to

    def _refused(self, approval_id: str, state: ApprovalState) -> StepFailed:
        gate = self._data.gate
        decision = gate.accepted.get(approval_id)
        if decision is None or state is not ApprovalState.REJECTED:
            return StepFailed(f"approval {approval_id} is {state}", rejected=True)
        reason = f": {decision.reason}" if decision.reason else ""
        return StepFailed(f"rejected by {gate.decided_by(approval_id)}{reason}", rejected=True)

    async def _decided(self, approval_id: str, left: timedelta) -> ApprovalState:
        """Wait for a decision or the end of the request; the row says which came first."""
        states, look = self._data.gate.states, FIRST_LOOK_AT_DECISIONS
        while states[approval_id] is ApprovalState.PENDING:
            if not await comes_true(
                lambda: states[approval_id] is not ApprovalState.PENDING,
                max(left, timedelta(milliseconds=1)),
            ):
                # The database's clock may be a little behind: then the row is still pending.
                await self._decisions.close(approval_id, expired=True)
                left, look = look, min(2 * look, LONGEST_LOOK_AT_DECISIONS)
        return states[approval_id]


T = TypeVar("T")


class TimeOver(Exception):
    """A call was given up before it had ended; what of it has happened is in the ledger."""


async def within(left: timedelta, work: Coroutine[Any, Any, T], stopping: Callable[[], bool]) -> T:
    """Return what a call returns, or have it tried no more when its time is over.

    An attempt that is under way then ends and is recorded, and its end counts.

    Args:
        left: The time that is left to it.
        work: The call of an activity that waits for its end when it is cancelled.
        stopping: Whether the run is ending.

    Raises:
        TimeOver: It was given up between two attempts, or its last one has failed for a moment.
        ActivityError: It has failed for good.
    """
    running = asyncio.create_task(work)
    over = False
    try:
        over = not await comes_true(running.done, left)
    except asyncio.CancelledError:
        running.cancel()
        if not stopping():
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


class LimitedCalls:
    """Makes the calls of one run's steps, each within the time limit of its step."""

    def __init__(
        self, data: RunData, tool_calls: ToolCalls, undo: Callable[[str], Awaitable[None]]
    ) -> None:
        self._data = data
        self._tool_calls = tool_calls
        self._undo = undo

    async def report(self, step: Step, call: ToolCall) -> ToolReport:
        """Make a call, and have it tried no more when the step's time is over.

        Raises:
            StepFailed: Its time is over; or the run ends before the call has begun.
            ActivityError: As the activity ended.
        """
        limit, data = step.time_limit, self._data
        if limit is None or call.joined is not None:  # it waits for people, at another step
            return await self._tool_calls.execute(step.id, call, alone=limit is not None)
        began, spent = workflow.now(), data.progress_of(step.id).spent
        if spent >= limit:
            raise StepFailed(_over(limit))
        try:
            making = self._tool_calls.execute(step.id, call, alone=True)
            return await within(limit - spent, making, lambda: data.stopping)
        except TimeOver as error:
            # Nobody has said whether a write has happened: the plan goes on once it is undone.
            doubt = call.tool.effect is Effect.WRITE
            goes_on = data.request.plan.on_failure(step) not in ("compensate", "pause")
            if doubt and goes_on and not data.stopping:
                await self._undo(step.id)
                doubt = False
            raise StepFailed(_over(limit), unsettled=doubt) from error
        finally:
            data.set_progress(step.id, spent=spent + (workflow.now() - began))

    def with_pause(self, step: Step, pause: timedelta, reason: str) -> timedelta:
        """Return what the step has taken of its time after a pause.

        Raises:
            StepFailed: The pause is longer than the time that is left.
        """
        spent = self._data.progress_of(step.id).spent + pause
        if step.time_limit is not None and spent >= step.time_limit:
            raise StepFailed(f"{_over(step.time_limit)}: {reason}")
        return spent


def _over(limit: timedelta) -> str:
    return f"its time limit ({limit.total_seconds():g} s) is over"
