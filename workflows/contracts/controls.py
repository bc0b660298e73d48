"""What else a run can be told: events from outside, more budget, another plan."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from surehand.workflows.contracts.base import ChainHead, Json, Message, Text
from surehand.workflows.contracts.steering import Steering
from surehand.workflows.contracts.tools import PlanError, ToolSpec
from surehand.workflows.contracts.usage import Money
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import LONGEST_APPROVAL

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
    """Of the event itself: the same one again is ignored."""
    payload: Json = None


class TopUp(Steering):
    """More budget for a run."""

    steps: Annotated[int, Field(ge=0, le=MOST)] = 0
    tokens: Annotated[int, Field(ge=0, le=MOST)] = 0
    money: Money = "0"
    time: Annotated[timedelta, Field(ge=timedelta(0), le=LONGEST_APPROVAL)] = timedelta(0)


class Amend(Steering):
    """Another plan for a run: what is done stays, what waits is asked anew, the rest follows it."""

    plan: Plan
    based_on: int
    """The plan version that its author has seen."""
    drops: tuple[str, ...] = ()
    """Steps with a remaining effect that the new plan does not have, on purpose."""


class AmendRun(Message):
    """Asks to validate and record a new plan version."""

    tenant: str
    run_id: str
    plan: Plan
    plan_version: int
    steering_id: str


class Amended(Message):
    """The new plan's tools, or what is wrong with it."""

    tools: dict[str, ToolSpec] = {}
    problems: list[PlanError] = []
    head: ChainHead | None = None


class Evaluate(Message):
    """Asks whether a step's condition holds."""

    tenant: str
    run_id: str
    step_id: str
    expression: str
    values: dict[str, Any]
    """Outputs of earlier steps, and the input, by name."""


class RecordValue(Message):
    """Has a value made that code wants recorded; what is recorded already is the value."""

    tenant: str
    run_id: str
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
