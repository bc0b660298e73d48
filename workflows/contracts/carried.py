"""What a run takes along when it continues as new: Temporal begins its history anew then.

Add-only, like all messages: an execution reads what an older version of the code has left.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import JsonValue

from workflows.contracts.approvals import ApprovalRequest, ApprovalState, Decision, Verdict
from workflows.contracts.base import ChainHead, Message
from workflows.contracts.controls import Amend, TopUp
from workflows.contracts.effects import EffectView, OpenQuestion
from workflows.contracts.interrupts import Interrupt
from workflows.contracts.runs import RefusedSignal, StepView, TimelineLine
from workflows.contracts.steering import IssuedToken, PauseRun, ResumeRun
from workflows.contracts.tools import ToolCall, ToolOutcome, ToolSpec
from workflows.plan import Step


class Failure(Message):
    """How a step has failed that a human is looking at."""

    reason: str
    rejected: bool = False
    unsettled: bool = False
    called: bool = True
    given_up: bool = False


class Progress(Message):
    """How far a step under way has come: all it needs to go on waiting where it waits."""

    step: Step | None = None
    """The step, where it is not the plan's any more: another tool, or other params."""
    call: ToolCall | None = None
    """What is called next, with its approval, and the answers so far."""
    asks: bool = False
    """Whether it has to be approved first."""
    request: ApprovalRequest | None = None
    """The approval that it waits for."""
    escalated_to: str | None = None
    outcome: ToolOutcome | None = None
    """How the last call has ended, while the step does what follows from it."""
    resumed: int | None = None
    """How often the run had been resumed when the step began to wait for a permission."""
    until: datetime | None = None
    """When the provider takes calls again."""
    spent: timedelta = timedelta(0)
    """What its calls have taken of its time limit."""
    interrupt: Interrupt | None = None
    """The question, or the event, that it waits for."""
    failed: Failure | None = None
    items: list[JsonValue] | None = None
    """What a list is made for: what it was read from may be read again meanwhile."""


class HeldDecision(Message):
    """A decision that has come before its request."""

    decision_id: str
    decision: Decision


class KnownAnswer(Message):
    """What the sender of something that steers the run is told."""

    accepted: bool
    message: str


class KeptEvent(Message):
    """An event from outside that no step has taken yet."""

    name: str
    key: str
    payload: JsonValue = None


class CarriedCode(Message):
    """What a run of code takes along: its own state, and the ids that its steps have had."""

    state: JsonValue
    ids: list[str]
    numbers: dict[str, int]
    """By what ids are made from: the newest number."""


class Carried(Message):
    """A run, at a point where no call is under way and nothing that has arrived is unread."""

    lives: tuple[str, ...] = ()
    """Temporal's ids of the executions before, newest first."""
    # Of the book.
    started_at: datetime
    plan_version: int = 1
    head: ChainHead | None = None
    steps: list[StepView] = []
    more_steps: int = 0
    replays: bool = False
    """Whether a step that is not listed has used what another run had made."""
    begun: dict[str, datetime] = {}
    read_at: dict[str, datetime] = {}
    progress: dict[str, Progress] = {}
    """Of the steps under way."""
    effects: dict[str, EffectView] = {}
    questions: list[OpenQuestion] = []
    timeline: list[TimelineLine] = []
    refused_signals: list[RefusedSignal] = []
    resumed: int = 0
    ways: dict[str, ResumeRun] = {}
    paused: PauseRun | None = None
    token: IssuedToken | None = None
    calls: dict[str, str] = {}
    # Of the saga.
    started: list[str] = []
    made: dict[str, str] = {}
    """Steps by entries."""
    found: dict[str, str] = {}
    relied: dict[str, str] = {}
    children: dict[str, str | None] = {}
    # Of the steps.
    settled: list[str] = []
    facts: dict[str, JsonValue] = {}
    """What finished steps have returned, where that is not in their view."""
    tools: dict[str, ToolSpec] = {}
    # Of code that makes the steps.
    code: CarriedCode | None = None
    # Of the gate.
    held: list[HeldDecision] = []
    pending: list[ApprovalRequest] = []
    approval_states: dict[str, ApprovalState] = {}
    settled_requests: list[ApprovalRequest] = []
    verdicts: dict[str, Verdict] = {}
    accepted: dict[str, Decision] = {}
    verified: list[str] = []
    decisions_standing: dict[str, str] = {}
    # Of the helm and the desk.
    steerings_standing: dict[str, str] = {}
    steering_answers: dict[str, KnownAnswer] = {}
    to_undo: dict[str, str] = {}
    settled_questions: list[str] = []
    # Of interrupts and events.
    asked: dict[str, int] = {}
    answers: dict[str, JsonValue] = {}
    kept_events: list[KeptEvent] = []
    event_ids: list[str] = []
    # Of the budget.
    spent_steps: int = 0
    spent_tokens: int = 0
    spent_money: str = "0"
    more_budget: TopUp | None = None
    # Of calling, asking and amending.
    attempts_used: dict[str, int] = {}
    unheard: list[str] = []
    editors: dict[str, tuple[str, ...]] = {}
    unanswered: dict[str, int] = {}
    next_plan: Amend | None = None
