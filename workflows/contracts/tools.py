"""Tools, their calls, and what one activity calls: one tool or several one after another."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue

from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import (
    ChainHead,
    ForeignContent,
    HaltWait,
    Late,
    Message,
    OfRun,
    QuotaWait,
    TimelineLine,
    Usage,
)
from surehand.workflows.contracts.effects import EffectView
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.plan.references import PlanError

#: What an attempt needs beside the call itself, and its lookups: its claim, its outcome, and a
#: database that comes back from a restart.
CALL_MARGIN: Final = timedelta(seconds=60)


class Effect(StrEnum):
    """What a tool does to the world outside."""

    READ = "READ"
    WRITE = "WRITE"


class Recovery(StrEnum):
    """How an outcome that a crash left unknown is settled."""

    READ = "read"
    """Nothing to settle: ask again."""
    DEDUPES = "dedupes"
    LOOKUP = "lookup"
    TRANSACTIONAL = "transactional"
    """Never unknown: effect and outcome commit together in the ledger's own database."""
    HUMAN = "human"

    def proves_absence(self, settle: timedelta | None) -> bool:
        """Return whether a call that was claimed and never made is settled without a human.

        ``settle`` is how long after its deadline a late effect may appear; ``None``: nobody knows.
        """
        if self is Recovery.LOOKUP:
            return settle is not None
        return self is not Recovery.HUMAN


class RecordRefusal(OfRun):
    """Records that a step was refused before anything of it began."""

    step_id: str
    tool: str
    """Or `ask`, `plan`, `wait`."""
    reason: str


class ToolSpec(Message):
    """A tool as recorded in history: its shape cannot shift under a running run."""

    name: str
    version: str
    schema_hash: str
    effect: Effect
    recovery: Recovery
    timeout: timedelta
    """Deadline of one call."""
    description: str = ""
    settle: timedelta | None = None
    """How long after a call's deadline a late effect may still appear."""
    compensation: str | None = None
    """The tool that undoes this one."""
    cleanup: str | None = None
    irreversible: bool = False
    approval: ApprovalPolicy | None = None
    permission: str | None = None
    """What the acting user must be allowed, at each call."""
    fresh_for: timedelta | None = None
    """Of a read: how old its output may be when the run is resumed."""
    foreign: bool = False
    """What it returns is content from outside, which strangers may have written."""
    secret_params: bool = False
    """Whether it is to be on record who is shown its params."""
    lookups: int = 0
    """How often one attempt may look for the effect, each time for as long as a call may take."""

    @property
    def longest_attempt(self) -> timedelta:
        """Return what one attempt may take: its call, and the looks before and behind it."""
        return self.timeout * (1 + self.lookups)


class ToolDefinition(Message):
    """A tool as a model is told of it.

    Example:
        >>> refund = ToolDefinition(
        ...     name="payments.refund",
        ...     version="1",
        ...     effect="WRITE",
        ...     description="Refund an order.",
        ...     params_schema={"type": "object", "required": ["order_id"]},
        ... )
        >>> refund.name, refund.params_schema["required"]
        ('payments.refund', ['order_id'])
    """

    name: str
    version: str
    effect: Effect
    description: str = ""
    params_schema: dict[str, JsonValue]
    """JSON Schema of the params."""
    output_schema: dict[str, JsonValue] | None = None
    """JSON Schema of the output; ``None``: the tool does not say what it returns."""


class DescribeTools(Message):
    """Asks for the specs of a plan's tools and for what is wrong with the plan."""

    plan: Plan
    defined: tuple[str, ...] = ()
    """Tools, by name or pattern, whose specs and definitions are asked for in the place of the
    plan's: a definition can be large, and most runs need none."""


class ErrorReport(Message):
    """What a verb prints with ``--json`` that could not do what was asked."""

    error: str
    exit_code: int
    problems: list[PlanError] = []
    """What is wrong with a plan, and where."""


class ToolsDescribed(Message):
    """The specs of the tools a plan names (and their compensations), by name."""

    tools: dict[str, ToolSpec]
    problems: list[PlanError] = []
    definitions: list[ToolDefinition] = []


class ToolCall(OfRun):
    """One use of a tool by a step."""

    step_id: str
    plan_version: int
    user: str
    tool: ToolSpec
    params: dict[str, JsonValue]
    """The params as the plan gives them; the activity validates them."""
    late: list[Late] = []
    """Texts among the params that refer to artifacts; the activity fills them in."""
    policies: tuple[ApprovalPolicy, ...] = ()
    """Approval policies of the plan; the tool's own ones apply, too."""
    approval_id: str | None = None
    params_hash: str | None = None
    """The approved hash; must equal the hash of the validated params."""
    attempts_before: int = 0
    """Attempts of this step that earlier activities have used up."""
    answers: list[JsonValue] = []
    """What humans have answered to this call so far, in the order of its questions."""
    questions: list[str] = []
    """Digests of these questions."""
    over_limits: tuple[str, ...] = ()
    """Limits that the call may be over, if those who are asked for that say yes."""
    joined: str | None = None
    """The open intervention of another step or run that this call waits for."""

    @property
    def answered(self) -> tuple[tuple[str, JsonValue], ...]:
        return tuple(zip(self.questions, self.answers, strict=True))


class Succeeded(Message):
    """The tool did it, now or in an earlier attempt."""

    kind: Literal["succeeded"] = "succeeded"
    output: JsonValue = None
    attempts: int
    replayed: bool = False
    """The effect had been recorded before: the tool was not called by this attempt."""
    made_by: str | None = None
    """The run that made the effect, where it was another one."""
    entry_id: str | None = None
    """The entry of a write's effect, whichever step owns it."""
    effect: EffectView | None = None
    """The effect, if this very step owns it: only its owner's saga undoes it."""
    read_ms: int | None = None
    """When a read was made, by the database's clock, in milliseconds since 1970."""


class AnsweredNo(Message):
    """The tool answered no: a value, never retried, not an error."""

    kind: Literal["no"] = "no"
    reason: str
    code: str = "no"
    attempts: int
    replayed: bool = False


class ApprovalNeeded(Message):
    """The call has no usable approval; nothing was called."""

    kind: Literal["approval_needed"] = "approval_needed"
    reason: str
    attempts: int
    tool: ToolSpec | None = None
    """The tool as it is now, where it is not the recorded one any more."""
    policy: ApprovalPolicy | None = None
    """Who is asked as well."""
    over_limit: str | None = None
    """The limit that the call would be over, if it is asked about for that."""


class PermissionNeeded(Message):
    """The acting user may not make this call now; nothing was called."""

    kind: Literal["permission_needed"] = "permission_needed"
    reason: str
    attempts: int


class InputNeeded(Message):
    """The tool asks a human before it goes on; nothing was applied."""

    kind: Literal["input_needed"] = "input_needed"
    question: str
    answer_schema: dict[str, JsonValue] = {}
    digest: str = ""
    """What tells the question from others."""
    before: int = 0
    """How many of the call's answers stand before it; another one in its place counts no more."""
    attempts: int


class HumanNeeded(Message):
    """Only a human can settle what happened; the intervention is open."""

    kind: Literal["human_needed"] = "human_needed"
    intervention_id: str
    question: str
    answers: tuple[str, ...] = ()
    """The outcomes as which it can be settled."""
    attempts: int
    effect: EffectView | None = None
    """The entry that is in doubt, if this step owns it."""


class RateLimited(Message):
    """The provider takes no more calls for a while; nothing was applied."""

    kind: Literal["rate_limited"] = "rate_limited"
    pause: timedelta
    """How long to wait before the next call."""
    reason: str
    attempts: int


class QuotaNeeded(Message):
    """The tenant has used up a quota; nothing was called."""

    kind: Literal["quota_needed"] = "quota_needed"
    wait: QuotaWait
    attempts: int


class CallHalted(Message):
    """Somebody has halted calls; nothing was called."""

    kind: Literal["call_halted"] = "call_halted"
    wait: HaltWait
    attempts: int


ToolOutcome = Annotated[
    Succeeded
    | AnsweredNo
    | ApprovalNeeded
    | PermissionNeeded
    | InputNeeded
    | HumanNeeded
    | RateLimited
    | QuotaNeeded
    | CallHalted,
    Field(discriminator="kind"),
]


class AttemptsUsed(Message):
    """Details of the failure that ends a step."""

    attempts: int
    foreign: ForeignContent | None = None
    """What it has brought its run from outside, be it the words of its failure."""
    usage: Usage = Field(default_factory=Usage)


class ToolReport(Message):
    """How a tool call ended."""

    outcome: ToolOutcome
    foreign: ForeignContent | None = None
    """What it has brought its run from outside."""
    usage: Usage = Field(default_factory=Usage)
    story: tuple[TimelineLine, ...] = ()
    """How its outcome was found out, where an attempt has died or ended without one."""
    head: ChainHead | None = None


#: What a heartbeat begins with while its call waits for a resource; otherwise it names the step.
WAITS_FOR: Final = "waits: "


def batch_name(execution: str, number: int) -> str:
    return f"batch:{execution}:{number}"


class NextStep(Message):
    """A step of a batch, as the plan has it."""

    id: str
    tool: str
    params: dict[str, JsonValue] = {}
    """With its references."""
    own: dict[str, JsonValue] = {}
    """Facts of this step only: the item of a list that it is about."""
    attempts_before: int = 0
    """Attempts of this step that earlier calls have used up: what they were answered is old."""


class Batch(Message):
    """Calls that one activity makes; mostly one."""

    first: ToolCall
    number: int | None = None
    """Counts the run's batches of several steps, from 1; ``None``: the call is alone."""
    following: list[NextStep] = []
    tools: dict[str, ToolSpec] = {}
    """The specs of the following steps' tools, by name."""
    facts: dict[str, JsonValue] = {}
    """What earlier steps have returned that these refer to; large outputs as references."""
    again: bool = False
    """Whether it may have been run before, unacknowledged: what it read then counts."""
    follows: int | None = None
    """The number of the same batch that was stopped unacknowledged: only what it had begun ends."""


class StepReport(Message):
    """How the call of one step ended."""

    step_id: str
    report: ToolReport


class FailedStep(Message):
    """The step whose call has failed permanently: as its own activity would have."""

    step_id: str
    type: str | None
    message: str
    used: AttemptsUsed


class BatchReport(Message):
    """How far a batch has come: it ends early where something else than a success follows."""

    steps: list[StepReport]
    failed: FailedStep | None = None


#: What a step that asks a model is called where others have a tool's name.
MODEL: Final = "model"

_SHA256: Final = "^[0-9a-f]{64}$"


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text's canonical JSON, as the artifact store has it."""
    return digest(text).removeprefix("sha256:")


class Conversation(Message):
    """A conversation as it is kept: the first messages of an earlier one, and some more."""

    before: str | None = Field(default=None, pattern=_SHA256)
    """The digest of the earlier one; ``None``: it begins here."""
    keep: int = Field(default=0, ge=0)
    """How many messages of the earlier one it goes on from."""
    messages: list[str]
    """Each as the framework writes it, in JSON."""

    @property
    def sha256(self) -> str:
        return digest(self.model_dump(mode="json")).removeprefix("sha256:")


class ModelTurn(Message):
    """What a model is asked; the params of its step."""

    framework: str = Field(max_length=40)
    """Whose models and messages they are, such as ``pydantic-ai``."""
    model: str = Field(max_length=200)
    setup: str = Field(pattern=_SHA256)
    """The digest of settings and tools."""
    setup_text: str | None = None
    """They themselves, as the framework writes them in JSON; ``None``: an earlier turn had them."""
    conversation: Conversation
    known_by: str = Field(pattern=_SHA256)
    """The digest of what people and the model have said so far. What tools have returned is not in
    it: a run that is reset reads again, and what was decided stays decided."""

    def as_recorded(self) -> dict[str, Any]:
        return self.model_dump(include={"framework", "model", "setup", "known_by"})


class ModelSaid(Message):
    """What a model has said; the output of its step."""

    response: str
    line: str
    """The same in a line for people."""
    setup: str = Field(pattern=_SHA256)
    """The digest of what it was asked with, as the worker has kept it."""
    conversation: str = Field(pattern=_SHA256)
    """The same of the conversation so far."""
