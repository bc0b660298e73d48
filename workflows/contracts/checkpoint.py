"""The run's state as one document: references only, no secrets."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import JsonValue

from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.values import ForeignContent


class ResumePolicy(StrEnum):
    """What has to happen before a run goes on from its checkpoint."""

    RETRY_CURRENT_STEP = "retry_current_step"
    AFTER_HUMAN_APPROVAL = "after_human_approval"
    AFTER_EVENT = "after_event"
    RECHECK_PERMISSIONS_THEN_CONTINUE = "recheck_permissions_then_continue"
    RECONCILE_FIRST = "reconcile_first"
    MANUAL = "manual"


class CurrentStep(Message):
    """A step that is under way."""

    step_id: str
    tool: str
    state: StepState
    attempt: int
    started_at: datetime | None
    progress: JsonValue = None
    """What its call has said of it last. The run does not know it: Temporal has it with the call's
    heartbeat, from where ``checkpoint RUN`` takes it."""
    bytes_written: int | None = None
    """How much of its artifact its call has written, from there, too."""


class PendingCall(Message):
    """A call that waits for its approval."""

    tool: str
    params_hash: str
    approval_id: str


class SideEffect(Message):
    """An effect of the run."""

    tool: str
    idempotency_key: str
    state: str


class Checkpoint(Message):
    """A run's state: as the query ``checkpoint`` answers it, or as its events tell it.

    ``checkpoint RUN --at SEQ`` reads the events: ``not_rebuilt`` says what they do not tell.
    """

    checkpoint_id: str
    run_id: str
    created_at: datetime
    """When the query was answered, or the event was written."""
    created_by: str
    ttl: timedelta | None
    """``None``: it lives as long as the run's history."""
    plan_version: int
    current_steps: list[CurrentStep] | None
    """``None``: events do not tell it. So it is with others that can be ``None``."""
    progress: dict[str, str] = {}
    """As events tell it, by step that was not done yet: digest of what its call has told last of
    its progress. ``artifacts RUN`` has what it was."""
    completed_steps: list[str]
    """A run's own events do not tell of those that are plans, and of lists as a whole."""
    recovery_point: str
    """The step after which nothing has to be repeated."""
    pending_call: PendingCall | None
    pending_approvals: list[str] = []
    pending_side_effects: list[str]
    """Writes that have started and have no recorded outcome yet, by step id."""
    side_effects: list[SideEffect]
    """In the order of their first claims; those that undo others, too."""
    pending_interrupts: list[str]
    """Everything that waits for a human, approvals first."""
    artifact_refs: list[str] | None
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought the run content from outside."""
    permissions_snapshot: dict[str, JsonValue]
    budget: dict[str, JsonValue] | None
    last_error: str | None
    """The run's own at its end; as events tell it before that, the step and class of the newest
    failure."""
    resume_policy: ResumePolicy | None
    not_rebuilt: dict[str, str] = {}
    """Why events do not tell it, by field."""
