"""Parts of a run's state that only hold what is known; what changes them is elsewhere."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from pydantic import JsonValue

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.base import Message, NameSet, Record
from surehand.workflows.contracts.children import ChildReport
from surehand.workflows.contracts.interrupts import Interrupt
from surehand.workflows.contracts.steering import ResumeRun
from surehand.workflows.contracts.tools import ToolCall, ToolOutcome, ToolSpec
from surehand.workflows.deliveries import Delivery
from surehand.workflows.plan.plan import Step


class Failure(Message):
    """How a step has failed that a human is looking at."""

    reason: str
    rejected: bool = False
    unsettled: bool = False
    called: bool = True
    given_up: bool = False
    called_off: bool = False
    unreviewed: bool = False


class Progress(Message):
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
    failed: Failure | None = None
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
