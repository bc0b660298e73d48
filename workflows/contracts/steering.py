"""What people send to a run under way, what it asks them, and how that is judged."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue

from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import (
    Actor,
    ChainHead,
    Json,
    JsonObject,
    Message,
    OfRun,
    Recorded,
    Text,
    WaitKind,
)

#: A resume token is for soon: whoever comes later signs.
LONGEST_TOKEN: Final = timedelta(days=1)


class Verb(StrEnum):
    """What a run can be told; also the name of the signal and of the update."""

    DECIDE = "decide"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    ANSWER = "answer"
    EVENT = "event"
    TOP_UP = "top_up"
    AMEND = "amend"
    RESOLVE = "resolve"


class Steering(Message):
    """What everything that steers a run carries."""

    actor: Actor
    reason: Text = ""
    id: Annotated[Text, Field(max_length=100)] | None = None
    """Of the sender's making: what is sent twice with one id is one message."""
    signature: Text | None = None
    """Over ``SteeringClaims``: a compact JWS by a key of the actor's, or their passkey's proof."""

    def content(self) -> dict[str, Any]:
        """Return what is signed, in JSON form: all but the signature, without defaults."""
        return self.model_dump(mode="json", exclude={"signature"}, exclude_defaults=True)


class CancelMode(StrEnum):
    """What a cancelled run does with the effects it has committed.

    Example:
        >>> said = await run.cancel(CancelMode.KEEP, reason="ordered by mistake")
        >>> (await run.wait()).state
        <RunState.CANCELLED: 'cancelled'>
    """

    COMPENSATE = "compensate"
    KEEP = "keep"
    CLEANUP = "cleanup"
    """Only undo what tools declare as temporary (drafts, holds); keep the rest."""


class CancelRun(Steering):
    """Ends a run before its plan does."""

    mode: CancelMode = CancelMode.COMPENSATE


class ResumeKey(Message):
    """The public half of a resume token: whoever has the other half may resume once."""

    public_key: dict[str, JsonValue]
    """A JWK (RFC 7517) on the curve Ed25519, made for this one token."""
    lasts: Annotated[timedelta, Field(gt=timedelta(0), le=LONGEST_TOKEN)]


class PauseRun(Steering):
    """Has a run stop at its next consistent point: never between a claim and its outcome."""

    resume_key: ResumeKey | None = None


class Way(StrEnum):
    """How a step that has failed goes on.

    Example:
        >>> [way.value for way in Way]
        ['retry', 'skip', 'compensate']
    """

    RETRY = "retry"
    SKIP = "skip"
    COMPENSATE = "compensate"
    """It does not: the run ends, and undoes what it has done."""


class ResumeRun(Steering):
    """Has what is paused go on; the reason for the pause is looked at again."""

    step: Text | None = None
    """The step, if several have failed."""
    way: Way = Way.RETRY
    """Of steps that have failed."""
    params: JsonObject | None = None
    """``retry``: with these params in the place of the plan's."""

    proof: Text | None = None
    """Compact JWS over ``ResumeClaims``, made with a resume token."""


class IssuedToken(Message):
    """What a paused run keeps of its resume token."""

    user: Actor
    """Who alone may use it."""
    public_key: dict[str, JsonValue]
    expires_at: datetime
    calls: str
    """Digest of the calls that were waiting when it was made."""
    verified: bool = False
    """Whether it is proven that the user has made it."""


#: Characters of JSON; a larger answer belongs into an artifact that it names.
LARGEST_ANSWER: Final = 8 * 1024
#: Digest of the answer that leaves params or an output as they are.
ACCEPTED: Final = digest("accept")


class InterruptKind(StrEnum):
    """Why a run waits for a human value."""

    ASK = "ask"
    """A step of the plan that asks."""
    BEFORE = "before"
    """A step is about to start."""
    AFTER = "after"
    """A step has its output."""
    TOOL = "tool"
    """A tool asks in the middle of its call, before its effect."""
    EVENT = "event"
    """A step waits for an event from outside."""
    FAILURE = "failure"
    """A step has failed, and somebody has to say how to go on."""
    BUDGET = "budget"
    """The budget is used up."""

    @property
    def waits_for(self) -> WaitKind:
        match self:
            case (
                InterruptKind.ASK | InterruptKind.BEFORE | InterruptKind.AFTER | InterruptKind.TOOL
            ):
                return WaitKind.QUESTION
            case InterruptKind.EVENT:
                return WaitKind.EVENT
            case InterruptKind.FAILURE:
                return WaitKind.FAILURE
            case InterruptKind.BUDGET:
                return WaitKind.BUDGET

    @property
    def is_whole_step(self) -> bool:
        """Whether its step does nothing else: the step begins with it and ends with its answer."""
        return self in (InterruptKind.ASK, InterruptKind.EVENT)

    def gives_value(self, answer: JsonValue) -> bool:
        """Whether an answer gives the run a value: whoever has given it is one of its planners."""
        match self:
            case InterruptKind.ASK | InterruptKind.TOOL:
                return True
            case InterruptKind.BEFORE | InterruptKind.AFTER:
                return answer not in ("accept", "reject")  # Also the reason of a rejection is told.
            case InterruptKind.FAILURE | InterruptKind.BUDGET:
                return False
            case InterruptKind.EVENT:  # Nobody answers it: the event itself gives a value.
                return False


class Interrupt(Message):
    """A question that waits for a human's answer."""

    interrupt_id: str
    """``{step_id}.{n}``: the n-th question of a step."""
    step_id: str
    kind: InterruptKind
    question: str
    answer_schema: dict[str, JsonValue] = {}
    """JSON Schema (2020-12) of the answer; empty takes all but an empty answer."""
    value: JsonValue = None
    """What it is about: of ``before`` the params, of ``after`` the output."""
    secret: bool = False
    """Whether it is to be on record who is shown the value."""
    expires_at: datetime | None = None


class AnswerInterrupts(Steering):
    """Answers what a run has asked: all of them count, or none."""

    answers: JsonObject | None = None
    """By interrupt id."""
    answer: Json = None
    """Of the only question that waits, in the place of ``answers``."""

    def inside(self, step_id: str) -> AnswerInterrupts:
        """Return what of it is for the child run of a step, under the child's own ids."""
        prefix = f"{step_id}/"
        given = (self.answers or {}).items()
        mine = {id_.removeprefix(prefix): value for id_, value in given if id_.startswith(prefix)}
        return self.model_copy(update={"answers": mine, "answer": None})


class GivenAnswer(Message):
    """An answer with the question it is for, as the ledger looks at it."""

    interrupt: Interrupt
    value: JsonValue
    elsewhere: bool = False
    """Asked by a child run, which records the answer."""


class InterruptRecorded(Recorded):
    """An interrupt is recorded, unless its time has stood still."""

    left: timedelta | None = None
    """It has not expired: calls were halted meanwhile, and it waits so much longer."""


class RecordInterrupt(OfRun):
    """Records that something is waited for, or how that has ended other than by an answer."""

    interrupt: Interrupt
    what: Literal["opened", "delivered", "expired", "void"]
    output: JsonValue = None
    """Of a step that is all question: what it goes on with, an event's payload or a default."""


def event_question(name: str, about: str) -> str:
    """Return what people are told that a step waits for, which waits for an event."""
    return f"event {name} {about}".rstrip()


def accept_replace_reject(kind: InterruptKind) -> dict[str, Any]:
    """Return the JSON Schema of the answer to a static interrupt."""

    def object_of(name: str, schema: Any) -> dict[str, Any]:
        own = {"type": "object", "properties": {name: schema}, "required": [name]}
        return {**own, "additionalProperties": False}

    ways: list[Any] = [{"enum": ["accept", "reject"]}, object_of("reject", {"type": "string"})]
    replace = object_of("replace", True)
    return {"anyOf": [*ways, replace] if kind is InterruptKind.AFTER else ways}


class Steer(OfRun):
    """Asks whether something that was sent to a run counts; idempotent by ``steering_id``."""

    steering_id: str
    """The delivery's id, which names the execution: a run that was reset counts again."""
    workflow_run_id: str
    lives: list[str] = []
    """Temporal's ids of the executions that this one continues: what counted there has counted."""
    verb: Verb
    actor: str
    content: dict[str, JsonValue]
    """``Steering.content()`` of what was sent."""
    signature: str | None = None
    token: IssuedToken | None = None
    """``resume`` with a proof: the token that the run has out."""
    calls: str = ""
    """Digest of the calls that are waiting now."""
    answers: list[GivenAnswer] = []
    """``answer``: what was answered, each with its question."""
    forwarded_by: str | None = None
    """The parent's run, whose ``forwarded_as`` is accepted."""
    forwarded_as: str | None = None
    refused: str | None = None
    """Set when the run already knows why it cannot count."""


class SteeringCode(StrEnum):
    """What is made of something that was sent to a run."""

    ACCEPTED = "accepted"
    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad_signature"
    USED_SIGNATURE = "used_signature"
    NOT_PERMITTED = "not_permitted"
    NOT_WAITING = "not_waiting"
    """The run waits for nothing of the kind."""
    BAD_ANSWER = "bad_answer"
    """It is not what was asked for."""
    BAD_TOKEN = "bad_token"
    """Not this run's, not this user's, used, void, expired, or other calls are waiting now."""


class Steered(Message):
    """Whether what was sent counts, and why not."""

    code: SteeringCode
    message: str
    verified: bool = False
    """False: the actor's name is only claimed."""
    head: ChainHead

    @property
    def accepted(self) -> bool:
        return self.code is SteeringCode.ACCEPTED
