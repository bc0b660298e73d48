"""The gate as a pure state machine: requests and verdicts in, what they come to out.

The approval's row in the ledger decides; this keeps what the run knows of it, and holds decisions
that arrive before their request.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, Final

from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    ApprovalState,
    Decision,
    DecisionOutcome,
    SettledApproval,
    Verdict,
    VerdictCode,
)
from surehand.workflows.contracts.base import NameSet, Record
from surehand.workflows.deliveries import Delivery
from surehand.workflows.identity import approval_id as approval_id_of
from surehand.workflows.identity import run_of_approval

#: Early decisions that a run holds; more are refused as unknown.
MOST_HELD: Final = 100
#: Settled requests that it remembers, each with its params; the ledger keeps all.
MOST_SETTLED: Final = 50


class Gate(Record):
    """What one run knows of its approvals."""

    run_id: str
    held: list[Delivery] = []
    asking: NameSet = set()
    """Steps whose request is being written."""
    pending: dict[str, ApprovalRequest] = {}
    states: dict[str, ApprovalState] = {}
    """The requests of this run by approval id; forgotten are old ones of steps that are done."""
    numbers: dict[str, int] = {}
    """The number of each step's newest request."""
    settled: dict[str, ApprovalRequest] = {}
    accepted: dict[str, Decision] = {}
    """The newest decision that counts, by approval id; an edit with the params as validated."""
    verified: NameSet = set()
    """Requests of which a signature proves who has decided them."""

    def is_early(self, delivery: Delivery, unfinished: Set[str]) -> bool:
        """Return whether a decision's request is the next that its step can make.

        Any other number is a slip of the pen: it would be held for ever, and its sender believe it
        was taken. While a request is being written, nobody knows its number yet.

        Args:
            unfinished: The steps of the current plan that have not finished.
        """
        if delivery.decision is None or delivery.decision.approval_id in self.states:
            return False
        named = run_of_approval(delivery.decision.approval_id)
        if named is None or named[0] != self.run_id or named[1] not in unfinished:
            return False
        following = approval_id_of(self.run_id, named[1], self.next_number(named[1]))
        may_come = delivery.decision.approval_id == following or named[1] in self.asking
        return may_come and len(self.held) < MOST_HELD

    def is_being_asked(self, delivery: Delivery) -> bool:
        """Return whether a decision's request may be there already, unknown to the run."""
        if delivery.decision is None:
            return False
        named = run_of_approval(delivery.decision.approval_id)
        return named is not None and named[0] == self.run_id and named[1] in self.asking

    def early(self, step_id: str, queue: Iterable[Delivery]) -> list[Delivery]:
        """Return the decisions on a step's next request, in the order in which they have come.

        Args:
            queue: What has arrived for the run, and was not judged yet.
        """
        following = approval_id_of(self.run_id, step_id, self.next_number(step_id))
        arrived = (*self.held, *queue)
        mine = [d for d in arrived if d.decision and d.decision.approval_id == following]
        return mine[:MOST_HELD]

    def hold(self, delivery: Delivery) -> Verdict:
        """Keep an early decision until its request exists."""
        assert delivery.decision is not None
        self.held.append(delivery)
        return Verdict(
            decision_id=delivery.id,
            approval_id=delivery.decision.approval_id,
            code=VerdictCode.HELD,
            message="arrived before its request; it is verified when the request exists",
        )

    def held_decisions(self) -> list[tuple[Decision, str]]:
        """Return the early decisions that are held, each with its step."""
        held = [one.decision for one in self.held if one.decision is not None]
        named = [(one, run_of_approval(one.approval_id)) for one in held]
        return [(one, parts[1]) for one, parts in named if parts is not None]

    def ask(
        self,
        request: ApprovalRequest,
        state: ApprovalState,
        decided: Decision | None = None,
        *,
        verified: bool = False,
    ) -> list[Delivery]:
        """Take up that a request exists; returns the decisions that were held for it.

        Args:
            request: What people see of it.
            state: Its row's; a run that was reset finds its earlier requests.
            decided: What has rejected or edited it.
            verified: Whether a signature proves that.
        """
        if decided is not None:
            self.accepted[request.approval_id] = decided
            if verified:
                self.verified.add(request.approval_id)
        # More than the next, where the ledger had other requests under the numbers between.
        number = int(request.approval_id.rpartition("/")[2])
        self.numbers[request.step_id] = max(number, self.numbers.get(request.step_id, 0))
        self.states[request.approval_id] = state
        if state is ApprovalState.PENDING:
            self.pending[request.approval_id] = request
        else:
            self._remember_settled(request)
        due = [d for d in self.held if d.decision and _is_due(d.decision, request)]
        self.held = [delivery for delivery in self.held if delivery not in due]
        return due

    def release_held(self) -> list[Delivery]:
        """Return what is still held, to be verified: its request will not come."""
        held, self.held = self.held, []
        return held

    def settle(
        self, delivery: Delivery, verdict: Verdict, edited: dict[str, Any] | None = None
    ) -> None:
        """Follow the row after a verdict, with the params of an edit that counts."""
        counts = verdict.code is VerdictCode.ACCEPTED
        if delivery.decision is not None and counts:
            counted = delivery.decision.model_copy(update={"params": edited})
            self.accepted[verdict.approval_id] = counted
            if verdict.verified:
                self.verified.add(verdict.approval_id)
            if counted.outcome is DecisionOutcome.APPROVE:
                self._count(verdict)
        # A run that was reset hears of requests that it has yet to make, under their numbers.
        if verdict.state is not None and verdict.approval_id in self.states:
            self.close(verdict.approval_id, verdict.state)

    def _count(self, verdict: Verdict) -> None:
        request = self.pending.get(verdict.approval_id)
        by = self.decided_by(verdict.approval_id)
        if request is not None and by not in request.votes:
            votes = (*request.votes, by)
            self.pending[verdict.approval_id] = request.model_copy(update={"votes": votes})

    def close(self, approval_id: str, state: ApprovalState) -> None:
        """Follow the row's state."""
        self.states[approval_id] = state
        if state is not ApprovalState.PENDING and approval_id in self.pending:
            self._remember_settled(self.pending.pop(approval_id))

    def _remember_settled(self, request: ApprovalRequest) -> None:
        self.settled[request.approval_id] = request
        while len(self.settled) > MOST_SETTLED:
            del self.settled[next(iter(self.settled))]

    def settled_views(self) -> list[SettledApproval]:
        """Return the settled requests as people see them, oldest first."""
        return [self._settled_view(request) for request in self.settled.values()]

    def _settled_view(self, request: ApprovalRequest) -> SettledApproval:
        name = request.approval_id
        decision, state = self.accepted.get(name), self.states[name]
        if state in (ApprovalState.EXPIRED, ApprovalState.VOID):
            return SettledApproval(request=request, state=state)
        by = self.decided_by(name) if decision is not None else ""
        if state is ApprovalState.APPROVED:
            by = ", ".join(request.votes)  # some may have been given in advance
        reason = decision.reason if decision is not None else ""
        return SettledApproval(request=request, state=state, decided_by=by, reason=reason)

    def decided_by(self, approval_id: str) -> str:
        """Return who has decided a request, marked if nothing proves the name."""
        mark = "" if approval_id in self.verified else " (unverified)"
        return f"{self.accepted[approval_id].approver}{mark}"

    def next_number(self, step_id: str) -> int:
        """Return the number of a step's next approval request."""
        return self.numbers.get(step_id, 0) + 1

    def standing_of(self, step_id: str) -> list[str]:
        """Return a step's requests that wait, or were approved and may not be used yet."""
        mine = [id_ for id_ in self.states if id_.startswith(f"{self.run_id}/{step_id}/")]
        counts = {ApprovalState.PENDING, ApprovalState.APPROVED}
        return [id_ for id_ in mine if self.states[id_] in counts]


def _is_due(decision: Decision, request: ApprovalRequest) -> bool:
    """Return whether a decision can be judged: its request is there, void, or no next one."""
    step, _, number = decision.approval_id.rpartition("/")
    asked, _, newest = request.approval_id.rpartition("/")
    return step == asked and number != str(int(newest) + 1)
