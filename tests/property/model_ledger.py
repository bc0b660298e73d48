"""A ledger in memory with the semantics of the real one, behind the ports that a run calls.

The engine is tested over it: whatever happens to calls and whoever answers when, what the engine
asked for is recorded here in its order.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from surehand.activities.ledger.approvals.decisions import judge_decision
from surehand.activities.ledger.steps.acting import EVERY_STEP
from surehand.activities.worker.context import again, stop
from surehand.workflows.contracts.approvals import (
    ApprovalAsked,
    ApprovalClosed,
    ApprovalRequest,
    ApprovalState,
    CloseApproval,
    Decision,
    RequestApproval,
    Verdict,
    VerdictCode,
    VerdictReached,
    VerifyDecision,
)
from surehand.workflows.contracts.base import ChainHead, OfRun, RunState
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    EffectView,
    FindRemaining,
    InterventionSettled,
    InterventionsFound,
    RemainingEffect,
    RemainingFound,
    Resolution,
    SettleIntervention,
)
from surehand.workflows.contracts.runs import CloseRun, OpenRun, RunClosed, RunOpened
from surehand.workflows.contracts.steering import Steer, Steered, SteeringCode
from surehand.workflows.contracts.tools import (
    AnsweredNo,
    ApprovalNeeded,
    Batch,
    BatchReport,
    Effect,
    HumanNeeded,
    Recovery,
    StepReport,
    Succeeded,
    ToolCall,
    ToolOutcome,
    ToolReport,
    ToolSpec,
)
from surehand.workflows.identity import approval_id, params_hash, standing_digest
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.policy import combine
from tests.property.scenarios import PlannedStep, Scenario

_SOON: Final = timedelta(milliseconds=5)
_REMAINING: Final = ("committed", "in_doubt", "compensating", "claimed")
#: Effects that one answer lists: few, so that there are several.
PAGE: Final = 2


@dataclass
class Entry:
    """An effect of one generation of a key."""

    key: str
    generation: int
    step: PlannedStep
    state: str = "failed"
    commit_no: int | None = None
    left: str | None = None
    """Why it was left as it is."""

    @property
    def id(self) -> str:
        return f"ef-{self.key}-{self.generation}"

    def view(self) -> EffectView:
        return EffectView(
            entry_id=self.id,
            tool=self.step.tool,
            key=self.key,
            generation=self.generation,
            state=self.state,
            step_id=self.step.id,
            reason=self.left if self.state in _REMAINING else None,
        )


@dataclass
class Approval:
    """An approval's row."""

    request: ApprovalRequest
    state: ApprovalState = ApprovalState.PENDING
    decided_by: str = ""
    used_by: str | None = None


@dataclass
class Question:
    """An intervention's row."""

    id: str
    entry: Entry
    outcome: str | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class World:
    """One run's ledger and outside world, and the record of what the engine has asked for."""

    scenario: Scenario
    run_id: str
    people: Any = None
    handle: WorkflowHandle[Any, Any] | None = None
    executions: set[str] = field(default_factory=set)
    """Those that have opened the run: the first, and each that it has continued as."""
    log: list[tuple[str, str]] = field(default_factory=list)
    """What was asked of it: ``(port, step or approval)``, in order."""
    entries: list[Entry] = field(default_factory=list)
    approvals: dict[str, Approval] = field(default_factory=dict)
    verdicts: dict[str, VerdictReached] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)
    barred: set[str] = field(default_factory=set)
    applied: Counter[str] = field(default_factory=Counter)
    """By entry id."""
    undone: list[str] = field(default_factory=list)
    """Entry ids in the order of their undoing."""
    authorised: list[tuple[str, str]] = field(default_factory=list)
    """``(approval, entry)`` of each application that needed one."""
    wrong: list[str] = field(default_factory=list)
    """What the engine must never do."""
    closed: CloseRun | None = None
    reset_at: int = 0
    """How long the log was when the run was reset; 0: it was not."""
    seq: int = 0
    _tries: Counter[str] = field(default_factory=Counter)

    def head(self) -> ChainHead:
        self.seq += 1
        return ChainHead(seq=self.seq, hash=f"h{self.seq}")

    def newest(self, key: str) -> Entry | None:
        return max(
            (e for e in self.entries if e.key == key), key=lambda e: e.generation, default=None
        )

    def remaining(self, step_id: str | None = None) -> list[Entry]:
        """Return what is to be undone, of a step or of all, last commit first."""
        found = [
            entry
            for entry in reversed(self.entries)
            if entry.state in _REMAINING and step_id in (None, entry.step.id)
        ]
        # What has no number yet happened last, if it did.
        return sorted(found, key=lambda entry: -(entry.commit_no or math.inf))

    def fate(self, kind: str, step_id: str, fates: tuple[str, ...]) -> str:
        """Return what becomes of the next attempt that gets through."""
        name = f"{kind} {step_id}"
        self._tries[name] += 1
        number = self._tries[name] - 1
        return fates[number] if number < len(fates) else "done"

    def ask_human(self, entry: Entry) -> Question:
        """Open the one question about an entry, or join it."""
        for question in self.questions.values():
            if question.entry is entry and question.outcome is None:
                return question
        question = Question(f"iv-{entry.id}-{len(self.questions) + 1}", entry)
        self.questions[question.id] = question
        return question

    def newest_question(self, entry: Entry) -> Question | None:
        return next((q for q in reversed(self.questions.values()) if q.entry is entry), None)

    def views(self) -> list[EffectView]:
        return [entry.view() for entry in self.entries]

    async def asked(self, port: str, what: str) -> None:
        """Record a call of a port; people may choose this very moment."""
        self.log.append((port, what))
        if self.closed is not None and port in ("execute_tools", "compensate", "request_approval"):
            self.wrong.append(f"{port} {what} after the run was closed")
        await self.people.at(len(self.log))


class ModelLedger:
    """The activities of all worlds."""

    def __init__(self) -> None:
        self.worlds: dict[str, World] = {}

    def all(self) -> list[Callable[..., Any]]:
        return [
            self.open_run,
            self.execute_tools,
            self.find_remaining,
            self.compensate,
            self.request_approval,
            self.verify_decision,
            self.close_approval,
            self.settle_intervention,
            self.steer,
            self.find_interventions,
            self.close_run,
            self.not_modelled,
        ]

    @activity.defn(name="open_run")
    async def open_run(self, asked: OpenRun) -> RunOpened:
        world = self.worlds[asked.request.run_id]
        # Also one whose task is made anew opens it again.
        world.executions.add(str(activity.info().workflow_run_id))
        named = asked.request.plan.steps if not asked.continues else ()
        return RunOpened(tools={step.tool: _spec(step.tool) for step in named}, head=world.head())

    @activity.defn(name="execute_tools")
    async def execute_tools(self, batch: Batch) -> BatchReport:
        call = batch.first
        world = self.worlds[call.run_id]
        await world.asked("execute_tools", call.step_id)
        step = world.scenario.step(call.step_id)
        fate = ""
        if not world.barred.isdisjoint((step.id, EVERY_STEP)) and not world.reset_at:
            world.wrong.append(f"{step.id} called after its undoing had begun")
        if not step.write:
            fate, outcome = _read(world, step, call)
        else:
            fate, outcome = await _write(world, step, call)
        if fate == "slow":
            await asyncio.sleep(0.03)
        if fate == "done, report lost":
            raise again(ErrorType.TRANSIENT, "heartbeat time-out", _SOON)
        report = ToolReport(outcome=outcome, head=world.head())
        return BatchReport(steps=[StepReport(step_id=step.id, report=report)])

    @activity.defn(name="find_remaining")
    async def find_remaining(self, asked: FindRemaining) -> RemainingFound:
        world = self.worlds[asked.run_id]
        if asked.bar:
            await world.asked("bar", asked.step_id or EVERY_STEP)
            world.barred.add(asked.step_id or EVERY_STEP)
        found = world.remaining(asked.step_id)
        first = int(asked.after or 0)
        page = found[first : first + PAGE]
        for entry in page:
            entry.left = asked.leave or entry.left
        more = first + PAGE < len(found)
        return RemainingFound(
            effects=[RemainingEffect(effect=entry.view()) for entry in page],
            after=str(first + PAGE) if more else None,
            head=world.head(),
        )

    @activity.defn(name="compensate")
    async def compensate(self, asked: Compensate) -> CompensationReport:
        world = self.worlds[asked.run_id]
        await world.asked("compensate", asked.entry_id)
        [entry] = [one for one in world.entries if one.id == asked.entry_id]
        if asked.step_id not in world.barred and EVERY_STEP not in world.barred:
            world.wrong.append(f"{asked.entry_id} undone before its step was barred")
        outcome, reason, question = _undo(world, entry, cleanup=asked.cleanup)
        if outcome is CompensationOutcome.UNCOMPENSATED:
            entry.left = reason
        if question is not None:
            await world.people.intervene(world, question)
        return CompensationReport(
            outcome=outcome,
            reason=reason,
            intervention_id=question.id if question else None,
            head=world.head(),
        )

    @activity.defn(name="request_approval")
    async def request_approval(self, asked: RequestApproval) -> ApprovalAsked:
        call = asked.call
        world = self.worlds[call.run_id]
        await world.asked("request_approval", call.step_id)
        step = world.scenario.step(call.step_id)
        found = world.newest(step.key)
        if found is not None and found.state == "committed":
            return ApprovalAsked(request=None, head=world.head())
        name = approval_id(call.run_id, call.step_id, asked.number)
        row = world.approvals.get(name)
        if row is None:
            needs = combine(call.policies, lambda _: False)
            assert needs is not None, "asked for an approval that nobody wants"
            row = world.approvals[name] = Approval(
                ApprovalRequest(
                    approval_id=name,
                    step_id=step.id,
                    tool=step.tool,
                    version="1",
                    params=call.params,
                    params_hash=params_hash(step.tool, "1", call.params),
                    description=f"do {step.key}",
                    requested_by=call.user,
                    expires_at=datetime.now(UTC) + needs.expires_in,
                    undo="",
                )
            )
            world.people.decide(world, row.request)
        return ApprovalAsked(request=row.request, state=row.state, head=world.head())

    @activity.defn(name="verify_decision")
    async def verify_decision(self, asked: VerifyDecision) -> VerdictReached:
        world = self.worlds[asked.run_id]
        decision = asked.decision
        if asked.decision_id in world.verdicts:  # its task is made anew
            return world.verdicts[asked.decision_id]
        await world.asked("verify_decision", decision.approval_id if decision else "")
        code, message, row = VerdictCode.MALFORMED, asked.refused or "", None
        if decision is not None:
            row = world.approvals.get(decision.approval_id)
            refused = judge_decision(decision, _as_row(row), _now_ms())
            code, message = refused or (VerdictCode.ACCEPTED, f"{decision.outcome} counts")
        if code is VerdictCode.ACCEPTED and decision is not None and row is not None:
            approves = decision.outcome == "approve"
            row.state = ApprovalState.APPROVED if approves else ApprovalState.REJECTED
            row.decided_by = decision.approver
        verdict = Verdict(
            decision_id=asked.decision_id,
            approval_id=decision.approval_id if decision else "",
            code=code,
            message=message,
            state=row.state if row else None,
        )
        reached = VerdictReached(verdict=verdict, head=world.head())
        world.verdicts[asked.decision_id] = reached
        return reached

    @activity.defn(name="close_approval")
    async def close_approval(self, asked: CloseApproval) -> ApprovalClosed:
        world = self.worlds[asked.run_id]
        await world.asked("close_approval", asked.approval_id)
        row = world.approvals[asked.approval_id]
        over = row.request.expires_at <= datetime.now(UTC)
        unused = row.state is ApprovalState.APPROVED and row.used_by is None
        if (row.state is ApprovalState.PENDING or unused) and (asked.to == "void" or over):
            row.state = ApprovalState(asked.to)
        return ApprovalClosed(state=row.state, head=world.head())

    @activity.defn(name="settle_intervention")
    async def settle_intervention(self, asked: SettleIntervention) -> InterventionSettled:
        world = self.worlds[asked.run_id]
        await world.asked("settle_intervention", asked.resolution.intervention_id)
        accepted, message = settle(world, asked.resolution)
        question = world.questions.get(asked.resolution.intervention_id)
        settled = question is not None and question.outcome is not None
        return InterventionSettled(
            accepted=accepted, message=message, head=world.head(), settled=settled
        )

    @activity.defn(name="steer")
    async def steer(self, asked: Steer) -> Steered:
        world = self.worlds[asked.run_id]
        await world.asked("steer", asked.verb)
        return Steered(
            code=SteeringCode.ACCEPTED, message="accepted", verified=False, head=world.head()
        )

    @activity.defn(name="find_interventions")
    async def find_interventions(self, asked: OfRun) -> InterventionsFound:
        return InterventionsFound(interventions=[])

    @activity.defn(name="close_run")
    async def close_run(self, asked: CloseRun) -> RunClosed:
        world = self.worlds[asked.run_id]
        await world.asked("close_run", asked.state)
        stands = standing_digest((entry.id for entry in world.remaining(None)), ())
        if asked.standing not in (None, stands):
            return RunClosed(closed=False, head=world.head())
        world.closed = asked
        views = world.views()
        remaining = [view for view in views if view.state in _REMAINING]
        completed = asked.state is RunState.COMPLETED
        return RunClosed(
            effects=views, uncompensated=[] if completed else remaining, head=world.head()
        )

    @activity.defn(dynamic=True)
    async def not_modelled(self, _: Sequence[RawValue]) -> None:
        # Without this the server would try an unknown activity until the test's patience ends.
        name = activity.info().activity_type
        raise ApplicationError(f"the model has no {name}", type="NotModelled", non_retryable=True)


def _spec(tool: str) -> ToolSpec:
    return ToolSpec(
        name=tool,
        version="1",
        schema_hash="sha256:0",
        effect=Effect.READ if tool == "model.read" else Effect.WRITE,
        recovery=Recovery.READ if tool == "model.read" else Recovery.LOOKUP,
        timeout=timedelta(seconds=30),
        irreversible=tool == "model.final",
    )


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _as_row(row: Approval | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        "run_id": row.request.approval_id.split("/")[0],
        "state": row.state.value,
        "decided_by": row.decided_by,
        "verified": False,
        "expires_ms": int(row.request.expires_at.timestamp() * 1000),
        "params_hash": row.request.params_hash,
    }


def _attempts(call: ToolCall) -> int:
    return call.attempts_before + activity.info().attempt


def _stop_or_again(fate: str, step: PlannedStep) -> ApplicationError | None:
    match fate:
        case "transient":
            return again(ErrorType.TRANSIENT, "busy", _SOON)
        case "permanent":
            return stop(ErrorType.TOOL_FAILED, f"{step.id} failed for good")
        case "mismatch":
            return stop(ErrorType.PARAMS_MISMATCH, f"{step.id} has other params")
    return None


def _read(world: World, step: PlannedStep, call: ToolCall) -> tuple[str, ToolOutcome]:
    fate = world.fate("call", step.id, step.tries)
    error = _stop_or_again(fate, step)
    if error is not None:
        raise error
    if fate == "no":
        return fate, AnsweredNo(reason="no", attempts=_attempts(call))
    return fate, Succeeded(output={"read": step.key}, attempts=_attempts(call))


async def _write(world: World, step: PlannedStep, call: ToolCall) -> tuple[str, ToolOutcome]:
    attempts, entry = _attempts(call), world.newest(step.key)
    mine = entry is not None and entry.step.id == step.id
    if entry is not None and entry.state == "committed":
        return "", _succeeded(world, entry, mine, attempts, replayed=True)
    if entry is not None and entry.state == "in_doubt":
        question = world.newest_question(entry)
        if question is not None and question.outcome == "give_up":
            raise stop(ErrorType.STEP_BARRED, "given up")
        if question is not None and question.id == call.joined:
            raise again(ErrorType.LEASE_HELD, "waits for a human", 4 * _SOON)
        return "", await _human(world, entry, mine, attempts)
    if entry is not None and entry.state == "compensating":
        raise again(ErrorType.LEASE_HELD, "being undone", _SOON)
    if not world.barred.isdisjoint((step.id, EVERY_STEP)) or (
        entry is not None and entry.state == "compensated" and mine
    ):
        raise stop(ErrorType.STEP_BARRED, "undone")
    if entry is None or entry.state == "compensated":
        generation = entry.generation + 1 if entry is not None else 1
        entry = Entry(step.key, generation, step)
        world.entries.append(entry)
    fate = world.fate("call", step.id, step.tries)
    if call.policies or call.tool.approval is not None:
        refused = "used up" if fate == "approval refused" else _use(world, call, entry)
        if refused:
            return "", ApprovalNeeded(reason=refused, attempts=attempts)
    entry.step = step
    error = _stop_or_again(fate, step)
    if error is not None:
        raise error
    if fate == "no":
        return fate, AnsweredNo(reason="no", attempts=attempts)
    if fate != "in doubt: did not happen":
        world.applied[entry.id] += 1
    if fate.startswith("in doubt"):
        entry.state = "in_doubt"
        return fate, await _human(world, entry, True, attempts)
    entry.state, entry.commit_no = "committed", world.head().seq
    return fate, _succeeded(world, entry, True, attempts, replayed=False)


def _succeeded(
    world: World, entry: Entry, mine: bool, attempts: int, *, replayed: bool
) -> Succeeded:
    return Succeeded(
        output={"did": entry.key},
        attempts=attempts,
        replayed=replayed,
        entry_id=entry.view().entry_id,
        effect=entry.view() if mine else None,
    )


async def _human(world: World, entry: Entry, mine: bool, attempts: int) -> HumanNeeded:
    question = world.ask_human(entry)
    if mine:
        await world.people.intervene(world, question)
    return HumanNeeded(
        intervention_id=question.id,
        question="did it happen?",
        attempts=attempts,
        effect=entry.view() if mine else None,
    )


def _use(world: World, call: ToolCall, entry: Entry) -> str | None:
    """Use the call's approval for an entry, or say why that is not possible."""
    row = world.approvals.get(call.approval_id or "")
    if row is None:
        world.wrong.append(f"{call.step_id} called without an approval")
        return "there is none"
    if row.request.params_hash != call.params_hash:
        world.wrong.append(f"{call.step_id} called with another hash than approved")
    if row.state is not ApprovalState.APPROVED:
        return f"it is {row.state}"
    if row.request.expires_at <= datetime.now(UTC):
        return "it has expired"
    if row.used_by not in (None, entry.id):
        return "it was used"
    row.used_by = entry.id
    world.authorised.append((row.request.approval_id, entry.id))
    return None


def _undo(
    world: World, entry: Entry, *, cleanup: bool
) -> tuple[CompensationOutcome, str, Question | None]:
    step = entry.step
    if entry.state in ("failed", "compensated"):
        return CompensationOutcome.NOTHING_TO_UNDO, "nothing there", None
    question = world.newest_question(entry)
    if question is not None and question.outcome is None:
        return CompensationOutcome.HUMAN_NEEDED, "asked", question
    if question is not None and question.outcome == "give_up":
        return CompensationOutcome.UNCOMPENSATED, "left as it is", None
    if entry.state == "in_doubt":
        return CompensationOutcome.HUMAN_NEEDED, "in doubt", world.ask_human(entry)
    if step.irreversible or cleanup:
        return CompensationOutcome.UNCOMPENSATED, "it stays", None
    fate = world.fate("undo", step.id, step.undo_tries)
    if fate == "transient":
        raise again(ErrorType.TRANSIENT, "busy", _SOON)
    entry.state = "compensating"
    if fate == "fails for good":
        return CompensationOutcome.HUMAN_NEEDED, "failed", world.ask_human(entry)
    entry.state = "compensated"
    world.undone.append(entry.id)
    if fate == "done, report lost":
        raise again(ErrorType.TRANSIENT, "heartbeat time-out", _SOON)
    return CompensationOutcome.COMPENSATED, "undone", None


def settle(world: World, said: Resolution) -> tuple[bool, str]:
    """Apply a human's answer to its question, once."""
    question = world.questions.get(said.intervention_id)
    if question is None:
        return False, "no such intervention"
    if question.outcome is not None:
        return False, f"already settled: {question.outcome}"
    entry = question.entry
    undoing = entry.state == "compensating"
    if undoing and said.outcome not in ("compensated", "give_up"):
        return False, "it is being undone"
    question.outcome = said.outcome.value
    question.settled.set()
    match said.outcome:
        case "happened":
            entry.state, entry.commit_no = "committed", world.head().seq
        case "not_happened" | "call_off":
            entry.state = "failed"
        case "compensated":
            entry.state = "compensated"
            world.undone.append(entry.id)
        case "give_up" if undoing:
            entry.state = "committed"
    return True, "settled"


def decision(request: ApprovalRequest, outcome: str = "approve", **changes: str) -> dict[str, str]:
    sent = {
        "approval_id": request.approval_id,
        "params_hash": request.params_hash,
        "outcome": outcome,
        "approver": "ann",
        **changes,
    }
    Decision.model_validate(sent)
    return sent
