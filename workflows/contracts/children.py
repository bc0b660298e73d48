"""Child runs: a step that is a whole plan of its own, in a run of its own."""

from __future__ import annotations

from pydantic import JsonValue

from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.interrupts import Interrupt
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import RunState, Waiting
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.plan.plan import Plan


class ChildReport(Message):
    """What a child run shows at its parent. It moves nothing: the child decides for itself."""

    step_id: str
    """The parent's step."""
    run_id: str
    state: RunState
    waiting: list[Waiting] = []
    interrupts: list[Interrupt] = []


class LookAtChild(Message):
    """Asks what has become of a child run that an earlier life of its parent has started."""

    tenant: str
    run_id: str
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
