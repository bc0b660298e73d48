"""Interrupts: places where a run waits for a human value, and the answers."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import JsonValue

from surehand.workflows.contracts.base import Json, JsonObject, Message
from surehand.workflows.contracts.steering import Steering
from surehand.workflows.identity import digest

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
    def is_whole_step(self) -> bool:
        """Whether its step does nothing else: the step begins with it and ends with its answer."""
        match self:
            case InterruptKind.ASK | InterruptKind.EVENT:
                return True
            case (
                InterruptKind.BEFORE
                | InterruptKind.AFTER
                | InterruptKind.TOOL
                | InterruptKind.FAILURE
                | InterruptKind.BUDGET
            ):
                return False

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
    """JSON Schema (2020-12) of the answer; empty takes anything."""
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


class RecordInterrupt(Message):
    """Records that something is waited for, or how that has ended other than by an answer."""

    tenant: str
    run_id: str
    interrupt: Interrupt
    what: Literal["opened", "delivered", "expired", "void"]
    output: JsonValue = None
    """Of a step that is all question: what it goes on with, an event's payload or a default."""


def event_question(name: str, about: str) -> str:
    """Return what people are told that a step waits for, which waits for an event."""
    return f"event {name} {about}".rstrip()


def accept_replace_reject(kind: InterruptKind) -> dict[str, Any]:
    """Return the JSON Schema of the answer to a static interrupt."""
    reject = {
        "type": "object",
        "properties": {"reject": {"type": "string"}},
        "required": ["reject"],
        "additionalProperties": False,
    }
    replace = {
        "type": "object",
        "properties": {"replace": True},
        "required": ["replace"],
        "additionalProperties": False,
    }
    ways: list[Any] = [{"enum": ["accept", "reject"]}, reject]
    return {"anyOf": [*ways, replace] if kind is InterruptKind.AFTER else ways}
