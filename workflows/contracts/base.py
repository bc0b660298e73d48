"""What every message has in common: small values, and where runs and steps stand."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    ValidationError,
)

from surehand.workflows.canonical_json import LOST_DIGITS, loses_digits, walk_levels

#: Levels of lists and objects: far more than params have, far fewer than the readers of JSON take.
MOST_LEVELS: Final = 50


def _check_storable(text: str) -> str:
    # PostgreSQL has no NUL in text: a row that can never be written would be tried forever.
    if "\x00" in text:
        raise ValueError("must not contain the character NUL")
    return _check_utf8(text)


def _check_utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain half of a character") from None
    return text


def is_storable(text: str) -> bool:
    try:
        _check_storable(text)
    except ValueError:
        return False
    return True


def _check_json(value: Any) -> Any:
    # What arrives one level below a reader's limit could not be handed on: it would be tried for
    # ever, and hold up everything that arrives after it.
    for depth, level in enumerate(walk_levels(value)):
        if depth == MOST_LEVELS:
            raise ValueError(f"must not be nested in more than {MOST_LEVELS} levels")
        for part in level:
            if isinstance(part, str):
                _check_utf8(part)
            elif loses_digits(part):
                raise ValueError(LOST_DIGITS)
    return value


#: Text that people send and that the ledger keeps.
Text = Annotated[str, AfterValidator(_check_storable)]
#: As long as the ledger's columns for people are.
LONGEST_NAME: Final = 200
#: Who says so.
Actor = Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]


#: Values that people send, and that are handed on.
Json = Annotated[JsonValue, AfterValidator(_check_json)]
#: Params that people send.
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_check_json)]


def build_models() -> None:
    """Build the models that are loaded. What does not call this builds each at its first use."""
    found: list[type[BaseModel]] = [BaseModel]
    for class_ in found:
        if class_.__module__.startswith("surehand."):
            class_.model_rebuild()
        found += class_.__subclasses__()


class Message(BaseModel):
    """Base of everything on the wire."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class OfRun(Message):
    """Base of what is about one run of a tenant."""

    tenant: str
    run_id: str


class Record(BaseModel):
    """A part of a run's state: changed in place, and serialised with the whole.

    All that it knows is in its fields, so that nothing of it can be left behind.
    """

    model_config = ConfigDict(extra="ignore", defer_build=True)


#: A set of names in a record; it is the same text each time.
NameSet = Annotated[set[str], PlainSerializer(sorted, return_type=list[str])]


class TimelineLine(Message):
    """One line of a run's own story; the ledger's events are the proof."""

    at: datetime
    step_id: str | None = None
    text: str


class ChainHead(Message):
    """The newest event of a run: carried into history, so that a rewritten chain shows."""

    seq: int
    hash: str


class Recorded(Message):
    """Something was recorded; nothing else to say."""

    head: ChainHead


class Acknowledged(Message):
    """An update was taken.

    Example:
        >>> said = await run.pause(reason="waiting for legal")
        >>> said = await run.resume(reason="legal agrees")
        >>> type(said)
        <class 'surehand.workflows.contracts.base.Acknowledged'>
    """

    message: str


#: The one key of a reference in JSON.
ARTIFACT: Final = "$artifact"


class Artifact(Message):
    """A value kept in the artifact store; content-addressed."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the value's canonical JSON; of what a tool has written, of its bytes. Where it is sealed,
    a digest of that which only the run's key can make."""
    uri: str
    """Path inside the artifact store, or ``ledger:`` for what the ledger itself keeps."""
    bytes: int
    type: str = "application/json"
    sealed_for: str | None = None
    """The run at the top of the tree with whose key it is encrypted; ``None``: it is in plain."""

    def reference(self) -> dict[str, Any]:
        return {ARTIFACT: self.model_dump(mode="json", exclude_none=True)}


class Late(Message):
    """A text among the params that refers to artifacts: filled in by the activity."""

    path: list[str | int]
    """Where in the params it stands."""
    artifacts: dict[str, Artifact]
    """By step id."""
    values: dict[str, JsonValue] = {}
    """What its other references stand for, by reference."""


class ReadArtifact(Message):
    """Asks for the value of an artifact."""

    tenant: str
    artifact: Artifact


class ArtifactRead(Message):
    """The value of an artifact, for code that decides by it."""

    value: JsonValue


M = TypeVar("M", bound=Message)


def _find_marked(value: Any, mark: str, model: type[M]) -> M | None:
    """Return the message that a JSON value is, whose one key is a mark; ``None``: it is none."""
    if not isinstance(value, dict) or set(value) != {mark}:
        return None
    try:
        return model.model_validate(value[mark])
    except ValidationError:
        return None


def as_artifact(value: Any) -> Artifact | None:
    """Return the artifact that a JSON value refers to, or ``None``: it is the value itself."""
    return _find_marked(value, ARTIFACT, Artifact)


class ForeignContent(Message):
    """What has brought a run content from outside, which a stranger may have written.

    Example:
        >>> ForeignContent(tool="mail.read", step_id="inbox").as_text()
        'mail.read (step inbox)'
    """

    tool: str
    step_id: str
    run_id: str | None = None
    """The run whose step it is, where it is another one: a child run, a parent, one taken over."""

    def as_text(self) -> str:
        """Return where it comes from, as one clause."""
        of = f" of run {self.run_id}" if self.run_id else ""
        return f"{self.tool} (step {self.step_id}{of})"

    def of(self, run_id: str) -> ForeignContent:
        """Return the same as another run has it, to which it has come from this one."""
        return self if self.run_id else self.model_copy(update={"run_id": run_id})


def foreign_text(found: tuple[ForeignContent, ...]) -> str:
    """Return all of it as one clause; empty: there is none."""
    return ", ".join(content.as_text() for content in found)


def _check_money(value: str) -> str:
    amount = Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise ValueError("must be a decimal number of at least 0")
    return value


MONEY_FORM: Final = r"^[0-9]+(\.[0-9]+)?$"
#: A decimal number as text, exact to the last digit.
Money = Annotated[str, Field(max_length=40, pattern=MONEY_FORM), AfterValidator(_check_money)]


class Usage(Message):
    """What a tool call has used."""

    tokens: int = 0
    money: Money = "0"


#: Whoever waits for a quota looks at it after times between these: nobody is told that it is free.
SHORTEST_LOOK: Final = timedelta(seconds=2)
LONGEST_LOOK: Final = timedelta(minutes=5)


class Quota(StrEnum):
    """What a tenant may use no more than so much of; named as the ledger's columns are."""

    OPEN_RUNS = "open_runs"
    EFFECTS = "effects_per_hour"
    APPROVALS = "pending_approvals"
    TOKENS = "tokens_per_day"
    MONEY = "money_per_day"


class QuotaWait(Message):
    """A quota that is used up, and how long it may be."""

    quota: Quota
    used: str
    limit: str
    until: datetime | None = None
    """When its hour or day ends; ``None``: when somebody else's run or approval does."""
    ahead: int | None = None
    """Of a run that is not admitted: how many were opened before it, and wait, too."""
    pause: timedelta
    """After which it may be free; it may be raised sooner."""

    @property
    def text(self) -> str:
        said = f"{self.quota}: {self.used} of {self.limit} used"
        if self.until is not None:
            said += f", until {self.until.isoformat(timespec='seconds')}"
        if self.ahead is not None:
            said += f", {self.ahead} ahead in the queue"
        return said

    @property
    def step_state(self) -> StepState:
        return StepState.WAITING_QUOTA

    @property
    def story(self) -> str:
        """What a step or a run says that waits for it."""
        return f"waiting for its tenant's quota, {self.text}"


class HaltWait(Message):
    """Somebody has halted calls; none is made until that is lifted."""

    halt_id: str
    scope: str
    """What it stops, in words."""
    reason: str
    halted_by: str
    since: datetime
    pause: timedelta
    """After which it may have been lifted."""

    @property
    def step_state(self) -> StepState:
        return StepState.HALTED

    @property
    def story(self) -> str:
        """What a step says that waits for it."""
        return f"halted by {self.halted_by} ({self.scope}): {self.reason}"


class RunAdmitted(Message):
    """Whether it may."""

    queued: QuotaWait | None
    """What it waits for; ``None``: it may."""
    head: ChainHead


#: The one key of what stands for a payload that cannot be had here.
UNREADABLE: Final = "$unreadable"


class NotReadable(Exception):
    """What has to be read is ``Unreadable``; in one line."""


class Unreadable(Message):
    """What a reader gets whose artifact store cannot be reached, or is another one."""

    uri: str = ""
    bytes: int = 0
    problem: str
    pasted: bool = False
    """It came in plain, or for no run, where only what is encrypted for it counts: what it says."""
    said: Any = None

    def __str__(self) -> str:
        size = f" of {self.bytes} bytes" if self.bytes else ""
        where = f", kept as {self.uri} in the artifact store," if self.uri else ""
        return f"a payload{size}{where} cannot be read here: {self.problem}"


def as_unreadable(value: Any) -> Unreadable | None:
    """Return what is known of a payload that could not be had; ``None``: it is the value itself."""
    return _find_marked(value, UNREADABLE, Unreadable)


def as_pasted(value: Any) -> Any:
    """Return what people may send in plain: it is judged by who proves to have sent it.

    Nothing else takes what is in plain where payloads are encrypted: it stays ``Unreadable``.
    """
    unreadable = as_unreadable(value)
    return unreadable.said if unreadable is not None and unreadable.pasted else value


def readable(value: Any) -> Any:
    """Return a value as it is; ``NotReadable``: it stands for a payload that cannot be read."""
    unreadable = as_unreadable(value)
    if unreadable is not None:
        raise NotReadable(str(unreadable))
    return value


class RunState(StrEnum):
    """Where a run stands; also the search attribute ``RunState``.

    Example:
        >>> (await run.view()).result.state
        <RunState.WAITING_APPROVAL: 'waiting_approval'>
    """

    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_INPUT = "waiting_input"
    WAITING_EVENT = "waiting_event"
    WAITING_RATE_LIMIT = "waiting_rate_limit"
    WAITING_QUOTA = "waiting_quota"
    HALTED = "halted"
    PAUSED_USER = "paused_user"
    PAUSED_BUDGET = "paused_budget"
    PAUSED_FAILURE = "paused_failure"
    PAUSED_PERMISSION = "paused_permission"
    NEEDS_INTERVENTION = "needs_intervention"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: The states in which a run has ended.
ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})


class StepState(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_INPUT = "waiting_input"
    WAITING_EVENT = "waiting_event"
    WAITING_RATE_LIMIT = "waiting_rate_limit"
    WAITING_QUOTA = "waiting_quota"
    HALTED = "halted"
    PAUSED_USER = "paused_user"
    PAUSED_BUDGET = "paused_budget"
    PAUSED_FAILURE = "paused_failure"
    PAUSED_PERMISSION = "paused_permission"
    NEEDS_INTERVENTION = "needs_intervention"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


#: The states in which a step has ended.
ENDED_STEPS = frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED})


class WaitKind(StrEnum):
    """What a run or a step waits for."""

    step_state: StepState
    """Of a step that waits for it."""

    def __new__(cls, value: str, step_state: StepState) -> Self:
        """Make a kind that is known by its value alone."""
        kind = str.__new__(cls, value)
        kind._value_, kind.step_state = value, step_state
        return kind

    APPROVAL = "approval", StepState.WAITING_APPROVAL
    INTERVENTION = "intervention", StepState.NEEDS_INTERVENTION
    """Somebody has to say what happened, or what is to be done."""
    QUESTION = "question", StepState.WAITING_INPUT
    FAILURE = "failure", StepState.PAUSED_FAILURE
    """A step has failed, and somebody has to say how to go on."""
    PERMISSION = "permission", StepState.PAUSED_PERMISSION
    BUDGET = "budget", StepState.PAUSED_BUDGET
    PAUSE = "pause", StepState.PAUSED_USER
    """Somebody has paused the run."""
    EVENT = "event", StepState.WAITING_EVENT
    RATE_LIMIT = "rate_limit", StepState.WAITING_RATE_LIMIT
    """Its provider takes no calls for a while."""
    QUOTA = "quota", StepState.WAITING_QUOTA
    """Its tenant's, which a human may raise."""
    HALT = "halt", StepState.HALTED
    """Somebody has halted calls, and may lift that."""

    @property
    def needs_human(self) -> bool:
        """Whether nothing but a human ends it, at the run."""
        elsewhere = (WaitKind.EVENT, WaitKind.RATE_LIMIT, WaitKind.QUOTA, WaitKind.HALT)
        return self not in elsewhere


class Waiting(Message):
    """What a run waits for a human for, or what a human may change: a quota, a halt."""

    kind: WaitKind
    id: str
    step_id: str
    params_hash: str | None = None
    question: str
    value: Json = None
    """What a question is about: before a step its params, after it its output. Of a failure the
    params of the next attempt."""
    answers: tuple[str, ...] = ()
    """Of an intervention: the outcomes as which it can be settled."""
    run_id: str | None = None
    """The child run that waits, and takes what is sent; ``None``: the run itself."""
