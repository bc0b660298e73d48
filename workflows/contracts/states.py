"""Where runs and steps stand, and what they wait for."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from surehand.workflows.contracts.base import Json, Message


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


class Waiting(Message):
    """What a run waits for a human for, or for its tenant's quota, which a human may raise."""

    kind: Literal[
        "approval",
        "intervention",
        "permission",
        "pause",
        "question",
        "event",
        "budget",
        "failure",
        "quota",
    ]
    id: str
    step_id: str
    params_hash: str | None = None
    question: str
    value: Json = None
    """What a question is about: before a step its params, after it its output. Of a failure the
    params of the next attempt."""
    can_undo: bool = False
    """Of an intervention: whether it can be settled as ``undo``."""
    run_id: str | None = None
    """The child run that waits, and takes what is sent; ``None``: the run itself."""
