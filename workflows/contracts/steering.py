"""Steering a run from outside: what people send, who may, and what was made of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from surehand.workflows.contracts.base import Actor, JsonObject, Message, Text

#: A resume token is for soon: whoever comes later signs, or asks for a new one.
LONGEST_TOKEN: Final = timedelta(days=1)


class Verb(StrEnum):
    """What a run can be told; also the name of the signal and of the update."""

    DECIDE = "decide"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    TOKEN = "token"
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


class ReissueToken(Steering):
    """Gives a paused run another resume token; the old one is void."""

    resume_key: ResumeKey


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
    """Only this step, of several that have failed."""
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
