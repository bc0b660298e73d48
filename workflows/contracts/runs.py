"""Runs: how they are started, opened, looked at, amended and closed, and their child runs."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue, model_validator

from surehand.workflows.contracts import approvals
from surehand.workflows.contracts.base import (
    LONGEST_NAME,
    ChainHead,
    ForeignContent,
    Json,
    Message,
    Money,
    OfRun,
    QuotaWait,
    Recorded,
    RunState,
    StepState,
    Text,
    TimelineLine,
    Waiting,
    is_storable,
    readable,
)
from surehand.workflows.contracts.effects import EffectView
from surehand.workflows.contracts.steering import Interrupt, Steering, Verb
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.identity import tenant_of_run, tenant_problem
from surehand.workflows.plan.plan import MOST_STEPS, Durability, Plan
from surehand.workflows.plan.policy import LONGEST_APPROVAL
from surehand.workflows.plan.references import PlanError


class CloseRun(OfRun):
    """Records the end of a run."""

    state: RunState
    error: str | None = None
    skipped: dict[str, str] = {}
    """Steps that never started, with their tools."""
    standing: str | None = None
    """Digest of what this life of the run takes for all that stands: it is closed only if it is."""


class RunClosed(Message):
    """The run's effects as the ledger has them."""

    closed: bool = True
    """``False``: nothing was recorded, because something else stands than the run knows of."""
    effects: list[EffectView] = []
    uncompensated: list[EffectView] = []
    more_effects: int = 0
    """Effects that are not listed: a message of more than 2 MiB could not be told."""
    more_uncompensated: int = 0
    """Of what stands uncompensated, how much is not listed."""
    head: ChainHead


class StepView(Message):
    """A step as people see it."""

    id: str
    tool: str
    state: StepState
    output: JsonValue = None
    attempts: int = 0
    replayed: bool = False
    made_by: str | None = None
    error: str | None = None
    original: JsonValue = None
    """What it returned, where a human has put something else in its place."""
    child: str | None = None
    """The run that does it, of a step that is a plan."""
    undone: str | None = None
    """How its effect was undone afterwards, where it was; its state stays what it was."""


def cut_to_fit(
    views: Iterable[StepView], most: int, *, whole: Container[str] = ()
) -> list[StepView]:
    """Return views of steps, each with its output's size in its place where there is no room.

    The views come in the order in which they get room: ``most`` characters of JSON for all outputs
    together. Outputs of the steps in ``whole`` stay and take no room.
    """
    cut, left = list[StepView](), most
    for view in views:
        if view.id not in whole:
            size = 0 if view.output is None else len(json.dumps(view.output))
            if size > left:
                view = view.model_copy(update={"output": {"too_large": {"bytes": size}}})
            else:
                left -= size
        cut.append(view)
    return cut


def is_cut(output: JsonValue) -> bool:
    """Return whether an output is not there, but its size."""
    return isinstance(output, dict) and set(output) == {"too_large"}


class RunResult(Message):
    """How a run ended, or stands.

    Example:
        >>> result = await run.wait(or_human=True)
        >>> result.state, [step.id for step in result.steps][:2]
        (<RunState.WAITING_APPROVAL: 'waiting_approval'>, ['order', 'amount'])
    """

    run_id: str
    state: RunState
    steps: list[StepView]
    more_steps: int = 0
    """Steps that are done and not listed any more; the ledger has them."""
    effects: list[EffectView] = []
    uncompensated: list[EffectView] = []
    more_effects: int = 0
    """Effects that are not listed; the ledger has them."""
    more_uncompensated: int = 0
    """Of what stands uncompensated, how much is not listed."""
    waiting_for: list[Waiting] = []
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought it content from outside, which strangers may have written."""
    error: str | None = None
    output: JsonValue = None
    """What the code has returned that has made the steps."""


class RefusedSignal(Message):
    """What was sent and changed nothing: of an unknown name, malformed, or refused."""

    at: datetime
    name: str
    reason: str


class RunView(Message):
    """Answer of the query ``view``.

    Example:
        >>> view = await run.view()
        >>> view.user, view.plan.name, view.plan_version
        ('uma', 'refund', 1)
    """

    result: RunResult
    tenant: str
    user: str
    started_by: str = ""
    """Who has started it, as far as it was said; the ledger knows whether that is proven."""
    plan: Plan
    plan_version: int
    durability: Durability = Durability.SYNC
    started_at: datetime
    pending: list[approvals.ApprovalRequest] = []
    held: list[approvals.HeldApproval] = []
    """Decided before they were asked for: pending until their steps ask."""
    interrupts: list[Interrupt] = []
    """Questions that wait for an answer."""
    settled: list[approvals.SettledApproval] = []
    """The newest requests that wait no more."""
    verdicts: list[approvals.Verdict] = []
    timeline: list[TimelineLine] = []
    refused_signals: list[RefusedSignal] = []
    """The newest ones; whoever sends a signal gets no answer but this."""


#: Characters of JSON; a larger payload belongs where the event's reader can fetch it.
LARGEST_EVENT: Final = 8 * 1024
#: Of anything in one top-up: far beyond any budget's use, and far below where sums end.
MOST: Final = 10**12


class OutsideEvent(Steering):
    """Something that has happened outside; a step that waits for it goes on."""

    name: Annotated[Text, Field(min_length=1, max_length=100)]
    about: Annotated[Text, Field(max_length=200)] = ""
    """Tells events of one name apart: an order id, a ticket."""
    event_id: Annotated[Text, Field(min_length=1, max_length=100)]
    """The event's id: a second event with the same id is ignored."""
    payload: Json = None


class TopUp(Steering):
    """More budget for a run."""

    steps: Annotated[int, Field(ge=0, le=MOST)] = 0
    tokens: Annotated[int, Field(ge=0, le=MOST)] = 0
    money: Money = "0"
    time: Annotated[timedelta, Field(ge=timedelta(0), le=LONGEST_APPROVAL)] = timedelta(0)


class Amend(Steering):
    """Another plan for a run: what is done stays, what waits is asked again, the rest follows."""

    plan: Plan
    based_on: int
    """The plan version that its author has seen."""
    drops: tuple[str, ...] = ()
    """Steps with a remaining effect that the new plan does not have, on purpose."""


class AmendRun(OfRun):
    """Asks to validate and record a new plan version."""

    plan: Plan
    plan_version: int
    steering_id: str


class Amended(Message):
    """The new plan's tools, or what is wrong with it."""

    tools: dict[str, ToolSpec] = {}
    problems: list[PlanError] = []
    head: ChainHead | None = None


class Evaluate(OfRun):
    """Asks whether a step's condition holds."""

    step_id: str
    expression: str
    values: dict[str, Any]
    """Outputs of earlier steps, and the input, by name."""


class RecordValue(OfRun):
    """Has a value made that code wants recorded; what is recorded already is the value."""

    step_id: str
    key: str
    """Under which the run has offered what makes it, on its own worker."""


class ValueRecorded(Message):
    """The value; ``problem`` says why there is none."""

    value: JsonValue = None
    problem: str | None = None
    head: ChainHead | None = None


class Evaluated(Message):
    """Whether it does; ``problem`` says why that cannot be told."""

    holds: bool = False
    problem: str | None = None


class Parent(Message):
    """The run and the step that a child run was started by."""

    run_id: str
    step_id: str


class Linked(Message):
    """The run that another one begins from, with what it takes over.

    Example:
        >>> Linked(run_id="refund-7", outputs={"order": {"order_id": "order-7"}}).run_id
        'refund-7'
    """

    run_id: str
    outputs: dict[str, JsonValue] = {}
    """Steps that are facts here, with what they have returned there; they are not done again."""


class StartRun(Message):
    """Starts a run: of a plan, of code, or of a model's turns.

    Example:
        >>> class Greetings(CodeRun):
        ...     async def run(self, request: StartRun) -> RunResult:
        ...         return await self.drive_code(self.steps)
        ...     async def steps(self, steps: StepMaker) -> None:
        ...         await steps.ask("Hello?")
    """

    run_id: str
    tenant: str
    user: str
    """Whom the run acts for."""
    started_by: str | None = None
    """Who starts it; ``None``: the user. A child run is started by whoever has its parent."""
    signature: str | None = None
    plan: Plan
    parent: Parent | None = None
    carried: dict[str, Any] | None = None
    """The state in which the execution before has left it; only Temporal itself continues a run."""
    continue_after: int | None = Field(default=None, ge=1)
    """Events of history after which the run continues as new; ``None``: as many as are usual."""
    linked: Linked | None = None
    durability: Durability | None = None
    """When its progress is written to history; ``None``: as the plan says, else ``sync``."""
    level: int = 0
    """Of a child run: how many runs it is inside of."""
    room: int = MOST_STEPS
    """How many steps it may have, with all runs inside it (``workflows/plan/plan.py``)."""

    @model_validator(mode="before")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        return readable(value)

    def content(self) -> dict[str, Any]:
        """Return what is signed, in JSON form: all that a person starts, without defaults."""
        not_signed = {"signature", "parent", "carried"}
        return self.model_dump(mode="json", exclude=not_signed, exclude_defaults=True)

    def problem(self) -> str | None:
        """Return what is wrong with the names in it, as one clause, or ``None``."""
        names = {"user": self.user, "started_by": self.started_by or self.user}
        for what, name in names.items():
            if not is_storable(name) or not 0 < len(name) <= LONGEST_NAME:
                return f"{what} has to be 1 to {LONGEST_NAME} characters of plain text"
        problem = tenant_problem(self.tenant)
        if problem is not None:
            return f"tenant {self.tenant[:80]!r}: {problem}"
        if tenant_of_run(self.run_id) != self.tenant:
            return f"run {self.run_id[:200]!r} is not one of tenant {self.tenant!r}"
        return None

    @property
    def mode(self) -> Durability:
        """The durability that holds: the run's own wins over the plan's."""
        mode = self.durability or self.plan.durability or Durability.SYNC
        # A batch is known before it begins; what code does next is not.
        code = self.plan.code is not None
        return Durability.ASYNC if code and mode.in_batches else mode


class RunOpened(Recorded):
    """A run is recorded."""

    tools: dict[str, ToolSpec] = {}
    """Of a run that begins: the specs of the tools that its plan names, and what undoes them."""
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought it content from outside: from its parent, say, or before a reset."""
    queued: QuotaWait | None = None
    """What keeps it from its first step; ``None``: nothing."""
    weight: float = 1.0
    """Its tenant's, where tenants take turns."""


class OpenRun(Message):
    """Records a run and its plan before step one."""

    request: StartRun
    execution: str
    """Temporal's id of the run's first execution: of one that was reset, or continued, too."""
    continues: bool = False
    """Whether another execution has opened the run."""
    started_at: datetime | None = None
    """When the server took the start: until then its signature had to count."""


class ChildReport(Message):
    """What a child run shows at its parent. It moves nothing: the child decides for itself."""

    step_id: str
    """The parent's step."""
    run_id: str
    state: RunState
    waiting: list[Waiting] = []
    interrupts: list[Interrupt] = []


class LookAtChild(OfRun):
    """Asks what has become of a child run that an earlier life of its parent has started."""

    plan: Plan
    """What it would be started with now."""


class ChildFound(Message):
    """A child run that there is already."""

    open: bool = False
    same: bool = True
    """Whether it was started with that plan and input."""
    result: RunResult | None = None
    """How it has ended, as far as it says so."""
    why: str = ""


class Forwarded(Message):
    """Something that a parent has taken and hands on to its child."""

    steering_id: str
    """Of the parent's delivery: the ledger knows whether it counts."""
    verb: Verb
    content: dict[str, JsonValue]
    """As it was sent to the parent."""


class ResumePolicy(StrEnum):
    """What has to happen before a run goes on from its checkpoint."""

    RETRY_CURRENT_STEP = "retry_current_step"
    AFTER_HUMAN_APPROVAL = "after_human_approval"
    AFTER_EVENT = "after_event"
    RECHECK_PERMISSIONS_THEN_CONTINUE = "recheck_permissions_then_continue"
    RECONCILE_FIRST = "reconcile_first"
    MANUAL = "manual"


class CurrentStep(Message):
    """A step that is under way."""

    step_id: str
    tool: str
    state: StepState
    attempt: int
    started_at: datetime | None
    progress: JsonValue = None
    """What its call has said of it last. The run does not know it: Temporal has it with the call's
    heartbeat, from where ``checkpoint RUN`` takes it."""
    bytes_written: int | None = None
    """How much of its artifact its call has written, from there, too."""


class PendingCall(Message):
    """A call that waits for its approval."""

    tool: str
    params_hash: str
    approval_id: str


class SideEffect(Message):
    """An effect of the run."""

    tool: str
    idempotency_key: str
    state: str


class Checkpoint(Message):
    """A run's state: as the query ``checkpoint`` answers it, or as its events tell it.

    ``checkpoint RUN --at SEQ`` reads the events: ``not_rebuilt`` says what they do not tell.
    """

    checkpoint_id: str
    run_id: str
    created_at: datetime
    """When the query was answered, or the event was written."""
    created_by: str
    ttl: timedelta | None
    """How long it is kept after its run's end, as `SUREHAND_RETENTION` said when it was saved;
    ``None``: as long as its run, or the run's history."""
    plan_version: int
    current_steps: list[CurrentStep] | None
    """``None``: events do not tell it. So it is with others that can be ``None``."""
    progress: dict[str, str] = {}
    """As events tell it, by step that was not done yet: digest of what its call has told last of
    its progress. ``artifacts RUN`` has what it was."""
    completed_steps: list[str]
    """A run's own events do not tell of those that are plans, and of lists as a whole."""
    recovery_point: str
    """The step after which nothing has to be repeated."""
    pending_call: PendingCall | None
    pending_approvals: list[str] = []
    pending_side_effects: list[str]
    """Writes that have started and have no recorded outcome yet, by step id."""
    side_effects: list[SideEffect]
    """In the order of their first claims; those that undo others, too."""
    pending_interrupts: list[str]
    """Everything that waits for a human, approvals first."""
    artifact_refs: list[str] | None
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought the run content from outside."""
    permissions_snapshot: dict[str, JsonValue]
    budget: dict[str, JsonValue] | None
    last_error: str | None
    """The run's own at its end; as events tell it before that, the step and class of the newest
    failure."""
    resume_policy: ResumePolicy | None
    not_rebuilt: dict[str, str] = {}
    """Why events do not tell it, by field."""
