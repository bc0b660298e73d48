"""The shapes of every ``--json`` output. Add-only, like every message: scripts read them.

What a run answers is printed as it is: ``RunResult`` (``--wait``), ``Verdict`` (``approve``,
``reject``) and the checkpoint document of ``checkpoint``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from surehand.client.client import PendingHeld, PendingQuestion, SilentRun
from surehand.workflows.contracts.approvals import ApprovalRequest, ApprovalState, HeldApproval
from surehand.workflows.contracts.maintenance import NotUndone, StoppedRun
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import Waiting
from surehand.workflows.contracts.tools import PlanError, ToolDefinition, ToolSpec
from surehand.workflows.contracts.unreadable import Unreadable
from surehand.workflows.plan.plan import Place


class Shape(BaseModel):
    """Base of every document."""

    model_config = ConfigDict(frozen=True, defer_build=True)  # a verb prints one of them


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


class NewToken(Shape):
    """``codec token``."""

    token: str
    tenants: list[str]
    right: str


class SignInLink(Shape):
    """``approvals link``."""

    link: str
    principal: str
    minutes: int
    """How long it counts, unless it was used."""


class KeyEncryptionKeyShown(Shape):
    """A key-encryption key, and what it has wrapped in a tenant."""

    id: str
    wraps: bool
    """Whether new keys of runs are wrapped with it."""
    here: bool
    """Whether it is among those that are set here."""
    keys: int
    """Keys of runs that it has wrapped."""


class KeyList(Shape):
    """``keys list``."""

    keys: list[KeyEncryptionKeyShown]
    erased: int
    """Keys of runs that were erased."""


class KeysRotated(Shape):
    """``keys rotate``."""

    key: str
    rotated: int
    left: int
    """Those that changed meanwhile: rotate again."""


class RunErased(Shape):
    """``erase``."""

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    erased_by: str
    reason: str
    artifacts: int
    effects: int
    """Those whose business keys are kept."""


class KeyMade(Shape):
    """``keys new``."""

    id: str
    file: str
    keys: int
    """How many keys the file has now."""


class RunSummary(Shape):
    """One run as the server lists it."""

    run_id: str
    state: str
    open_items: int
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
    recorded: bool = False
    """True: no worker answers. This is what the ledger knows: no pauses, and no open questions."""
    under_way: str | None = None
    """The step that a batch is at (durability ``exit``), as its worker has told last."""
    progress: dict[str, JsonValue] = {}
    """By step whose call is under way: how far it has come, as its tool has told last."""
    bytes_written: dict[str, int] = {}
    """By step whose call is under way: how much of its artifact stands."""


class TurnTokens(Shape):
    """``show --follow --tokens``: what a model says, as it says it; nothing rests on it."""

    step_id: str
    attempt: int
    text: str = ""
    """What came since the line before."""
    void: bool = False
    """The turn is asked again, or has failed: what was shown of this attempt is void."""
    said: str | None = None
    """The turn is recorded: what counts, in a line."""


class UnansweredRun(Shape):
    """``show`` of a run for which no worker answers, and that no ledger at hand knows."""

    run_id: str
    state: str
    task_queue: str
    started_at: datetime
    ended_at: datetime | None
    plan: str
    last_known_state: str
    open_items: int
    """What waits for people, as far as the server knows."""
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
    others: list[Waiting] = []
    """Doubts and pauses that wait for a person; ``run_id`` is the run that takes the answer."""
    silent: list[SilentRun] = []
    """Runs that wait, too, and for which no worker answers. What the ledger knows of them, if one
    is configured, is in the other lists."""


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
    """Effects of a failed or cancelled run that remain; like what follows, it is no break."""
    in_doubt: list[str] = []
    partial: list[str] = []
    open_interventions: list[str] = []
    erased: str | None = None
    """When the run was erased, by whom, and why: its chain holds all the same."""
    signature: ExportSignature | None = None
    """Of an exported file that is signed."""
    forgotten: int = 0
    """Hashes that Temporal's history has and the ledger does not: it was restored meanwhile."""
    deleted: str | None = None
    """Of a run that was deleted: by whom, when, and where it was exported to."""
    content: str | None = None
    """Of an exported file with what was deleted: what it has."""


class RunBehind(Shape):
    """A run that has gone on in Temporal beyond what a restored ledger has of it."""

    run_id: str
    known: bool
    """Whether the ledger has the run at all."""
    command: str
    """Has it begin anew, under the same keys."""


class EpochShown(Shape):
    """``ledger restored``: the newest epoch; all is null where the ledger was never restored."""

    number: int | None = None
    restored_to: datetime | None = None
    opened_at: datetime | None = None
    opened_by: str | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
    newest_event_at: datetime | None = None
    """Of the tenant, when the epoch was opened just now."""
    behind: list[RunBehind] = []
    """The runs that are to begin anew, of all tenants; with ``--done``, those that are left."""


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


class RetentionPart(Shape):
    """Some kinds of data of a run and its child runs."""

    run_id: str
    kinds: list[str]
    exports: list[str] = []
    """The files of what was deleted."""


class RunKept(Shape):
    """A run that is old enough, and what keeps it."""

    run_id: str
    why: str
    failed: bool = False
    """Whether it was to go, and that has failed."""


class RetentionReport(Shape):
    """``retention``: what a round has done, or would do."""

    applied: bool
    hidden: list[RetentionPart]
    deleted: list[RetentionPart]
    kept: list[RunKept]
    files_set_aside: int
    """Artifacts to which nothing refers: a day later they are removed."""
    files_back: int
    files_removed: int
    files_lost: int = 0
    """Files of what was exported that the artifact store has lost."""


class RetentionSwitched(Shape):
    """``retention --keep`` and ``--release``."""

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    held: bool


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
    passkeys: list[str] = []
    """Those of them that are passkeys'."""


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
    foreign: bool
    """Also in runs that have read content from outside."""
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


class QuotaUse(Shape):
    """One quota, and how it stands."""

    quota: str
    limit: str | None
    """Without one as much as comes is used."""
    used: str | None
    """What is counted now; what is not limited is not counted."""
    until: datetime | None
    """When its hour or day ends, and it is as good as new."""


class QuotaShown(Shape):
    """``quota show`` and ``quota set``: what a tenant may use, and has used."""

    tenant: str
    quotas: list[QuotaUse]
    over: Literal["queue", "reject"]
    """What becomes of what is over."""
    weight: float
    """How many turns it has where tenants take turns; another one has 1."""
    queued_runs: int
    """How many runs wait for the quota of open runs."""
    set_by: str | None
    set_at: datetime | None


class TenantShown(Shape):
    """``tenant add`` and ``tenant show``: of which cell a tenant is."""

    tenant: str
    cell: str
    """As the file of cells has it."""
    in_ledger: str | None
    """As the ledger of that cell has it. Only where both are the same, the tenant's runs begin."""


class LoadedTool(ToolSpec, ToolDefinition):
    """A tool as runs record it, and as a model is told of it."""


class ToolList(Shape):
    """``tools``."""

    tools: list[LoadedTool]


class McpToolSeen(Shape):
    """A tool of an MCP server."""

    tool: str
    state: Literal["pinned", "not pinned", "changed", "gone", "refused", "unusable"]
    """``refused``: the file does not name it; ``unusable``: no definition that can be taken."""
    effect: str | None
    pin: str | None
    """Digest of the reviewed definition."""
    offered: str | None
    """Digest of the one that the server has now."""
    description: str
    problem: str | None


class McpList(Shape):
    """``mcp list``."""

    tools: list[McpToolSeen]
    silent: dict[str, str]
    """Servers that cannot be asked, with the reason."""


class McpPinned(Shape):
    """``mcp pin``."""

    file: str
    pinned: dict[str, str]
    """Digests by tool."""


class McpChange(Shape):
    """One part of a definition that is not as it was reviewed."""

    tool: str
    part: str
    reviewed: JsonValue
    offered: JsonValue


class McpDiff(Shape):
    """``mcp diff``."""

    changes: list[McpChange]
    digests: dict[str, str]
    """Of what is offered now, by tool: `mcp pin TOOL@DIGEST` takes just that as reviewed."""
    silent: dict[str, str]
    """Servers that cannot be asked, with the reason."""


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
    hidden: list[str]
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


Kind = Literal["read", "write", "tool", "ask", "wait", "plan"]


class PlanChecked(Shape):
    """``plan check`` of a plan that is valid; what is wrong with others is an ``ErrorReport``."""

    file: str
    plan: str
    steps: int
    """Those of plans inside it included."""
    tools_checked: bool
    """False: no tools are named here, and the worker's tools may still refuse it."""
    not_checked: list[str] = []
    """What only a worker can tell, and why."""
    warnings: list[str] = []
    """What is odd about its tools, and refuses nothing."""


class GraphEdge(Shape):
    """What follows what."""

    source: str
    target: str
    on: list[Literal["on_no", "on_failure", "on_reject"]] = []
    """The ends of ``source`` at which the run goes on there; nothing: ``target`` waits for it."""


class GraphNode(Shape):
    """One step."""

    id: str
    kind: Kind
    """``tool``: of a tool that is not known here, so nobody can say whether it reads or writes."""
    does: str
    """The tool's name, the question, the event or the inner plan's name."""
    layer: int
    """Counts from 1: those of one layer run together, as far as their steps take equally long."""
    approval: bool
    """Whether the plan or the tool, where it is known, asks for an approval, maybe by its rules."""
    when: str | None
    for_each: str | None
    parallel: int
    interrupts: list[Literal["before", "after"]]
    fallback: str | None
    plan: PlanGraph | None
    """The plan that the step is."""


class PlanGraph(Shape):
    """``plan graph``."""

    name: str
    goal: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    """Waits that others imply are left out."""


Outcome = Literal[
    "done",
    "as recorded",
    "would call",
    "would replay",
    "would ask",
    "would wait",
    "would run plan",
    "would skip",
    "would fail",
    "list",
    "unknown",
    "not reached",
]
Asks = Literal["yes", "no", "by its rules"]


class HeldKey(Shape):
    """The ledger's entry of a business key."""

    run_id: str
    step_id: str
    state: str
    same_params: bool
    """True and committed: its receipt is taken, there is no second effect."""


class SimulatedStep(Shape):
    """What a plan would do with one step, or one item of its list."""

    id: str
    does: str
    outcome: Outcome
    """``unknown``: whether it is done at all depends on what is not known."""
    why: str = ""
    """For people: why, and what differs from the recorded run."""
    depends_on: list[str] = []
    """Steps whose outputs decide on it, and are not known."""
    output: Literal["recorded", "unknown", "none"] = "none"
    params: Any = None
    """Of a call: as the tool's model has them, where the tool is loaded; null: not known."""
    params_hash: str | None = None
    """What an approval would be bound to; null where the tool is not loaded."""
    approval: Asks | None = None
    """Whether the call needs one; ``by its rules``: these are not evaluated here. Null: no call."""
    approval_text: str = ""
    looked_at: list[Place] = []
    """Where a human looks at it."""
    key: str | None = None
    """A write's business key, where its tool names one and is loaded."""
    held: HeldKey | None = None
    """What the ledger has under that key now."""


class Simulation(Shape):
    """``simulate``."""

    run_id: str
    seq: int
    plan: str
    plan_version: int
    changed: list[str]
    """The ``--set`` changes."""
    tools_loaded: bool
    """False: params are compared as the plan has them, and no rule, hash or key is worked out."""
    steps: list[SimulatedStep]
    ends: str | None
    """Why the run would go no further; null: it would come to its end, as far as is known."""
