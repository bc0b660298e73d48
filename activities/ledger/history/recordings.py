"""What a run's events tell of it, up to any of them: the one fold of a run's past.

Three read it: what is open about a run (``audit``, ``show``), its checkpoint as it was at an event,
and what it has recorded for ``simulate``. All of it is from the ledger alone, without Temporal.

Events hold digests and references, so some of what the live checkpoint tells is not in them: such
fields are null here, and ``not_rebuilt`` says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from surehand.activities.ledger.core.statements import ours, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    UNSETTLED_STATES,
    effects,
    plans,
    replays,
    runs,
    steps,
)
from surehand.activities.ledger.effects.run_tree import REMAINING
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.steps import foreign
from surehand.activities.ledger.steps.attempts import NO
from surehand.activities.ledger.steps.entries import Entry
from surehand.process.exits import WrongUse
from surehand.verify import EffectsPast, take_effect
from surehand.workflows.contracts.base import ForeignContent
from surehand.workflows.contracts.runs import Checkpoint, PendingCall, SideEffect
from surehand.workflows.contracts.steering import ACCEPTED, InterruptKind
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.plan.plan import ITERATION, Plan, Step
from surehand.workflows.run import step_rules as rules

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


@dataclass
class RunPast(EffectsPast):
    """What a run's events have said, from the first to one of them."""

    plan_version: int = 1
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    """Steps that have failed and are not tried again."""
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
        return {
            step for entry, (_, step) in self.effects.items() if self.states[entry] == "compensated"
        }


def fold_events(events: Sequence[Mapping[str, Any]], versions: Mapping[int, Plan]) -> RunPast:
    """Return what a run's first events have said; ``versions`` are its plans."""
    past = RunPast()
    for event in events:
        take_effect(past, event)
        _take_step(past, event, versions)
    return past


def _take_step(past: RunPast, event: Mapping[str, Any], versions: Mapping[int, Plan]) -> None:
    """Take in what an event says of a step; ``take_effect`` has taken it in."""
    body, step_id = event["body"], str(event["step_id"] or "")
    plan = versions[past.plan_version]
    match event["type"]:
        case "run.amended":
            past.plan_version = int(body["plan_version"])
        case foreign.MARKED:
            past.foreign.append(foreign.content_of_event(event["step_id"], body))
        case "step.succeeded" | "effect.replayed":
            past.done.add(step_id)
        case "step.progress":
            past.progress |= {step_id: str(body["progress"])} if "progress" in body else {}
        case "effect.claimed" | "effect.in_doubt":
            past.effects.setdefault(str(body["entry_id"]), (str(body["tool"]), step_id))
        case "effect.committed" | "intervention.settled":
            entry = str(body.get("entry_id", ""))
            if past.states.get(entry) == "committed" and entry not in past.undos:
                past.done.add(past.effects[entry][1])
        case "effect.answered_no":
            _take_no(past, step_id, plan)
        case "step.failed" | "effect.failed":
            class_ = body.get("failure_class")
            if _is_final(body, _find_step(plan, step_id)):
                past.failed.add(step_id)
            if class_ == "no":
                _take_no(past, step_id, plan)
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
            how, kind = event["type"].partition(".")[2], InterruptKind(body["kind"])
            past.interrupts.pop(_shown_id(event), None)
            if how == "answered" and kind is InterruptKind.AFTER and body["answer"] != ACCEPTED:
                past.replaced.add(step_id)
            step = _find_step(plan, step_id)
            asked = None if step is None else step.ask or step.wait
            # If nobody has answered, a step with nothing to take instead has failed.
            instead = how != "expired" or (asked is not None and asked.otherwise is not None)
            if how != "void" and kind.is_whole_step and instead:
                past.done.add(step_id)


def _shown_id(event: Mapping[str, Any]) -> str:
    """Return the id under which people see what is waited for: an event by its step."""
    body = event["body"]
    return str(event["step_id"] if body["kind"] == InterruptKind.EVENT else body["interrupt_id"])


def _find_step(plan: Plan, step_id: str) -> Step | None:
    try:
        return plan.step(step_id)
    except KeyError:
        return None


def _take_no(past: RunPast, step_id: str, plan: Plan) -> None:
    step = _find_step(plan, step_id)
    if step is not None and plan.on_no(step) != "fail":
        past.done.add(step_id)


def _is_final(body: Mapping[str, Any], step: Step | None) -> bool:
    """Return whether a failure is a step's last one: nothing is tried again, or asked instead."""
    if body.get("retry_ms") is not None or body.get("failure_class") in _NO_FAILURES:
        return False
    instead = None if step is None else rules.fallback_of(step)
    return body.get("action") is None and (instead is None or body["tool"] == instead.tool)


class NoSuchEvent(WrongUse):
    """The run has no event of that number; the message says how many it has."""


def _read_until(
    tx: Transaction, run_id: str, seq: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[int, dict[str, Any]], int]:
    """Return a run's events, entries and plans, and the number of the event in question."""
    events, entries, _ = chain_of(tx, run_id, sealed="opened")
    seq = len(events) if seq is None else seq
    if not 1 <= seq <= len(events):
        raise NoSuchEvent(f"run {run_id} has events 1 to {len(events)}, none of number {seq}")
    rows = tx.all(rows_of(plans, run_id=run_id))
    return events, entries, {row["plan_version"]: row for row in rows}, seq


def rebuild_checkpoint(tx: Transaction, run_id: str, seq: int | None) -> Checkpoint:
    """Return the checkpoint of a run right after one of its events; ``None``: after the newest."""
    events, entries, rows, seq = _read_until(tx, run_id, seq)
    [run] = tx.all(rows_of(runs, run_id=run_id))
    versions = {number: Plan.model_validate(row["plan"]) for number, row in rows.items()}
    keys = {str(entry["entry_id"]): str(entry["key"]) for entry in entries}
    past = fold_events(events[:seq], versions)
    plan, ended = versions[past.plan_version], past.ended is not None
    order = {step.id: number for number, step in enumerate(plan.steps)}
    done = sorted(past.completed, key=lambda step: _position(step, order))
    unsettled = [
        step
        for entry, (_, step) in past.effects.items()
        if past.states[entry] in UNSETTLED_STATES and entry not in past.undos
    ]
    waiting = [*past.approvals, *past.interrupts, *past.questions]
    tells_nothing = any(step.plan is not None or step.for_each is not None for step in plan.steps)
    return Checkpoint(
        checkpoint_id=f"{run_id}@{seq}",
        run_id=run_id,
        created_at=datetime.fromtimestamp(events[seq - 1]["at_ms"] / 1000, UTC),
        created_by=run["user_id"],
        ttl=None,
        plan_version=past.plan_version,
        current_steps=None,
        progress={step: told for step, told in past.progress.items() if step not in past.done},
        completed_steps=done,
        recovery_point=done[-1] if done else "start",
        pending_call=None if ended else next(iter(past.approvals.values()), None),
        pending_approvals=[] if ended else list(past.approvals),
        pending_side_effects=[] if ended else unsettled,
        side_effects=[
            SideEffect(tool=tool, idempotency_key=keys.get(entry, ""), state=past.states[entry])
            for entry, (tool, _) in past.effects.items()
        ],
        pending_interrupts=list(past.questions) if ended else waiting,
        artifact_refs=None,
        foreign=tuple(past.foreign),
        permissions_snapshot={"user": run["user_id"], "tenant": run["tenant_id"]},
        budget=None,
        last_error=run["error"] if ended else past.last_error,
        resume_policy=None,
        not_rebuilt=NOT_REBUILT | ({"completed_steps": _INSIDE} if tells_nothing else {}),
    )


def _position(step_id: str, order: Mapping[str, int]) -> tuple[int, int]:
    """Return where a step stands in its plan; an item of a list behind the one before it."""
    number = ITERATION.search(step_id)
    base = ITERATION.sub("", step_id)
    return order.get(base, len(order)), int(number[0][1:-1]) if number else -1


@dataclass(frozen=True)
class PastOutput:
    """What a step had given by an event."""

    output: Any
    no: str | None = None
    """Why its tool had answered no."""


@dataclass(frozen=True)
class RunAt:
    """A run as it was right after one of its events, with what its steps had given by then."""

    run_id: str
    plan_version: int
    plan: Plan
    tools: Mapping[str, ToolSpec]
    """As recorded with the plan."""
    past: RunPast
    done: frozenset[str]
    """Steps that were done, and those whose outputs it has taken over from another run."""
    given: Mapping[str, PastOutput]
    """What they had given, where it is recorded in this run."""


def read_run_at(tx: Transaction, run_id: str, seq: int | None = None) -> RunAt:
    """Return a run as it was right after one of its events; ``None``: after the newest."""
    events, entries, rows, seq = _read_until(tx, run_id, seq)
    versions = {number: Plan.model_validate(row["plan"]) for number, row in rows.items()}
    past = fold_events(events[:seq], versions)
    at_ms, tools = events[seq - 1]["at_ms"], rows[past.plan_version]["tools"]
    completed = rows_of(runs, "parent_step_id", parent_run_id=run_id, state="completed")
    children = tx.all(completed.where(runs.c.closed_ms <= at_ms))
    done = past.completed | {row["parent_step_id"] for row in children}
    return RunAt(
        run_id=run_id,
        plan_version=past.plan_version,
        plan=versions[past.plan_version],
        tools={name: ToolSpec.model_validate(spec) for name, spec in tools.items()},
        past=past,
        done=frozenset(done.union(events[0]["body"].get("taken_over") or ())),
        given=_read_given(tx, run_id, entries, at_ms),
    )


def _read_given(
    tx: Transaction, run_id: str, entries: Sequence[Mapping[str, Any]], at_ms: int
) -> dict[str, PastOutput]:
    """Return what the steps of a run had given by then: the newest that each has."""
    # What a human or a lookup has settled has no attempt that has succeeded.
    found = [
        (one["settled_ms"] or at_ms, one["step_id"], PastOutput(one["receipt"]))
        for one in entries
        if one["undoes"] is None and one["commit_no"] is not None
    ]
    of_others = rows_of(
        replays, effects.c.receipt, replays.c.step_id, replays.c.replayed_ms, run_id=run_id
    ).join(effects, ours(effects, entry_id=replays.c.entry_id))
    for row in tx.all(of_others.execution_options(sealed="shown")):
        found.append((row["replayed_ms"], row["step_id"], PastOutput(row["receipt"])))
    # Another answer says how the outside system has reported a failure: it has no code.
    codes = {one["step_id"]: (one["answer"] or {}).get("code", "") for one in entries}
    for row in tx.all(rows_of(steps, run_id=run_id).order_by(steps.c.ended_ms, steps.c.attempt)):
        if row["error_class"] == NO:
            no = {"reason": row["error"], "code": codes.get(row["step_id"], "")}
            output = row["output"] or {"no": no}  # of a write: the entry has its answer
            given = PastOutput(output, output["no"]["reason"])
        elif row["state"] == "succeeded":
            given = PastOutput(row["output"])
        else:
            continue
        found.append((row["ended_ms"], row["step_id"], given))
    by_time = sorted(found, key=lambda one: one[0])
    return {step_id: given for ended_ms, step_id, given in by_time if ended_ms <= at_ms}


def find_key_entry(tx: Transaction, tool: str, key: str) -> Entry | None:
    """Return the entry that keeps others from using a business key now: there is one at most."""
    held = rows_of(effects, tool=tool, key=key).where(effects.c.state.in_(REMAINING))
    # Another run's may be gone; its key holds all the same.
    return Entry.find(tx, held.execution_options(sealed="shown"))
