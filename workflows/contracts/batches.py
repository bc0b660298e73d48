"""What one activity calls: one tool, or, in durability ``exit``, several one after another."""

from __future__ import annotations

from typing import Final

from pydantic import JsonValue

from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.tools import AttemptsUsed, ToolCall, ToolReport, ToolSpec

#: What a heartbeat begins with while its call waits for a resource; otherwise it names the step.
WAITS_FOR: Final = "waits: "


def batch_name(execution: str, number: int) -> str:
    """Return the name of a batch that an execution (Temporal's Run Id) has begun."""
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
    """The step whose call has failed for good: as its own activity would have."""

    step_id: str
    type: str | None
    message: str
    used: AttemptsUsed


class BatchReport(Message):
    """How far a batch has come: it ends early where something else than a success follows."""

    steps: list[StepReport]
    failed: FailedStep | None = None
