"""Asking for approval of a call until it is given, with the params that were approved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.approvals import ApprovalRequest, ApprovalState, RequestApproval
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.control.decisions import Decisions
from surehand.workflows.plan.plan import Step
from surehand.workflows.plan.policy import Escalate
from surehand.workflows.state.run_state import RunData
from surehand.workflows.state.step_failure import (
    StepFailed,
    cut_short,
    leave_if_cancelled,
)
from surehand.workflows.steps.quota_waiting import QuotaWaits
from surehand.workflows.wait_condition import comes_true

#: Requests of one step that nobody has answered before nobody is asked any more. Each adds to the
#: run's history, and the server ends a run whose history is too long without undoing anything.
MOST_UNANSWERED: Final = 200
#: How soon a run looks again at a request whose time is over by its own clock only; each time twice
#: as long.
SHORTEST_LOOK: Final = timedelta(seconds=1)
LONGEST_LOOK: Final = timedelta(minutes=10)


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
        states, look = self._data.gate.states, SHORTEST_LOOK
        while states[approval_id] is ApprovalState.PENDING:
            if not await comes_true(
                lambda: states[approval_id] is not ApprovalState.PENDING,
                max(left, timedelta(milliseconds=1)),
            ):
                # The database's clock may be a little behind: then the row is still pending.
                await self._decisions.close(approval_id, expired=True)
                left, look = look, min(2 * look, LONGEST_LOOK)
        return states[approval_id]
