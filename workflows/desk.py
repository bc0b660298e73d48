"""The run's desk: works off what arrives from outside (decisions, what steers the run).

Handlers only leave things in the inboxes of the gate and of the helm; the desk's loop asks the
ledger for the verdicts, one at a time, and the run follows the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows import ports
from workflows.approvals import Delivery as Decided
from workflows.book import Book, Question
from workflows.calls import Calls
from workflows.contracts import (
    ApprovalState,
    Carried,
    CloseApproval,
    Resolution,
    ResolutionOutcome,
    SettleIntervention,
    StepState,
    Verb,
    Verdict,
    VerdictCode,
    VerifyDecision,
)
from workflows.ends import reason_of
from workflows.helm import Answer, Delivery, Helm

#: Steps in these states need no approval any more.
_FINISHED = frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED})


class Desk:
    """Works off one run's inboxes."""

    def __init__(self, book: Book, call: Calls, helm: Helm, changed: Callable[[], None]) -> None:
        self._book = book
        self._call = call
        self._gate = book.gate
        self._helm = helm
        self._changed = changed
        self.to_undo: dict[str, str] = {}
        """Who wants what an intervention is about to be undone, by its id."""
        # A question can be answered before its report arrives here: it must not be waited for.
        self._settled: set[str] = set()
        self._busy = False
        helm.take(Verb.RESOLVE, Resolution, self._settle)

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``."""
        return {"to_undo": self.to_undo, "settled_questions": sorted(self._settled)}

    def restore(self, carried: Carried) -> None:
        """Take over what another execution has carried."""
        self.to_undo = dict(carried.to_undo)
        self._settled = set(carried.settled_questions)

    @property
    def idle(self) -> bool:
        """Whether everything that arrived has been worked off."""
        return not self._gate.inbox and self._helm.idle and not self._busy

    @property
    def others_wait(self) -> bool:
        """Whether something has arrived behind the control that is being judged."""
        return bool(self._gate.inbox) or len(self._helm.inbox) > 1

    async def work(self) -> None:
        """Work off what arrives, for as long as the run lasts."""
        while True:
            await workflow.wait_condition(lambda: bool(self._gate.inbox) or bool(self._helm.inbox))
            self._busy = True
            try:
                if self._decision_is_first():
                    await self._decide(self._gate.inbox.popleft())
                else:
                    await self._helm.work_one()
            finally:
                self._busy = False
            self._changed()

    def _decision_is_first(self) -> bool:
        # In the order in which they came: a call that is approved after a pause waits.
        decided, steered = self._gate.inbox, self._helm.inbox
        return not steered or (bool(decided) and decided[0].place < steered[0].place)

    async def _decide(self, delivery: Decided) -> None:
        unfinished = {view.id for view in self._book.steps.values() if view.state not in _FINISHED}
        may_come = self._book.ended is None and not self._book.compensating
        if may_come and self._gate.is_early(delivery, unfinished):
            self._gate.hold(delivery)
            return
        request = self._book.request
        asked = VerifyDecision(
            tenant=request.tenant,
            run_id=request.run_id,
            decision_id=delivery.decision_id,
            decision=delivery.decision,
            refused=delivery.refused,
        )
        edited = None
        try:
            reached = await self._call(ports.VERIFY_DECISION, asked, "verify a decision")
            self._book.saw(reached.head)
            verdict, edited = reached.verdict, reached.params
        except Exception as error:
            # Nobody else works off what arrives: the next one is not held up by this one.
            if not isinstance(error, ActivityError):
                workflow.logger.exception("a decision could not be judged")
            verdict = Verdict(
                decision_id=delivery.decision_id,
                approval_id=delivery.decision.approval_id if delivery.decision else "",
                code=VerdictCode.MALFORMED,
                message=f"it could not be judged: {reason_of(error)}",
            )
        self._gate.settle(delivery, verdict, edited)
        counted = verdict.code is VerdictCode.ACCEPTED
        mark = "" if verdict.verified else " (unverified)"
        self._book.say(
            workflow.now(),
            f"{verdict.approval_id}: {verdict.message}{mark}"
            if counted
            else f"decision refused ({verdict.code}): {verdict.message}",
        )

    async def _settle(self, resolution: Resolution, delivery: Delivery) -> Answer:
        request = self._book.request
        asked = SettleIntervention(
            tenant=request.tenant,
            run_id=request.run_id,
            resolution_id=delivery.steering_id,
            resolution=resolution,
        )
        settled = await self._call(ports.SETTLE_INTERVENTION, asked, "settle an intervention")
        self._book.saw(settled.head)
        if settled.accepted or settled.settled:
            # Refused because it is settled already (a reset run asks anew): the row decides.
            self._settled.add(resolution.intervention_id)
            self._book.questions.pop(resolution.intervention_id, None)
        if settled.accepted and resolution.outcome is ResolutionOutcome.UNDO:
            self.to_undo[resolution.intervention_id] = resolution.actor
        return Answer(settled.accepted, settled.message)

    def ask(self, question: Question) -> None:
        """Show an intervention to whoever looks at the run, unless it is settled meanwhile."""
        known = question.intervention_id in self._book.questions
        if question.intervention_id in self._settled or known:
            return
        self._book.questions[question.intervention_id] = question
        self._book.say(workflow.now(), question.text, question.step_id)
        self._changed()

    async def settled(self, question: Question) -> None:
        """Wait until a human has settled an intervention, holding no process."""
        await workflow.wait_condition(lambda: question.intervention_id not in self._book.questions)

    async def close_approval(self, approval_id: str, *, expired: bool) -> ApprovalState:
        """Expire or void a request and return its state now: a decision may have been quicker."""
        request = self._book.request
        asked = CloseApproval(
            tenant=request.tenant,
            run_id=request.run_id,
            approval_id=approval_id,
            to="expired" if expired else "void",
        )
        closed = await self._call(ports.CLOSE_APPROVAL, asked, f"close {approval_id}")
        self._book.saw(closed.head)
        self._gate.close(approval_id, closed.state)
        return closed.state
