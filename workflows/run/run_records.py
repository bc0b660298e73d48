"""The parts of a run's state: steps, writes, approvals, and how a step ends without success."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from pydantic import JsonValue
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows.contracts import approvals
from surehand.workflows.contracts.base import Message, NameSet, Record
from surehand.workflows.contracts.effects import RemainingEffect
from surehand.workflows.contracts.runs import ChildReport
from surehand.workflows.contracts.steering import Interrupt, ResumeRun
from surehand.workflows.contracts.tools import AttemptsUsed, ToolCall, ToolOutcome, ToolSpec
from surehand.workflows.identity import approval_id as approval_id_of
from surehand.workflows.identity import run_of_approval, standing_digest
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import Step
from surehand.workflows.run.deliveries import Delivery


class StepProgress(Message):
    """How far a step under way has come: all it needs to go on waiting where it waits."""

    step: Step | None = None
    """The step, where it is not the plan's any more: another tool, or other params."""
    call: ToolCall | None = None
    """What is called next, with its approval, and the answers so far."""
    accepted: bool = False
    """Whether the human who looks at it before it starts has let it."""
    asks: bool = False
    """Whether it has to be approved first."""
    request: approvals.ApprovalRequest | None = None
    counted: bool = False
    """Whether the budget counts its call: it is under way, or about to be."""
    escalated_to: str | None = None
    outcome: ToolOutcome | None = None
    """How the last call has ended, while the step does what follows from it."""
    resumed: int | None = None
    """How often the run had been resumed when the step began to wait for a permission."""
    until: datetime | None = None
    """When the provider takes calls again, or a quota is looked at."""
    looks: int = 0
    """How often it has found a quota used up."""
    spent: timedelta = timedelta(0)
    """What its calls have taken of its time limit."""
    interrupt: Interrupt | None = None
    failed: dict[str, Any] | None = None
    """How it, or an item of it, has failed, while people look at it: fields of ``StepFailed``."""
    items: list[JsonValue] | None = None
    """What a list is made for: what it was read from may be read again meanwhile."""


class StepRecord(Record):
    """What a run knows of one step, beside what people see of it and how far it has come."""

    begun: datetime | None = None
    read_at: datetime | None = None
    """When a read that stays fresh for a while has returned."""
    attempts_used: int = 0
    """Attempts that its calls have used up: it may be told to try again."""
    editors: tuple[str, ...] = ()
    """Who has changed its params since the plan asked for its call."""
    edited: dict[str, JsonValue] | None = None
    """The params that a human has put in the place of others."""
    settles: bool = False
    """Whether it is tried again to settle a call that may have happened."""
    renewed: bool = False
    """Whether its tool was taken again after it had changed: a human looks at its write."""
    unanswered: int = 0
    """Its requests that nobody has answered in time."""
    asked: int = 0
    spec: ToolSpec | None = None
    """Of a model's turn, while it is under way: two turns of one run may have other ones."""
    way: ResumeRun | None = None


class Spent(Record):
    """What a run has used."""

    steps: int = 0
    tokens: int = 0
    money: Decimal = Decimal(0)


class KeptEvents(Record):
    """The events from outside that have arrived."""

    kept: dict[str, dict[str, list[JsonValue]]] = {}
    """Payloads of those that no step has taken yet, by name and what they are about."""
    ids: dict[str, None] = {}
    """Those that are known again."""

    @property
    def count(self) -> int:
        return sum(len(payloads) for kept in self.kept.values() for payloads in kept.values())

    def keep(self, name: str, about: str, payload: JsonValue) -> None:
        """Keep an event until a step takes it."""
        self.kept.setdefault(name, {}).setdefault(about, []).append(payload)

    def has(self, name: str, about: str) -> bool:
        return about in self.kept.get(name, {})

    def take(self, name: str, about: str) -> JsonValue:
        """Return the payload of the oldest such event, which is used then."""
        payloads = self.kept[name][about]
        payload = payloads.pop(0)
        if not payloads:
            del self.kept[name][about]
        if not self.kept[name]:
            del self.kept[name]
        return payload


class ChildRuns(Record):
    """The child runs of a run, by the steps that they are."""

    running: dict[str, str] = {}
    """Run ids of those under way."""
    starting: dict[str, list[Delivery]] = {}
    """What those are to be told that cannot hear yet."""
    told_to_end: NameSet = set()
    reports: dict[str, ChildReport] = {}
    """Where those under way stand."""
    reported: NameSet = set()
    """Those that have reported since somebody has looked."""
    early: dict[str, ChildReport] = {}
    """What child runs of an earlier life of this run have reported, by their run ids."""
    tries: dict[str, int] = {}

    def list_questions(self) -> dict[str, Interrupt]:
        """Return what the children ask, by the ids under which this run's people answer it."""
        return {
            f"{step_id}/{interrupt.interrupt_id}": interrupt
            for step_id, report in self.reports.items()
            for interrupt in report.interrupts
        }


class CodeState(Record):
    """Of a run whose steps code makes: what is the code's own, and the ids that steps have."""

    handed_on: JsonValue = None
    """What the execution before has handed on."""
    ids: NameSet = set()
    numbers: dict[str, int] = {}
    """By what ids are made from: the newest number."""
    turns: int = 0
    """How many turns models have taken."""
    offered: dict[str, NameSet] = {}
    """The tools that models were offered first, by the patterns that name them."""


#: What is said of a step that is undone where somebody would have it done again.
NO_MORE: Final = "has been undone, and is not called again: give what is to be done a new step id"


class Saga(Record):
    """The writes and the child runs of one run, as far as this life of it knows them."""

    # Ordered, and looked up at each write of a run that may have thousands.
    started: dict[str, None] = {}
    """Steps whose write was begun, and whose outcome is not known."""
    made: dict[str, str] = {}
    """Steps by the entries of what they have made."""
    found: dict[str, str] = {}
    """The same of what the ledger has, and this life has yet to come to."""
    relied: dict[str, str] = {}
    """Entries by the steps that go on with what another run has made."""
    reused: dict[str, str] = {}
    """Entries by the steps that go on with what another step of this run has made."""
    children: dict[str, str | None] = {}
    """Child runs that have ended, with their step where they have completed."""
    barred: NameSet = set()
    """Steps that are undone, or being undone: the ledger refuses their calls ever after."""
    undoing: NameSet = set()
    """Steps that are being undone while the run goes on: it does not continue as new meanwhile."""

    def register(self, step_id: str) -> None:
        """Note a write, or a child run, *before* it starts, so that none can be overlooked."""
        self.started.setdefault(step_id)
        self.relied.pop(step_id, None)
        self.reused.pop(step_id, None)

    def note_commit(self, step_id: str, entry_id: str) -> None:
        self.started.pop(step_id, None)
        self.found.pop(entry_id, None)
        self.made[entry_id] = step_id

    def note_reliance(self, step_id: str, entry_id: str | None, *, own: bool) -> None:
        """Note that a step has made nothing itself, and what it goes on with, if that is a write.

        Its owner may be a step of another life of this run (``own``): then it is wanted all the
        same.
        """
        self.drop(step_id)
        if entry_id is not None:
            (self.reused if own else self.relied)[step_id] = entry_id

    def add_found(self, step_id: str, entry_id: str) -> None:
        """Note an effect of this run that the ledger knows of, and this life does not."""
        self.found[entry_id] = step_id

    def accept(self, step_id: str) -> None:
        """Take for this life's own what the ledger has of a step that it does not come to."""
        for entry_id in [id_ for id_, step in self.found.items() if step == step_id]:
            self.made[entry_id] = self.found.pop(entry_id)

    def note_child_end(self, step_id: str, child: str, *, completed: bool) -> None:
        """Note the end of a child run; one that has not completed has undone what it had done."""
        self.started.pop(step_id, None)
        self.children[child] = step_id if completed else None

    def drop(self, step_id: str) -> None:
        """Forget a write that is not ours to undo: answered no, or made by another run."""
        self.started.pop(step_id, None)
        self.relied.pop(step_id, None)
        self.reused.pop(step_id, None)

    def withdraw(self, step_id: str) -> None:
        """Forget a step that is undone, with its child runs."""
        self.drop(step_id)
        for child, step in self.children.items():
            if step == step_id:
                self.children[child] = None

    def forget_undone(self, entry_id: str) -> None:
        self.made.pop(entry_id, None)
        self.found.pop(entry_id, None)

    def knows(self, remaining: RemainingEffect) -> bool:
        """Return whether this life has made an effect, has heard of who has, or goes on with it."""
        entry_id, children = remaining.effect.entry_id, self.children
        if entry_id in self.made or remaining.child in children:
            return True
        used = any(children.get(child) is not None for child in remaining.used_in)
        return used or entry_id in (*self.relied.values(), *self.reused.values())

    def standing_digest(self) -> str:
        """Return the digest of what stands if no other life of the run has made or undone any."""
        return standing_digest([*self.made, *self.reused.values()], self.children)

    def lost_steps(self, remains: Set[str], unwound: Set[str]) -> list[str]:
        """Return the steps of which something is undone that this life takes for done.

        ``remains`` are the entries that remain, ``unwound`` the child runs of which something was
        undone after their end. What was another run's, and is undone, this run is told of
        (``ledger/effects/interventions.py``).
        """
        made = [step for entry_id, step in self.made.items() if entry_id not in remains]
        made += [step for step, entry_id in self.reused.items() if entry_id not in remains]
        children = [step for child, step in self.children.items() if child in unwound]
        return list(dict.fromkeys([*made, *(step for step in children if step is not None)]))

    def unsettled(self) -> list[str]:
        """Return the writes that have started and have no recorded outcome."""
        return list(self.started)

    def steps(self) -> list[str]:
        """Return the steps of which something may remain, in the order of their beginnings."""
        children = (step for step in self.children.values() if step is not None)
        all_ = (*self.made.values(), *children, *self.started, *self.found.values())
        return list(dict.fromkeys(all_))


#: Ends of a write that say that its effect did not happen. Any other end is in doubt.
PROVEN: Final = frozenset({ErrorType.TOOL_FAILED, ErrorType.NOT_AS_REVIEWED, ErrorType.CALLED_OFF})
#: Ends of a call that was refused before it began. Others write their own event.
REFUSED: Final = frozenset(
    {
        ErrorType.INVALID_PARAMS,
        ErrorType.TOOL_NOT_FOUND,
        ErrorType.TOOL_CHANGED,
        ErrorType.QUOTA_EXCEEDED,
    }
)


@dataclass(eq=False)
class StepFailed(Exception):
    """The step failed permanently.

    Example:
        >>> async def pay(steps: StepMaker, order_id: str) -> bool:
        ...     try:
        ...         await steps.call("payments.refund", {"order_id": order_id, "amount": "20.00"})
        ...     except StepFailed as failed:
        ...         return not failed.rejected
        ...     return True
    """

    reason: str
    """Why, as one line."""
    _: KW_ONLY
    rejected: bool = False
    """A human said no, or nobody answered in time: the run ends, whatever ``on_failure`` says."""
    declined: bool = False
    """A human said no: the run ends as they want."""
    unsettled: bool = False
    """A write that may have happened; nothing may go on over it, either."""
    called: bool = True
    """Whether its tool was called at all; a step that was not is skipped."""
    given_up: bool = False
    """Somebody has looked at the failure, and had the run end."""
    called_off: bool = False
    """It was in doubt, and a human has called it off, or had it undone."""
    unreviewed: bool = False
    """The tool is not as it was reviewed: a human looks, whatever ``on_failure`` says."""

    def __str__(self) -> str:
        return self.reason


class StepRefused(StepFailed):
    """The step was refused before anything of it began: an event says so, and why."""


def cut_short(saga: Saga, step_id: str) -> StepFailed:
    """Return how a step ends that the run's end leaves no time for."""
    return StepFailed("the run is ending", called=step_id in saga.unsettled())


def leave_if_cancelled() -> None:
    """End a step that was cancelled while the ledger recorded something for it.

    Such a call ends as if nothing had happened: whatever the step waits for next, it would wait for
    although nobody wants it any more.
    """
    step = asyncio.current_task()
    if step is not None and step.cancelling():
        raise asyncio.CancelledError


def reason_of(error: Exception) -> str:
    """Return why an activity ended, or what else went wrong, as one line."""
    if not isinstance(error, ActivityError):
        return f"{type(error).__name__}: {error}"
    cause = error.cause
    if isinstance(cause, ApplicationError):
        named = cause.message.startswith(f"{cause.type}: ")
        return cause.message if named else f"{cause.message} ({cause.type})"
    return str(cause or error)


def type_of(error: ActivityError) -> str | None:
    """Return the wire type of the failure that ended an activity."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def used_by(error: ActivityError) -> AttemptsUsed:
    """Return what a failed activity has used up; nothing where it could not say."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.details:
        details = cause.details[0]
        if isinstance(details, dict) and isinstance(details.get("attempts"), int):
            return AttemptsUsed.model_validate(details)
    return AttemptsUsed(attempts=0)


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
    pending: dict[str, approvals.ApprovalRequest] = {}
    states: dict[str, approvals.ApprovalState] = {}
    """The requests of this run by approval id; forgotten are old ones of steps that are done."""
    numbers: dict[str, int] = {}
    """The number of each step's newest request."""
    settled: dict[str, approvals.ApprovalRequest] = {}
    accepted: dict[str, approvals.Decision] = {}
    """The newest decision that counts, by approval id; an edit with the params as validated."""
    verified: NameSet = set()
    """Requests of which a signature proves who has decided them."""

    def is_early(self, delivery: Delivery, unfinished: Set[str]) -> bool:
        """Return whether a decision's request is the next that its step can make.

        Any other number is a slip of the pen: it would be held forever, and its sender believe it
        was taken. While a request is being written, nobody knows its number yet. ``unfinished`` are
        the steps of the current plan that have not finished.
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

    def list_early(self, step_id: str, queue: Iterable[Delivery]) -> list[Delivery]:
        """Return the decisions on a step's next request, in the order in which they have come.

        ``queue`` has arrived for the run, and was not judged yet.
        """
        following = approval_id_of(self.run_id, step_id, self.next_number(step_id))
        arrived = (*self.held, *queue)
        mine = [d for d in arrived if d.decision and d.decision.approval_id == following]
        return mine[:MOST_HELD]

    def hold(self, delivery: Delivery) -> approvals.Verdict:
        assert delivery.decision is not None
        self.held.append(delivery)
        return approvals.Verdict(
            decision_id=delivery.id,
            approval_id=delivery.decision.approval_id,
            code=approvals.VerdictCode.HELD,
            message="arrived before its request; it is verified when the request exists",
        )

    def held_decisions(self) -> list[tuple[approvals.Decision, str]]:
        """Return the early decisions that are held, each with its step."""
        held = [one.decision for one in self.held if one.decision is not None]
        named = [(one, run_of_approval(one.approval_id)) for one in held]
        return [(one, parts[1]) for one, parts in named if parts is not None]

    def note_request(
        self,
        request: approvals.ApprovalRequest,
        state: approvals.ApprovalState,
        decided: approvals.Decision | None = None,
        *,
        verified: bool = False,
    ) -> list[Delivery]:
        """Take up that a request exists; returns the decisions that were held for it.

        A run that was reset finds its earlier requests, in the state of their rows, with what has
        rejected or edited them.
        """
        if decided is not None:
            self.accepted[request.approval_id] = decided
            if verified:
                self.verified.add(request.approval_id)
        # More than the next, where the ledger had other requests under the numbers between.
        number = int(request.approval_id.rpartition("/")[2])
        self.numbers[request.step_id] = max(number, self.numbers.get(request.step_id, 0))
        self.states[request.approval_id] = state
        if state is approvals.ApprovalState.PENDING:
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

    def follow_verdict(
        self, delivery: Delivery, verdict: approvals.Verdict, edited: dict[str, Any] | None = None
    ) -> None:
        """Follow the row after a verdict, with the params of an edit that counts."""
        counts = verdict.code is approvals.VerdictCode.ACCEPTED
        if delivery.decision is not None and counts:
            counted = delivery.decision.model_copy(update={"params": edited})
            self.accepted[verdict.approval_id] = counted
            if verdict.verified:
                self.verified.add(verdict.approval_id)
            if counted.outcome is approvals.DecisionOutcome.APPROVE:
                self._count_vote(verdict)
        # A run that was reset hears of requests that it has yet to make, under their numbers.
        if verdict.state is not None and verdict.approval_id in self.states:
            self.follow_state(verdict.approval_id, verdict.state)

    def _count_vote(self, verdict: approvals.Verdict) -> None:
        request = self.pending.get(verdict.approval_id)
        by = self.decided_by(verdict.approval_id)
        if request is not None and by not in request.votes:
            votes = (*request.votes, by)
            self.pending[verdict.approval_id] = request.model_copy(update={"votes": votes})

    def follow_state(self, approval_id: str, state: approvals.ApprovalState) -> None:
        self.states[approval_id] = state
        if state is not approvals.ApprovalState.PENDING and approval_id in self.pending:
            self._remember_settled(self.pending.pop(approval_id))

    def _remember_settled(self, request: approvals.ApprovalRequest) -> None:
        self.settled[request.approval_id] = request
        while len(self.settled) > MOST_SETTLED:
            del self.settled[next(iter(self.settled))]

    def settled_views(self) -> list[approvals.SettledApproval]:
        return [self._settled_view(request) for request in self.settled.values()]

    def _settled_view(self, request: approvals.ApprovalRequest) -> approvals.SettledApproval:
        name = request.approval_id
        decision, state = self.accepted.get(name), self.states[name]
        if state in (approvals.ApprovalState.EXPIRED, approvals.ApprovalState.VOID):
            return approvals.SettledApproval(request=request, state=state)
        by = self.decided_by(name) if decision is not None else ""
        if state is approvals.ApprovalState.APPROVED:
            by = ", ".join(request.votes)  # some may have been given in advance
        reason = decision.reason if decision is not None else ""
        return approvals.SettledApproval(request=request, state=state, decided_by=by, reason=reason)

    def decided_by(self, approval_id: str) -> str:
        """Return who has decided a request, marked if nothing proves the name."""
        mark = "" if approval_id in self.verified else " (unverified)"
        return f"{self.accepted[approval_id].approver}{mark}"

    def next_number(self, step_id: str) -> int:
        return self.numbers.get(step_id, 0) + 1

    def standing_of(self, step_id: str) -> list[str]:
        """Return a step's requests that wait, or were approved and may not be used yet."""
        mine = [id_ for id_ in self.states if id_.startswith(f"{self.run_id}/{step_id}/")]
        counts = {approvals.ApprovalState.PENDING, approvals.ApprovalState.APPROVED}
        return [id_ for id_ in mine if self.states[id_] in counts]


def _is_due(decision: approvals.Decision, request: approvals.ApprovalRequest) -> bool:
    """Return whether a decision can be judged: its request is there, void, or no next one."""
    step, _, number = decision.approval_id.rpartition("/")
    asked, _, newest = request.approval_id.rpartition("/")
    return step == asked and number != str(int(newest) + 1)
