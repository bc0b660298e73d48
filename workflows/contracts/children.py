"""Child runs: a step that is a whole plan of its own, in a run of its own."""

from __future__ import annotations

from pydantic import JsonValue

from workflows.contracts.base import Message
from workflows.contracts.interrupts import Interrupt
from workflows.contracts.states import RunState, Waiting
from workflows.contracts.steering import Verb


class ChildReport(Message):
    """What a child run shows at its parent. It moves nothing: the child decides for itself."""

    step_id: str
    """The parent's step."""
    run_id: str
    state: RunState
    waiting: list[Waiting] = []
    interrupts: list[Interrupt] = []


class Forwarded(Message):
    """Something that a parent has taken and hands on to its child."""

    steering_id: str
    """Of the parent's delivery: the ledger knows whether it counts."""
    verb: Verb
    content: dict[str, JsonValue]
    """As it was sent to the parent."""
