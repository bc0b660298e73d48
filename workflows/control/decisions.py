"""Decisions on approval requests: held until their request exists, and judged by its row."""

from __future__ import annotations

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.approvals import ApprovalState, CloseApproval, VerifyDecision
from surehand.workflows.contracts.states import ENDED_STEPS
from surehand.workflows.deliveries import Answer, Delivery, answer_of
from surehand.workflows.state.run_state import RunData


class Decisions:
    """Has the decisions that one run is sent judged, and follows what counts."""

    def __init__(self, data: RunData, call: ActivityClient) -> None:
        self._data = data
        self._call = call

    async def judge(self, delivery: Delivery) -> Answer:
        """Return the verdict on a decision; one that comes before its request is held."""
        data = self._data
        # One that is quicker than the report of its request is for a request that exists. But a
        # request may take long to write, and a cancellation does not wait for that.
        await workflow.wait_condition(
            lambda: (
                not data.gate.is_being_asked(delivery)
                or not all(map(data.gate.is_being_asked, data.inbox.queue))
            )
        )
        unfinished = {view.id for view in data.steps.values() if view.state not in ENDED_STEPS}
        may_come = data.ended is None and not data.compensating
        if may_come and data.gate.is_early(delivery, unfinished):
            return answer_of(data.gate.hold(delivery))
        asked = self.to_verify(delivery)
        reached = await self._call(
            ports.VERIFY_DECISION, asked, "verify a decision", here=not delivery.update
        )
        data.keep_head(reached.head)
        data.gate.settle(delivery, reached.verdict, reached.params)
        return answer_of(reached.verdict)

    def to_verify(self, delivery: Delivery) -> VerifyDecision:
        """Return what the ledger is asked about a decision."""
        return VerifyDecision(
            tenant=self._data.request.tenant,
            run_id=self._data.request.run_id,
            decision_id=delivery.id,
            decision=delivery.decision,
            refused=delivery.refused,
        )

    async def close(self, approval_id: str, *, expired: bool) -> ApprovalState:
        """Expire or void a request and return its state now: a decision may have been quicker."""
        request = self._data.request
        asked = CloseApproval(
            tenant=request.tenant,
            run_id=request.run_id,
            approval_id=approval_id,
            to="expired" if expired else "void",
        )
        closed = await self._call(ports.CLOSE_APPROVAL, asked, f"close {approval_id}")
        self._data.keep_head(closed.head)
        self._data.gate.close(approval_id, closed.state)
        return closed.state
