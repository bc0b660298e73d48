"""Whether something that was sent to a run counts: what the ledger is asked, and what it says."""

from __future__ import annotations

from enum import StrEnum

from pydantic import JsonValue

from surehand.workflows.contracts.base import ChainHead, Message
from surehand.workflows.contracts.interrupts import GivenAnswer
from surehand.workflows.contracts.steering import IssuedToken, Verb


class Steer(Message):
    """Asks whether something that was sent to a run counts; idempotent by ``steering_id``."""

    tenant: str
    run_id: str
    steering_id: str
    """The delivery's id, which names the execution: a run that was reset counts anew."""
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
        """Whether it counts."""
        return self.code is SteeringCode.ACCEPTED
