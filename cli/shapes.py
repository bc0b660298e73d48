"""The shapes of every ``--json`` output. Add-only, like every message: scripts read them.

What a run answers is printed as it is: ``RunResult`` (``--wait``), ``Verdict`` (``approve``,
``reject``) and the checkpoint document of ``checkpoint``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from workflows.contracts import (
    ApprovalRequest,
    NotUndone,
    PlanError,
    RunView,
    StoppedRun,
    ToolSpec,
)


class Shape(BaseModel):
    """Base of every document."""

    model_config = ConfigDict(frozen=True)


class ErrorReport(Shape):
    """Any verb that could not do what was asked."""

    error: str
    exit_code: int
    problems: list[PlanError] = []
    """What is wrong with a plan, and where."""


class Started(Shape):
    """``start`` without ``--wait``."""

    run_id: str
    started: bool
    """False: a run of this id and plan was there already, and nothing was started."""
    taken_up: bool
    """False: no worker has validated the plan yet."""
    state: str
    task_queue: str
    web_ui: str


class RunSummary(Shape):
    """One run as the server lists it."""

    run_id: str
    state: str
    pending_approvals: int
    started_at: datetime
    plan: str


class RunList(Shape):
    """``list``."""

    runs: list[RunSummary]


class ShownRun(RunView):
    """``show``: the run's own view, and what the server adds."""

    state: str
    """As ``list`` has it: differs from the view's when the server ended the run."""
    web_ui: str


class CutOffRun(Shape):
    """``show`` of a run that the server has ended, where no worker can tell how it stood."""

    run_id: str
    state: str
    task_queue: str
    started_at: datetime
    ended_at: datetime | None
    plan: str
    last_known_state: str
    web_ui: str


class PendingApproval(ApprovalRequest):
    """An approval request with the commands that answer it."""

    run_id: str
    approve_command: str
    temporal_command: str


class SilentRun(Shape):
    """A run that does not answer, as the server knows it; usually no worker is there."""

    run_id: str
    task_queue: str
    state: str
    pending_approvals: int
    reason: str


class PendingList(Shape):
    """``pending``."""

    approvals: list[PendingApproval]
    silent: list[SilentRun] = []
    """Runs that wait for approvals, too, and cannot say for which: no worker answers."""


class Steered(Shape):
    """``cancel`` and ``resolve``: the run has taken it."""

    run_id: str
    message: str


class LedgerRows(Shape):
    """``effects``, ``events`` and ``interventions``: rows of the ledger."""

    run_id: str | None
    rows: list[dict[str, Any]]


class AuditReport(Shape):
    """``audit``."""

    run_id: str
    ok: bool
    events: int
    compared_with: str
    """Where the heads came from that the chain has to pass through."""
    first_break: str | None
    unverified_approvals: list[str] = []
    """In whose names calls were approved by unsigned decisions: the names are only claimed."""
    head: str = ""
    """The hash of the newest event."""
    uncompensated: list[str] = []
    """Effects of a failed or cancelled run that stand; like what follows, it is no break."""
    in_doubt: list[str] = []
    partial: list[str] = []
    open_interventions: list[str] = []


class SettingShown(Shape):
    """One setting."""

    name: str
    """As a settings file has it."""
    variable: str
    """As the environment and ``.env`` have it."""
    value: Any
    """Null: missing."""
    unit: str
    origin: str
    """``default``, ``environment``, or the file's path."""
    meaning: str


class SettingList(Shape):
    """``settings``."""

    file: str | None
    """The settings file."""
    settings: list[SettingShown]


class SweepReport(Shape):
    """``reconcile``: what one round has done."""

    looked_at: int
    committed: int
    not_applied: int
    asked: int
    waiting: int
    freed: int
    """Resources whose lease had run out."""
    stopped: list[StoppedRun]
    for_a_human: int
    """Open interventions: nobody but a human can settle them."""


class Scheduled(Shape):
    """``reconcile --every``."""

    schedule_id: str
    every_seconds: float


class UnwindReport(Shape):
    """``unwind``: what was undone, and what was not and why."""

    run_id: str
    undone: list[str]
    left: list[NotUndone]


class ToolList(Shape):
    """``tools``."""

    tools: list[ToolSpec]


class Check(Shape):
    """One thing that ``doctor`` looked at."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """What to do; empty when nothing is wrong."""
    commands: list[str] = []
    """The lines that do it, where they are known, ready to paste."""


class DoctorReport(Shape):
    """``doctor``."""

    ok: bool
    checks: list[Check]


class DemoReport(Shape):
    """``demo``: what the shop itself counted."""

    ok: bool
    run_id: str
    state: str
    refunds: int
    mails: int
    worker_killed: bool
    decided_by: str
