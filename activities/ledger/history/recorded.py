"""What a run has recorded, for ``simulate``: its calls with their ends, as seen from an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import tuple_

from surehand.activities.ledger.core.statements import ours, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    effects,
    plans,
    replays,
    runs,
    steps,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.history.rebuilding import NoSuchEvent, past_of
from surehand.activities.ledger.steps.attempts import NO
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.plan.plan import Plan

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
    foreign: bool = False
    """Whether it had read content from outside then."""
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
    foreign_receipt: bool


def recording_of(tx: Transaction, run_id: str, seq: int | None = None) -> Recording:
    """Return what a run has recorded, seen from one of its events; ``None``: from the newest.

    Raises:
        RunNotFound: No such run in this tenant.
        NoSuchEvent: It has no such event.
    """
    events, entries, _ = chain_of(tx, run_id, sealed="opened")
    last = len(events) if seq is None else seq
    if not 1 <= last <= len(events):
        raise NoSuchEvent(f"run {run_id} has events 1 to {len(events)}, none of number {last}")
    versions, rows, replayed = _told_by(tx, run_id)
    known = {number: Plan.model_validate(row["plan"]) for number, row in versions.items()}
    then = events[:last]
    past = past_of(then, known)
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
        done=frozenset(past.completed),
        # What it has taken over, the run that it comes from has recorded.
        calls=tuple(
            _calls(
                *(rows, entries),
                [one for one in replayed if one["by_step"] not in taken_over],
                at_ms,
            )
        ),
        failed=frozenset(past.failed),
        rejected=frozenset(past.rejected),
        undone=frozenset(past.undone),
        replaced=frozenset(past_of(events, known).replaced),
        foreign=bool(past.foreign),
        children=_children(tx, run_id, at_ms),
        source=recording_of(tx, source) if source and taken_over else None,
        taken_over=taken_over,
    )


def _told_by(
    tx: Transaction, run_id: str
) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a run's plans, its attempts, and the effects of others that it has replayed."""
    versions = {row["plan_version"]: row for row in tx.all(rows_of(plans, run_id=run_id))}
    rows = tx.all(rows_of(steps, run_id=run_id).order_by(steps.c.ended_ms, steps.c.attempt))
    by_step = (replays.c.step_id.label("by_step"), replays.c.replayed_ms)
    replayed = tx.all(
        rows_of(replays, effects, *by_step, run_id=run_id)
        .join(effects, ours(effects, entry_id=replays.c.entry_id))
        .execution_options(sealed="shown")
    )
    return versions, rows, replayed


def _calls(
    rows: Sequence[Mapping[str, Any]],
    entries: Sequence[Mapping[str, Any]],
    replayed: Sequence[Mapping[str, Any]],
    at_ms: int,
) -> Iterable[RecordedCall]:
    """Return how calls have ended, oldest first."""
    found: list[tuple[int, RecordedCall]] = []
    # Another answer says how the outside system has reported a failure: it has no code.
    codes = {one["step_id"]: (one["answer"] or {}).get("code", "") for one in entries}
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


def _children(tx: Transaction, run_id: str, at_ms: int) -> dict[str, RecordedChild]:
    """Return the newest completed child of each step that is a plan."""
    query = (
        rows_of(
            runs,
            runs.c.run_id,
            runs.c.parent_step_id,
            runs.c.closed_ms,
            plans.c.plan,
            parent_run_id=run_id,
            state="completed",
        )
        .join(plans, ours(plans, run_id=runs.c.run_id, plan_version=1))
        .order_by(runs.c.closed_ms)
    )
    rows = tx.all(query)
    return {
        row["parent_step_id"]: RecordedChild(
            row["run_id"],
            Plan.model_validate(row["plan"]),
            recording_of(tx, row["run_id"]),
            before=row["closed_ms"] <= at_ms,
        )
        for row in rows
    }


def key_entries(
    tx: Transaction, keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], KeyEntry]:
    """Return the entries that hold business keys now, by tool and key."""
    wanted = list(keys)
    if not wanted:
        return {}
    rows = tx.all(
        rows_of(effects)
        .where(tuple_(effects.c.tool, effects.c.key).in_(wanted), effects.c.state.in_(_HOLDING))
        # Another run's may be gone; its key holds all the same.
        .execution_options(sealed="shown")
    )
    names = KeyEntry.__dataclass_fields__
    return {(r["tool"], r["key"]): KeyEntry(**{name: r[name] for name in names}) for r in rows}
