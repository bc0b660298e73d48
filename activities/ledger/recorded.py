"""What a run has recorded, for ``simulate``: its calls with their ends, as seen from an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import select, tuple_

from activities.ledger.reads import chain_of
from activities.ledger.rebuilding import NoSuchEvent, rebuilt
from activities.ledger.steps import NO
from activities.ledger.store import Ledger
from activities.ledger.tables import effects, plans, replays, runs, steps
from workflows.contracts import InterruptKind, ToolSpec
from workflows.identity import digest
from workflows.plan import Plan

#: The answer to a static interrupt that leaves the output as it is.
_ACCEPTED: Final = digest("accept")
#: Failures after which the step's call is made again, or that are none.
_NO_FAILURES: Final = frozenset({NO, "asked", "refused"})
#: Entries of another run or step keep their key from being used.
_HOLDING: Final = ("claimed", "committed", "in_doubt", "partial", "compensating")


@dataclass(frozen=True)
class RecordedCall:
    """One attempt of a step that has ended, or a question with its answer."""

    step_id: str
    tool: str
    """``ask`` and ``wait`` for a question and an event."""
    params: Any
    end: Literal["succeeded", "no", "failed"]
    output: Any = None
    """Of a no: ``{"no": {"reason", "code"}}``."""
    error: str | None = None
    before: bool = False
    """Whether it had ended by the event."""


@dataclass(frozen=True)
class RecordedChild:
    """A child run that has completed."""

    run_id: str
    plan: Plan
    """As it was started, with its input."""
    recording: Recording
    """As of its end: its facts are its parent's output."""
    before: bool = False


@dataclass(frozen=True)
class Recording:
    """A run as its ledger tells it, seen from one of its events."""

    run_id: str
    seq: int
    plan_version: int
    plan: Plan
    """Of that moment."""
    tools: Mapping[str, ToolSpec]
    """As recorded with the plan."""
    done: frozenset[str]
    """Steps that were done then."""
    calls: tuple[RecordedCall, ...] = ()
    """Oldest first; also those after the event."""
    failed: frozenset[str] = frozenset()
    """Steps that had failed for good then."""
    rejected: frozenset[str] = frozenset()
    """Steps whose call somebody had rejected."""
    undone: frozenset[str] = frozenset()
    """Steps whose effect had been undone then."""
    replaced: frozenset[str] = frozenset()
    """Steps whose output a human has looked at and not accepted; what they gave is not recorded."""
    children: Mapping[str, RecordedChild] = field(default_factory=dict)
    """By step."""
    source: Recording | None = None
    """The run that this one begins from, as of its end."""
    taken_over: frozenset[str] = frozenset()
    """Steps whose outputs come from there."""


@dataclass(frozen=True)
class KeyEntry:
    """The newest entry of a business key, while it keeps others from using the key."""

    tool: str
    key: str
    state: str
    run_id: str
    step_id: str
    identity_hash: str
    receipt: Any


async def recording_of(
    ledger: Ledger, tenant: str, run_id: str, seq: int | None = None
) -> Recording:
    """Return what a run has recorded, seen from one of its events; ``None``: from the newest.

    Raises:
        RunNotFound: No such run in this tenant.
        NoSuchEvent: It has no such event.
    """
    events, entries, _ = await chain_of(ledger, tenant, run_id)
    last = len(events) if seq is None else seq
    if not 1 <= last <= len(events):
        raise NoSuchEvent(f"run {run_id} has events 1 to {len(events)}, none of number {last}")
    async with ledger.transaction(tenant) as tx:
        [run] = await tx.all(
            select(runs).where(runs.c.tenant_id == tenant, runs.c.run_id == run_id)
        )
        versions = {
            row["plan_version"]: row
            for row in await tx.all(
                select(plans).where(plans.c.tenant_id == tenant, plans.c.run_id == run_id)
            )
        }
        rows = await tx.all(
            select(steps)
            .where(steps.c.tenant_id == tenant, steps.c.run_id == run_id)
            .order_by(steps.c.ended_ms, steps.c.attempt)
        )
        replayed = await tx.all(
            select(effects, replays.c.step_id.label("by_step"), replays.c.replayed_ms)
            .join(
                replays,
                (replays.c.tenant_id == effects.c.tenant_id)
                & (replays.c.entry_id == effects.c.entry_id),
            )
            .where(replays.c.tenant_id == tenant, replays.c.run_id == run_id)
        )
    known = {number: Plan.model_validate(row["plan"]) for number, row in versions.items()}
    then = events[:last]
    past = rebuilt(then, run, known, {str(one["entry_id"]): str(one["key"]) for one in entries})
    at_ms = then[-1]["at_ms"]
    plan, opened = known[past.plan_version], events[0]["body"]
    source, taken_over = opened.get("linked"), frozenset(opened.get("taken_over") or ())
    return Recording(
        run_id=run_id,
        seq=last,
        plan_version=past.plan_version,
        plan=plan,
        tools={
            name: ToolSpec.model_validate(spec)
            for name, spec in versions[past.plan_version]["tools"].items()
        },
        done=frozenset(past.completed_steps),
        calls=tuple(_calls(rows, entries, replayed, at_ms)),
        failed=_failed(then, plan),
        rejected=_rejected(then),
        undone=_undone(then, entries),
        replaced=_replaced(events),
        children=await _children(ledger, tenant, run_id, at_ms),
        source=await recording_of(ledger, tenant, source) if source and taken_over else None,
        taken_over=taken_over,
    )


def _calls(
    rows: Sequence[Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    replayed: Sequence[Mapping[str, Any]],
    at_ms: int,
) -> Iterable[RecordedCall]:
    """Return how calls have ended, oldest first."""
    found: list[tuple[int, RecordedCall]] = []
    codes = {one["step_id"]: one["answer"]["code"] for one in entries if one["answer"]}
    for row in rows:
        if row["state"] not in ("succeeded", "failed"):
            continue
        no, output = row["error_class"] == NO, row["output"]
        if no and output is None:  # of a write: the entry has its answer
            output = {"no": {"reason": row["error"], "code": codes.get(row["step_id"], "")}}
        end: Any = "no" if no else row["state"]
        call = RecordedCall(
            *(row["step_id"], row["tool"], row["input"], end, output, row["error"]),
            before=row["ended_ms"] <= at_ms,
        )
        found.append((row["ended_ms"], call))
    for entry, step_id, ms in (
        # What a human or a lookup has settled has no attempt that has succeeded.
        *((one, one["step_id"], one["settled_ms"]) for one in entries if one["undoes"] is None),
        *((one, one["by_step"], one["replayed_ms"]) for one in replayed),
    ):
        if entry["commit_no"] is not None:
            ms = ms or at_ms
            params, receipt = entry["params"], entry["receipt"]
            call = RecordedCall(
                *(step_id, entry["tool"], params, "succeeded", receipt), before=ms <= at_ms
            )
            found.append((ms, call))
    return [call for _, call in sorted(found, key=lambda one: one[0])]


def _failed(events: Sequence[Mapping[str, Any]], plan: Plan) -> frozenset[str]:
    failed: set[str] = set()
    for event in events:
        body, step_id = event["body"], str(event["step_id"])
        if event["type"] not in ("step.failed", "effect.failed"):
            continue
        final = body.get("retry_ms") is None and body.get("failure_class") not in _NO_FAILURES
        instead = next((one.fallback for one in plan.steps if one.id == step_id), None)
        if final and body.get("action") is None and (not instead or body["tool"] == instead.tool):
            failed.add(step_id)
    return frozenset(failed)


def _rejected(events: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    newest = {
        str(event["step_id"]): event["type"]
        for event in events
        if event["type"].startswith("approval.")
    }
    return frozenset(step for step, type_ in newest.items() if type_ == "approval.rejected")


def _undone(
    events: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
) -> frozenset[str]:
    gone = {e["body"]["entry_id"] for e in events if e["type"] == "effect.compensated"}
    return frozenset(str(one["step_id"]) for one in entries if one["entry_id"] in gone)


def _replaced(events: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(
        str(event["step_id"])
        for event in events
        if event["type"] == "interrupt.answered"
        and event["body"]["kind"] == InterruptKind.AFTER
        and event["body"]["answer"] != _ACCEPTED
    )


async def _children(
    ledger: Ledger, tenant: str, run_id: str, at_ms: int
) -> dict[str, RecordedChild]:
    """Return the newest completed child of each step that is a plan."""
    async with ledger.transaction(tenant) as tx:
        rows = await tx.all(
            select(runs.c.run_id, runs.c.parent_step_id, runs.c.closed_ms, plans.c.plan)
            .join(
                plans, (plans.c.tenant_id == runs.c.tenant_id) & (plans.c.run_id == runs.c.run_id)
            )
            .where(
                runs.c.tenant_id == tenant,
                runs.c.parent_run_id == run_id,
                runs.c.state == "completed",
                plans.c.plan_version == 1,
            )
            .order_by(runs.c.closed_ms)
        )
    return {
        row["parent_step_id"]: RecordedChild(
            row["run_id"],
            Plan.model_validate(row["plan"]),
            await recording_of(ledger, tenant, row["run_id"]),
            before=row["closed_ms"] <= at_ms,
        )
        for row in rows
    }


async def key_entries(
    ledger: Ledger, tenant: str, keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], KeyEntry]:
    """Return the entries that hold business keys now, by tool and key."""
    wanted = list(keys)
    if not wanted:
        return {}
    async with ledger.transaction(tenant) as tx:
        rows = await tx.all(
            select(effects).where(
                effects.c.tenant_id == tenant,
                tuple_(effects.c.tool, effects.c.key).in_(wanted),
                effects.c.state.in_(_HOLDING),
            )
        )
    names = KeyEntry.__dataclass_fields__
    return {(r["tool"], r["key"]): KeyEntry(**{name: r[name] for name in names}) for r in rows}
