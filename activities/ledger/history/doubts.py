"""What the ledger knows of effects in doubt, for whoever has to say what has happened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from surehand.activities.ledger.approvals.waiting import readable, without_sealed
from surehand.activities.ledger.core.sealed import Erased
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, events, interventions, plans
from surehand.activities.ledger.effects.resolve import (
    RULES_IT_OUT,
    answers_to,
    is_noted,
    is_open,
    may_arrive_for,
)
from surehand.activities.ledger.steps.entries import Entry

#: Events that tell how the doubt has come, and what was found out since.
_TELL: Final = ("effect.observed", "effect.in_doubt", "effect.reconciled", "effect.late_receipt")
#: The newest of them that are shown of one entry.
_MOST: Final = 10


@dataclass(frozen=True)
class EntryEvent:
    """What an event has told of an entry."""

    type: str
    at_ms: int
    rule: str | None
    evidence: str | None
    """``None``: nothing, or it is sealed."""
    action: str | None


@dataclass(frozen=True)
class Doubt:
    """An intervention, with what the ledger has about its effect."""

    run_id: str
    """Of the run that settles it."""
    tool: str
    key: str | None
    """``None``: the tool's params are secret, and keys are made of params."""
    provider_key: str
    """Under which the outside system may know the call."""
    entry_id: str
    generation: int
    state: str
    calls: int
    called_ms: int | None
    """When it was called first, as far as that is recorded."""
    error: str | None
    """What the newest call has failed with."""
    part: Any
    """What is recorded of an effect that happened in part; ``None``: nothing, or it is sealed."""
    told: tuple[EntryEvent, ...]
    """Events of the entry, oldest first."""
    outcomes: tuple[str, ...]
    """The answers that may be given; none: it is settled, or its own run settles it."""
    later: tuple[str, ...]
    """Those of them that are refused until no call may arrive any more."""
    left_ms: int
    """How long that is."""


def doubts(tx: Transaction, run_id: str, ids: Collection[str]) -> dict[str, Doubt]:
    """Return interventions by id, those that a run shows: its own and its child runs'.

    Args:
        run_id: The run through which they would be answered.
    """
    if not ids:
        return {}
    asked = tx.all(
        rows_of(
            interventions,
            interventions.c.intervention_id,
            interventions.c.run_id,
            interventions.c.entry_id,
            interventions.c.rule,
            interventions.c.state,
        ).where(interventions.c.intervention_id.in_(ids))
    )
    wanted = [row["entry_id"] for row in asked]
    found = tx.all(readable(tx, rows_of(effects).where(effects.c.entry_id.in_(wanted))))
    entries = {row["entry_id"]: without_sealed(row) for row in found}
    told = _told(tx, entries.values())
    tools = _tools(tx, {run_id, *(row["run_id"] for row in entries.values())})
    return {
        row["intervention_id"]: _doubt(
            tx, run_id, row, entries[row["entry_id"]], told[row["entry_id"]], tools
        )
        for row in asked
    }


def _doubt(
    tx: Transaction,
    run_id: str,
    asked: Mapping[str, Any],
    row: Mapping[str, Any],
    told: list[EntryEvent],
    tools: Mapping[str, Mapping[str, Any]],
) -> Doubt:
    entry = Entry.from_row(row)
    spec = tools[entry.run_id].get(entry.tool, {})
    elsewhere = asked["run_id"] != run_id and is_open(tx, asked["run_id"])
    outcomes, left = list[str](), 0
    if asked["state"] == "open" and not elsewhere:
        way_back = bool(spec.get("compensation"))
        answers = answers_to(entry, asked["rule"], run_id, lambda _: way_back)
        outcomes = [one.value for one in answers]
        left = 0 if is_noted(entry, asked["rule"]) else may_arrive_for(tx, entry)
    return Doubt(
        run_id=asked["run_id"],
        tool=entry.tool,
        key=None if spec.get("secret_params") else entry.key,
        provider_key=entry.provider_key,
        entry_id=entry.entry_id,
        generation=entry.generation,
        state=entry.state,
        calls=row["calls"],
        called_ms=entry.first_call_ms,
        error=row["error"],
        part=entry.receipt if entry.state == "partial" else None,
        told=tuple(told[-_MOST:]),
        outcomes=tuple(outcomes),
        later=tuple(one for one in outcomes if left and one in RULES_IT_OUT),
        left_ms=left,
    )


def _told(tx: Transaction, entries: Collection[Mapping[str, Any]]) -> dict[str, list[EntryEvent]]:
    """Return what the events of their runs tell of entries."""
    query = rows_of(events, events.c.run_id, events.c.type, events.c.body, events.c.at_ms)
    of_these = query.where(
        events.c.run_id.in_({one["run_id"] for one in entries}),
        events.c.step_id.in_({one["step_id"] for one in entries}),
        events.c.type.in_(_TELL),
    )
    told: dict[str, list[EntryEvent]] = {one["entry_id"]: [] for one in entries}
    for row in tx.all(readable(tx, of_these.order_by(events.c.run_id, events.c.seq))):
        body = row["body"]
        if body.get("entry_id") in told:
            said = body.get("evidence")
            evidence = said if isinstance(said, str) and not isinstance(said, Erased) else None
            one = EntryEvent(
                row["type"], row["at_ms"], body.get("rule"), evidence, body.get("action")
            )
            told[body["entry_id"]].append(one)
    return told


def _tools(tx: Transaction, run_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return the tools of runs as they have recorded them, by name."""
    query = rows_of(plans, plans.c.run_id, plans.c.tools).where(plans.c.run_id.in_(run_ids))
    tools: dict[str, Mapping[str, Any]] = {run_id: {} for run_id in run_ids}
    for row in tx.all(query.order_by(plans.c.plan_version)):
        tools[row["run_id"]] = row["tools"]
    return tools
