"""A run's checkpoint as it was at an event: from the ledger alone, without Temporal.

Events hold digests and references, so some of what the live checkpoint tells is not in them: such
fields are null here, and ``not_rebuilt`` says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import plans, runs
from surehand.activities.ledger.history.open_items import EventsSoFar, hear
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.steps import foreign
from surehand.activities.ledger.steps.attempts import NO
from surehand.workflows.contracts.checkpoint import PendingCall, SideEffect
from surehand.workflows.contracts.steering import ACCEPTED, InterruptKind
from surehand.workflows.contracts.values import ForeignContent
from surehand.workflows.plan.plan import ITERATION, Plan, Step
from surehand.workflows.steps import rules

#: Why fields are null, and what the lists leave out.
NOT_REBUILT: Final = {
    "current_steps": "no event says that a step waits; `progress` has what long calls have told",
    "artifact_refs": "events hold the digests of outputs only: `artifacts RUN` lists them",
    "budget": "no event says what a call has used",
    "resume_policy": "no event says that a run is paused",
}
_INSIDE: Final = (
    "steps that are plans, and lists as a whole, are left out: their child runs and items tell"
)
#: Failures after which the step's call is made again, or that are none.
_NO_FAILURES: Final = frozenset({NO, "asked", "refused"})
#: What ends the wait for a decision.
_DECIDED: Final = re.compile(r"approval\.(approved|rejected|superseded|expired|void)")


class Rebuilt(BaseModel):
    """``checkpoint RUN --at SEQ``: as ``Checkpoint``, as far as events tell it."""

    model_config = ConfigDict(frozen=True)

    checkpoint_id: str
    run_id: str
    created_at: datetime
    """When the event was written."""
    created_by: str
    ttl: None = None
    plan_version: int
    current_steps: None = None
    progress: dict[str, str]
    """By step that was not done yet: digest of what its call has told last of its progress.
    `artifacts RUN` has what it was."""
    completed_steps: list[str]
    """Those that are plans, and lists as a whole, are not told of by the run's own events."""
    recovery_point: str
    pending_call: PendingCall | None
    pending_approvals: list[str]
    pending_side_effects: list[str]
    """Writes that were claimed and had no outcome yet, by step id."""
    side_effects: list[SideEffect]
    """In the order of their first claims; those that undo others, too."""
    pending_interrupts: list[str]
    """Everything that waited for a human, approvals first."""
    artifact_refs: None = None
    foreign: list[ForeignContent]
    """What had brought the run content from outside."""
    permissions_snapshot: dict[str, str]
    budget: None = None
    last_error: str | None
    """The run's own at its end; before it, the step and class of the newest failure."""
    resume_policy: None = None
    not_rebuilt: dict[str, str]
    """Why, by field."""


class NoSuchEvent(ValueError):
    """The run has no event of that number; the message says how many it has."""


@dataclass
class Past:
    """What a run's events have said, from the first to one of them."""

    told: EventsSoFar = field(default_factory=EventsSoFar)
    plan_version: int = 1
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    """Steps that have failed for good."""
    rejected: set[str] = field(default_factory=set)
    """Steps whose call somebody has rejected."""
    replaced: set[str] = field(default_factory=set)
    """Steps whose output a human has looked at and not accepted; what they gave is not told."""
    approvals: dict[str, PendingCall] = field(default_factory=dict)
    interrupts: dict[str, str] = field(default_factory=dict)
    """Step by open interrupt."""
    effects: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Tool and step by entry."""
    progress: dict[str, str] = field(default_factory=dict)
    """Digest by step."""
    foreign: list[ForeignContent] = field(default_factory=list)
    """What had brought it content from outside."""
    last_error: str | None = None

    @property
    def completed(self) -> set[str]:
        """Steps that are done, and at which nobody looks any more."""
        return self.done - set(self.interrupts.values())

    @property
    def undone(self) -> set[str]:
        """Steps whose effect has been undone."""
        states = self.told.states
        return {step for entry, (_, step) in self.effects.items() if states[entry] == "compensated"}


def past_of(events: Sequence[Mapping[str, Any]], versions: Mapping[int, Plan]) -> Past:
    """Return what a run's first events have said.

    Args:
        events: The first of them up to the one in question, in order.
        versions: Its plans, by version.
    """
    past = Past()
    for event in events:
        _hear(past, event, versions)
    return past


def checkpoint_at(tx: Transaction, run_id: str, seq: int | None) -> Rebuilt:
    """Return the checkpoint of a run right after one of its events; ``None``: after the newest.

    Raises:
        RunNotFound: No such run in this tenant.
        NoSuchEvent: It has no such event.
    """
    events, entries, _ = chain_of(tx, run_id, sealed="opened")
    seq = len(events) if seq is None else seq
    if not 1 <= seq <= len(events):
        raise NoSuchEvent(f"run {run_id} has events 1 to {len(events)}, none of number {seq}")
    [run] = tx.all(rows_of(runs, run_id=run_id))
    rows = tx.all(rows_of(plans, plans.c.plan_version, plans.c.plan, run_id=run_id))
    versions = {row["plan_version"]: Plan.model_validate(row["plan"]) for row in rows}
    keys = {str(entry["entry_id"]): str(entry["key"]) for entry in entries}
    return rebuilt(events[:seq], run, versions, keys)


def rebuilt(
    events: Sequence[Mapping[str, Any]],
    run: Mapping[str, Any],
    versions: Mapping[int, Plan],
    keys: Mapping[str, str],
) -> Rebuilt:
    """Return the checkpoint that a run's first events tell of.

    Args:
        events: The first of them up to the one in question, in order.
        versions: Its plans, by version.
        keys: Business keys by entry.
    """
    past = past_of(events, versions)
    ended = past.told.ended is not None
    plan = versions[past.plan_version]
    order = {step.id: number for number, step in enumerate(plan.steps)}
    done = sorted(past.completed, key=lambda step: _position(step, order))
    waiting = [*past.approvals, *past.interrupts, *past.told.questions]
    last, run_id = events[-1], str(run["run_id"])
    return Rebuilt(
        checkpoint_id=f"{run_id}@{last['seq']}",
        run_id=run_id,
        created_at=datetime.fromtimestamp(last["at_ms"] / 1000, UTC),
        created_by=run["user_id"],
        plan_version=past.plan_version,
        progress={step: told for step, told in past.progress.items() if step not in past.done},
        completed_steps=done,
        recovery_point=done[-1] if done else "start",
        pending_call=None if ended else next(iter(past.approvals.values()), None),
        pending_approvals=[] if ended else list(past.approvals),
        pending_side_effects=[] if ended else _pending(past),
        side_effects=[
            SideEffect(
                tool=tool, idempotency_key=keys.get(entry, ""), state=past.told.states[entry]
            )
            for entry, (tool, _) in past.effects.items()
        ],
        pending_interrupts=list(past.told.questions) if ended else waiting,
        foreign=past.foreign,
        permissions_snapshot={"user": run["user_id"], "tenant": run["tenant_id"]},
        last_error=run["error"] if ended else past.last_error,
        not_rebuilt={
            **NOT_REBUILT,
            **({"completed_steps": _INSIDE} if any(map(_tells_nothing, plan.steps)) else {}),
        },
    )


def _hear(past: Past, event: Mapping[str, Any], versions: Mapping[int, Plan]) -> None:
    body, step_id = event["body"], str(event["step_id"] or "")
    hear(past.told, event)
    match event["type"]:
        case "run.amended":
            past.plan_version = int(body["plan_version"])
        case foreign.MARKED:
            past.foreign.append(foreign.of_event(event["step_id"], body))
        case "step.succeeded" | "effect.replayed":
            past.done.add(step_id)
        case "step.progress":
            past.progress |= {step_id: str(body["progress"])} if "progress" in body else {}
        case "effect.claimed" | "effect.in_doubt":
            past.effects.setdefault(str(body["entry_id"]), (str(body["tool"]), step_id))
        case "effect.committed" | "intervention.settled":
            entry = str(body.get("entry_id", ""))
            if past.told.states.get(entry) == "committed" and entry not in past.told.undos:
                past.done.add(past.effects[entry][1])
        case "effect.answered_no":
            _answered_no(past, step_id, versions)
        case "step.failed" | "effect.failed":
            class_ = body.get("failure_class")
            if _is_final(body, _step(versions[past.plan_version], step_id)):
                past.failed.add(step_id)
            if class_ == "no":
                _answered_no(past, step_id, versions)
            elif class_:
                past.last_error = f"{step_id}: {class_}"
        case "step.refused":
            past.last_error = f"{step_id}: refused"
        case "approval.requested":
            past.approvals[str(body["approval_id"])] = PendingCall(
                tool=body["tool"],
                params_hash=body["params_hash"],
                approval_id=body["approval_id"],
            )
            past.rejected.discard(step_id)
        case "approval.waived":
            past.rejected.discard(step_id)
        case str(type_) if _DECIDED.fullmatch(type_):
            past.approvals.pop(str(body["approval_id"]), None)
            (past.rejected.add if type_ == "approval.rejected" else past.rejected.discard)(step_id)
        case "interrupt.opened":
            past.interrupts[_shown_id(event)] = step_id
        case "interrupt.answered" | "interrupt.delivered" | "interrupt.expired" | "interrupt.void":
            _settled(past, event, versions)


def _settled(past: Past, event: Mapping[str, Any], versions: Mapping[int, Plan]) -> None:
    body, step_id, how = event["body"], str(event["step_id"]), event["type"].partition(".")[2]
    kind = InterruptKind(body["kind"])
    past.interrupts.pop(_shown_id(event), None)
    if how == "answered" and kind is InterruptKind.AFTER and body["answer"] != ACCEPTED:
        past.replaced.add(step_id)
    if how == "void" or not kind.is_whole_step:
        return
    step = _step(versions[past.plan_version], step_id)
    asked = None if step is None else step.ask or step.wait
    # Nobody has answered: with nothing to take instead the step has failed.
    if how != "expired" or (asked is not None and asked.otherwise is not None):
        past.done.add(step_id)


def _shown_id(event: Mapping[str, Any]) -> str:
    """Return the id under which people see what is waited for: an event by its step."""
    body = event["body"]
    return str(event["step_id"] if body["kind"] == InterruptKind.EVENT else body["interrupt_id"])


def _answered_no(past: Past, step_id: str, versions: Mapping[int, Plan]) -> None:
    plan = versions[past.plan_version]
    step = _step(plan, step_id)
    if step is not None and plan.on_no(step) != "fail":
        past.done.add(step_id)


def _is_final(body: Mapping[str, Any], step: Step | None) -> bool:
    """Return whether a failure is a step's last one: nothing is tried again, or asked instead."""
    if body.get("retry_ms") is not None or body.get("failure_class") in _NO_FAILURES:
        return False
    instead = None if step is None else rules.fallback_of(step)
    return body.get("action") is None and (instead is None or body["tool"] == instead.tool)


def _pending(past: Past) -> list[str]:
    open_ = ("claimed", "in_doubt", "partial")
    return [
        step
        for entry, (_, step) in past.effects.items()
        if past.told.states[entry] in open_ and entry not in past.told.undos
    ]


def _step(plan: Plan, step_id: str) -> Step | None:
    try:
        return plan.step(step_id)
    except KeyError:
        return None


def _tells_nothing(step: Step) -> bool:
    return step.plan is not None or step.for_each is not None


def _position(step_id: str, order: Mapping[str, int]) -> tuple[int, int]:
    """Return where a step stands in its plan; an item of a list behind the one before it."""
    number = ITERATION.search(step_id)
    base = ITERATION.sub("", step_id)
    return order.get(base, len(order)), int(number[0][1:-1]) if number else -1
