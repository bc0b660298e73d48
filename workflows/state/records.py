"""The parts of the run state: steps, effects, and how a step ends without success."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from pydantic import JsonValue
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.base import Message, NameSet, Record
from surehand.workflows.contracts.effects import RemainingEffect
from surehand.workflows.contracts.runs import ChildReport
from surehand.workflows.contracts.steering import Interrupt, ResumeRun
from surehand.workflows.contracts.tools import AttemptsUsed, ToolCall, ToolOutcome, ToolSpec
from surehand.workflows.deliveries import Delivery
from surehand.workflows.errors import ErrorType
from surehand.workflows.identity import standing_digest
from surehand.workflows.plan.plan import Step


class ShownFailure(Message):
    """How a step has failed that a human is looking at."""

    reason: str
    rejected: bool = False
    unsettled: bool = False
    called: bool = True
    given_up: bool = False
    called_off: bool = False
    unreviewed: bool = False


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
    request: ApprovalRequest | None = None
    """The approval that it waits for."""
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
    """The question, or the event, that it waits for."""
    failed: ShownFailure | None = None
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
    """Whether its tool was taken anew after it had changed: a human looks at its write."""
    unanswered: int = 0
    """Its requests that nobody has answered in time."""
    asked: int = 0
    """How many interrupts it has had."""
    spec: ToolSpec | None = None
    """Of a model's turn, while it is under way: two turns of one run may have other ones."""
    way: ResumeRun | None = None
    """How it is to go on after it has failed, until it does."""


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
        """How many are kept."""
        return sum(len(payloads) for kept in self.kept.values() for payloads in kept.values())

    def keep(self, name: str, about: str, payload: JsonValue) -> None:
        """Keep an event until a step takes it."""
        self.kept.setdefault(name, {}).setdefault(about, []).append(payload)

    def has(self, name: str, about: str) -> bool:
        """Return whether there is one that a step can take."""
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

    def committed(self, step_id: str, entry_id: str) -> None:
        """Note what a write has made."""
        self.started.pop(step_id, None)
        self.found.pop(entry_id, None)
        self.made[entry_id] = step_id

    def relies(self, step_id: str, entry_id: str | None, *, own: bool) -> None:
        """Note that a step has made nothing itself, and what it goes on with, if that is a write.

        Its owner may be a step of another life of this run: then it is wanted all the same.

        Args:
            entry_id: What it goes on with.
            own: Whether this run has made that.
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

    def ended(self, step_id: str, child: str, *, completed: bool) -> None:
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

    def undone(self, entry_id: str) -> None:
        """Forget an effect that does not remain any more."""
        self.made.pop(entry_id, None)
        self.found.pop(entry_id, None)

    def knows(self, remaining: RemainingEffect) -> bool:
        """Return whether this life has made an effect, has heard of who has, or goes on with it."""
        entry_id, children = remaining.effect.entry_id, self.children
        if entry_id in self.made or remaining.child in children:
            return True
        used = any(children.get(child) is not None for child in remaining.used_in)
        return used or entry_id in (*self.relied.values(), *self.reused.values())

    def standing(self) -> str:
        """Return the digest of what stands if no other life of the run has made or undone any."""
        return standing_digest([*self.made, *self.reused.values()], self.children)

    def lost(self, remains: Set[str], unwound: Set[str]) -> list[str]:
        """Return the steps of which something is undone that this life takes for done.

        What was another run's, and is undone, this run is told of (``ledger/effects/undone.py``).

        Args:
            remains: The entries that remain.
            unwound: The child runs of which something was undone after their end.
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


class StepFailed(Exception):
    """The step failed for good.

    Attributes:
        reason: Why, as one line.
        rejected: A human said no, or nobody answered in time: the run ends, whatever
            ``on_failure`` says.
        unsettled: A write that may have happened; nothing may go on over it, either.
        called: Whether its tool was called at all; a step that was not is skipped.
        given_up: Somebody has looked at the failure, and had the run end.
        called_off: It was in doubt, and a human has called it off, or had it undone.
        unreviewed: The tool is not as it was reviewed: a human looks, whatever ``on_failure`` says.

    Example:
        >>> async def pay(steps: StepMaker, order_id: str) -> bool:
        ...     try:
        ...         await steps.call("payments.refund", {"order_id": order_id, "amount": "20.00"})
        ...     except StepFailed as failed:
        ...         return not failed.rejected
        ...     return True
    """

    def __init__(
        self,
        reason: str,
        *,
        rejected: bool = False,
        unsettled: bool = False,
        called: bool = True,
        given_up: bool = False,
        called_off: bool = False,
        unreviewed: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rejected = rejected
        self.unsettled = unsettled
        self.called = called
        self.given_up = given_up
        self.called_off = called_off
        self.unreviewed = unreviewed


class StepRefused(StepFailed):
    """The step was refused before anything of it began: an event says so, and why."""


def cut_short(saga: Saga, step_id: str) -> StepFailed:
    """Return how a step ends that the run's end leaves no time for."""
    return StepFailed("the run is ending", called=step_id in saga.unsettled())


def leave_if_cancelled() -> None:
    """End a step that was cancelled while the ledger recorded something for it.

    Such a call ends as if nothing had happened: whatever the step waits for next, it would wait for
    although nobody wants it any more.

    Raises:
        asyncio.CancelledError: It was.
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
        return f"{cause.message} ({cause.type})"
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
