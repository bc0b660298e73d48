"""The shapes of every ``--json`` output. Add-only, like every message: scripts read them.

What a run answers is printed as it is: ``RunResult`` (``--wait``), ``Verdict`` (``approve``,
``reject``) and the checkpoint document of ``checkpoint``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from surehand.client.query import PendingHeld, PendingQuestion, SilentRun
from surehand.workflows.contracts.approvals import ApprovalRequest, ApprovalState, HeldApproval
from surehand.workflows.contracts.maintenance import NotUndone, StoppedRun
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.tools import PlanError, ToolSpec
from surehand.workflows.payload_codec import Unreadable


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
    as_it_stood: bool = False
    """True: the server ended the run; ``result`` tells how it stood, and no decision reaches it."""
    under_way: str | None = None
    """The step that a batch is at (durability ``exit``), as its worker has told last."""
    progress: dict[str, JsonValue] = {}
    """By step whose call is under way: how far it has come, as its tool has told last."""


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


class KeptRun(Shape):
    """``show`` and ``--wait`` where what the run says is in a store that this starter has not."""

    run_id: str
    state: str
    payload: Unreadable
    """Where it is, and why it cannot be read here."""
    web_ui: str


class PendingApproval(ApprovalRequest):
    """An approval request with the commands that answer it."""

    run_id: str
    commands: dict[str, str]
    """``approve``, ``reject``, ``edit``, ``sign``, and ``temporal`` if that needs no signature."""


class ShownApproval(ApprovalRequest):
    """``show APPROVAL_ID``: one approval request, and how to answer it while it waits."""

    run_id: str
    run_state: str
    state: ApprovalState
    decided_by: str = ""
    """Who has approved, rejected or edited it, marked if nothing proves the name."""
    reason: str = ""
    replaces: str | None = None
    """The request whose params were edited."""
    diff: list[str] = []
    """How the params differ from those of the replaced request, line by line."""
    open: bool
    """Whether a decision reaches it: it waits, and so does its run."""
    web_ui: str
    commands: dict[str, str] = {}
    """While it is open: ``approve``, ``reject``, ``edit``, ``sign`` and ``temporal``."""


class ShownHeld(HeldApproval):
    """``show APPROVAL_ID`` where that was decided before it was asked for."""

    run_id: str
    run_state: str
    state: Literal["held"] = "held"


class PendingList(Shape):
    """``pending``."""

    approvals: list[PendingApproval]
    held: list[PendingHeld] = []
    """Decided before they were asked for: nothing has come of them yet."""
    questions: list[PendingQuestion] = []
    silent: list[SilentRun] = []
    """Runs that wait for approvals, too, and cannot say for which: no worker answers."""


class Steered(Shape):
    """``cancel``, ``resume`` and ``resolve``: the run has taken it."""

    run_id: str
    message: str


class Linked(Shape):
    """``retry`` and ``fork`` without ``--wait``."""

    run_id: str
    linked: str
    taken_up: bool
    """Whether a worker has begun with it."""
    taken_over: list[str]
    """Steps that are facts to the new run, and are not done again."""


class Paused(Steered):
    """``pause`` and ``token``."""

    resume_token: str
    """In the place of the user's key: resumes the run once, in that name. Shown nowhere else."""


class LedgerRows(Shape):
    """``effects``, ``events``, ``interventions``, ``notifications``: rows of the ledger."""

    run_id: str | None
    rows: list[dict[str, Any]]


class ExportSignature(Shape):
    """Of an exported file."""

    signer: str
    """As the signature says; what proves it is the key."""
    kid: str
    tenant: str
    signed_at: datetime
    verified: bool
    """False: nobody has named the signer's key (``--signer``), so all of this is only claimed."""


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
    signature: ExportSignature | None = None
    """Of an exported file that is signed."""


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


class ReconcileReport(Shape):
    """``reconcile``: what one round has done."""

    looked_at: int
    committed: int
    not_applied: int
    asked: int
    waiting: int
    freed: int
    """Resources whose lease had run out."""
    stopped: list[StoppedRun]
    stopped_unnamed: int
    """How many more were found stopped than `stopped` names."""
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
    more_undone: int = 0
    more_left: int = 0


class PrincipalShown(Shape):
    """A principal, and what counts for them now."""

    name: str
    roles: list[str]
    permissions: list[str]
    keys: list[str]
    """Key ids, oldest first; revoked ones are in the history only."""


class PrincipalList(Shape):
    """``principal list``."""

    principals: list[PrincipalShown]


class PrincipalPart(Shape):
    """One thing that a change of a principal was about."""

    kind: Literal["principal", "role", "permission", "key"]
    what: str
    """A name, or a key id."""
    changed: bool
    """False: it was so already."""


class PrincipalChanged(Shape):
    """``principal add``, ``grant``, ``revoke`` and ``key``: all of it is written."""

    principal: PrincipalShown
    """As it is now."""
    parts: list[PrincipalPart]


class PrincipalChange(Shape):
    """One change as the ledger keeps it."""

    principal: str
    change: str
    """``added``, ``role_granted``, ``role_revoked``, ``permission_granted``,
    ``permission_revoked``, ``key_added`` or ``key_revoked``."""
    what: str
    """The role, permission or key id; empty for ``added``."""
    actor: str
    at: datetime


class PrincipalHistory(Shape):
    """``principal list --history``, oldest first."""

    changes: list[PrincipalChange]


class NewKey(Shape):
    """``principal keygen``."""

    kid: str
    private_key: str
    """The file that its owner keeps."""
    public_key: str
    """The file that an administrator registers."""
    register_command: str
    """The command that does it."""


StandingState = Literal["active", "used_up", "over", "revoked", "worthless"]


class StandingShown(Shape):
    """A standing approval: its scope, and what is left of it."""

    standing_id: str
    granter: str
    tool: str
    version: str
    when: str | None
    count: int | None
    uses: int
    uses_left: int | None
    total_of: str | None
    total: str | None
    total_left: str | None
    """A decimal as text."""
    until: datetime
    reason: str
    signed: bool
    state: StandingState
    worthless: str | None
    """Why it does not count now, whatever is left of it."""
    granted_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None


class StandingList(Shape):
    """``standing list``, oldest first."""

    standing: list[StandingShown]


class StandingChanged(Shape):
    """``standing grant``, ``add`` and ``revoke``."""

    standing: StandingShown
    """As it is now."""
    changed: bool
    """False: it was revoked already."""


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


class NamedCheckpoint(Shape):
    """One checkpoint that somebody has saved."""

    name: str
    seq: int
    """The run's newest event when it was made."""
    bytes: int
    saved_by: str
    saved_at: datetime
    expires_at: datetime


class CheckpointSaved(Shape):
    """``checkpoint RUN --save NAME``."""

    run_id: str
    saved: NamedCheckpoint
    removed: list[str]
    """Older ones that made room, by name."""


class CheckpointList(Shape):
    """``checkpoint RUN --list``: those that are kept, the newest first."""

    run_id: str
    checkpoints: list[NamedCheckpoint]


class VersionShown(Shape):
    """One version of the workers."""

    build_id: str
    status: str
    """``current``: new runs begin on it; ``draining``: open runs end on it; ``drained``;
    ``inactive``: it never was current; ``ramping``."""
    open_runs: int
    """Of all tenants."""


class VersionList(Shape):
    """``versions``: the newest first."""

    deployment: str
    versions: list[VersionShown]


class NewProject(Shape):
    """``init``: what was written, and the commands to go on with, in that folder."""

    folder: str
    files: list[str]
    commands: list[str]


class DemoReport(Shape):
    """``demo``: what the shop itself counted."""

    ok: bool
    run_id: str
    state: str
    refunds: int
    mails: int
    worker_killed: bool
    decided_by: str
