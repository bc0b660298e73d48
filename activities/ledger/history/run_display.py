"""What people are shown of a run, its requests and its doubts by the ledger alone.

No worker has to answer: approvers' pages and ``show`` read it while none does, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Table

from surehand.activities.ledger.approvals.votes import (
    find_requesters,
    find_voters,
    label_vote,
    needs_of,
)
from surehand.activities.ledger.approvals.waiting import leave_sealed, list_readable
from surehand.activities.ledger.core.sealed import Erased
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    approvals,
    decisions,
    effects,
    events,
    interventions,
    plans,
    runs,
    steps,
)
from surehand.activities.ledger.effects import reconcile
from surehand.activities.ledger.effects.epochs import RESTORED
from surehand.activities.ledger.halts import Halt, find_halt, request_clock
from surehand.activities.ledger.history.reads import require_run
from surehand.activities.ledger.people.starts import name_starter
from surehand.activities.ledger.runs.deletion import require_kept
from surehand.activities.ledger.steps.entries import Entry
from surehand.activities.ledger.steps.foreign import foreign_content
from surehand.workflows.contracts import base
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance
from surehand.workflows.contracts.runs import RunResult, RunView, StepView
from surehand.workflows.identity import approval_id as approval_id_of
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import Needs


@dataclass(frozen=True)
class OneApproval:
    """A request, with what else decides whether somebody says yes."""

    row: Mapping[str, Any]
    """Of ``approvals``; what cannot be read here is ``None`` in it."""
    needs: Needs
    run_state: str
    run_open: bool
    """Whether its run is open, as the ledger knows it."""
    started_by: str
    """Who has started the run, empty where that is whom it acts for."""
    excluded: tuple[str, ...]
    """Who has no vote, where four eyes are asked for."""
    foreign: tuple[base.ForeignContent, ...]
    decisions: Sequence[Mapping[str, Any]]
    """What people have said to it, in its order; refused decisions, too."""
    standing: tuple[str, ...]
    """Whose standing approvals have voted."""
    replaces: Mapping[str, Any] | None
    """The request whose params were edited."""
    next_id: str | None
    """The request that asks for the edited params instead, once there is one."""
    precondition_before: str | None
    """What the step's request before this one has kept of the tool's precondition."""
    entries: Sequence[Mapping[str, Any]]
    """What the ledger has under the same key, newest generation first."""
    halt: Halt | None
    """What keeps the call from being made for now."""
    now_ms: int


def read_approval(tx: Transaction, approval_id: str) -> OneApproval | None:
    """Return a request; ``None``: the tenant has none of that id."""
    row = _read_request(tx, approval_id)
    if row is None:
        return None
    run_id, needs = row["run_id"], needs_of(row)
    require_kept(tx, run_id)
    run = tx.read_run(run_id, "state", "closed_ms")
    number = int(approval_id.rpartition("/")[2])
    before = _read_request(tx, approval_id_of(run_id, row["step_id"], number - 1))
    next_id = approval_id_of(run_id, row["step_id"], number + 1)
    replaced = row["state"] == "superseded" and _read_request(tx, next_id) is not None
    said = rows_of(
        decisions, *_OF_DECISIONS, run_id=run_id, approval_id=approval_id, standing_id=None
    )
    same_key = rows_of(effects, *_OF_ENTRIES, tool=row["tool"], key=row["key"])
    return OneApproval(
        row=row,
        needs=needs,
        run_state=run["state"],
        run_open=run["closed_ms"] is None,
        started_by=name_starter(tx, run_id),
        excluded=tuple(sorted(find_requesters(tx, row, needs.requirements))),
        foreign=foreign_content(tx, run_id),
        decisions=list_readable(tx, said.order_by(decisions.c.at_ms).limit(_MOST_OF_ONE)),
        standing=find_voters(tx, approval_id).standing,
        next_id=next_id if replaced else None,
        precondition_before=None if before is None else before["precondition"],
        replaces=before if before is not None and before["state"] == "superseded" else None,
        entries=tx.all(same_key.order_by(effects.c.generation.desc()).limit(_MOST_OF_ONE)),
        halt=find_halt(tx, row["tool"], run_id),
        now_ms=request_clock(tx, row),
    )


def read_progress(tx: Transaction, run_id: str) -> tuple[int, str]:
    """Return how far a run has come: the number of its newest event, and its state."""
    require_kept(tx, run_id)
    row = tx.read_run(run_id, "seq", "state")
    return row["seq"], row["state"]


#: Decisions and entries that are shown of one request, and their columns.
_MOST_OF_ONE: Final = 50
_OF_DECISIONS: Final = (
    *("run_id", "approver", "outcome", "verdict", "message", "reason", "verified", "at_ms"),
    "deputy_for",
)
_OF_ENTRIES: Final = ("entry_id", "run_id", "step_id", "generation", "state", "claimed_ms")


def _read_request(tx: Transaction, approval_id: str) -> dict[str, Any] | None:
    return next(iter(list_readable(tx, rows_of(approvals, approval_id=approval_id))), None)


#: Events that tell how the doubt has come, and what was found out since.
_TELL: Final = ("effect.observed", "effect.in_doubt", "effect.reconciled", "effect.late_receipt")
#: The newest of them that are shown of one entry.
_MOST_OF_ENTRY: Final = 10


@dataclass(frozen=True)
class EntryEvent:
    """What an event has told of an entry."""

    type: str
    at_ms: int
    evidence: str | None
    """``None``: nothing, or it is sealed."""


@dataclass(frozen=True)
class Doubt:
    """An intervention, with what the ledger has about its effect."""

    run_id: str
    """Of the run that settles it."""
    tool: str
    version: str
    params: dict[str, Any] | None
    """``None``: they are secret, or cannot be read here."""
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


def read_doubts(tx: Transaction, run_id: str, ids: Collection[str]) -> dict[str, Doubt]:
    """Return interventions by id, those that a run shows: its own and its child runs'.

    They would be answered through ``run_id``.
    """
    if not ids:
        return {}
    questions = rows_of(interventions, "intervention_id", "run_id", "entry_id", "rule", "state")
    asked = tx.all(questions.where(interventions.c.intervention_id.in_(ids)))
    about = rows_of(effects).where(effects.c.entry_id.in_([row["entry_id"] for row in asked]))
    entries = {row["entry_id"]: row for row in list_readable(tx, about)}
    told = _read_told(tx, entries.values())
    tools = _read_tools(tx, {run_id, *(row["run_id"] for row in entries.values())})
    return {
        row["intervention_id"]: _doubt_of(
            tx, run_id, row, entries[row["entry_id"]], told[row["entry_id"]], tools
        )
        for row in asked
    }


def _doubt_of(
    tx: Transaction,
    run_id: str,
    asked: Mapping[str, Any],
    row: Mapping[str, Any],
    told: list[EntryEvent],
    tools: Mapping[str, Mapping[str, Any]],
) -> Doubt:
    entry = Entry.from_row(row)
    spec = tools[entry.run_id].get(entry.tool, {})
    elsewhere = asked["run_id"] != run_id and reconcile.is_run_open(tx, asked["run_id"])
    outcomes, left = tuple[str, ...](), 0
    if asked["state"] == "open" and not elsewhere:
        way_back = bool(spec.get("compensation"))
        outcomes = reconcile.name_answers(entry, asked["rule"], run_id, lambda _: way_back)
        if not reconcile.is_noted(entry, asked["rule"]):
            left = reconcile.may_arrive_for(tx, entry)
    return Doubt(
        run_id=asked["run_id"],
        tool=entry.tool,
        version=row["tool_version"],
        params=None if spec.get("secret_params") else row["params"],
        key=None if spec.get("secret_params") else entry.key,
        provider_key=entry.provider_key,
        entry_id=entry.entry_id,
        generation=entry.generation,
        state=entry.state,
        calls=row["calls"],
        called_ms=entry.first_call_ms,
        error=row["error"],
        part=entry.receipt if entry.state == "partial" else None,
        told=tuple(told[-_MOST_OF_ENTRY:]),
        outcomes=outcomes,
        later=tuple(one for one in outcomes if left and one in reconcile.RULES_IT_OUT),
        left_ms=left,
    )


def _read_told(
    tx: Transaction, entries: Collection[Mapping[str, Any]]
) -> dict[str, list[EntryEvent]]:
    query = rows_of(events, "run_id", "type", "body", "at_ms")
    of_these = query.where(
        events.c.run_id.in_({one["run_id"] for one in entries}),
        events.c.step_id.in_({one["step_id"] for one in entries}),
        events.c.type.in_(_TELL),
    )
    told: dict[str, list[EntryEvent]] = {one["entry_id"]: [] for one in entries}
    for row in tx.all(leave_sealed(tx, of_these.order_by(events.c.run_id, events.c.seq))):
        body = row["body"]
        if body.get("entry_id") in told:
            said = body.get("evidence")
            evidence = said if isinstance(said, str) and not isinstance(said, Erased) else None
            told[body["entry_id"]].append(EntryEvent(row["type"], row["at_ms"], evidence))
    return told


def _read_tools(tx: Transaction, run_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return the tools of runs as they have recorded them, by name."""
    query = rows_of(plans, "run_id", "tools").where(plans.c.run_id.in_(run_ids))
    tools: dict[str, Mapping[str, Any]] = {run_id: {} for run_id in run_ids}
    for row in tx.all(query.order_by(plans.c.plan_version)):
        tools[row["run_id"]] = row["tools"]
    return tools


#: Events that are shown, the newest; `events RUN` has all.
_MOST_EVENTS: Final = 100
#: In the place of text that this process cannot read.
_UNREAD: Final = "(cannot be read here)"


def read_run_view(tx: Transaction, run_id: str) -> RunView:
    """Return a run's view from the ledger alone: it knows no pauses and no open questions."""
    require_run(tx, run_id)
    [run] = _read_rows(tx, runs, run_id)
    kept = max(_read_rows(tx, plans, run_id), key=itemgetter("plan_version"))
    plan = Plan.model_construct(name=run["plan_name"], steps=())
    if kept["plan"] is not None:
        plan = Plan.model_validate(kept["plan"])
    entries = sorted(_read_rows(tx, effects, run_id), key=itemgetter("claimed_ms"))
    asked = [
        one
        for row in tx.all(rows_of(approvals, "approval_id", run_id=run_id, state="pending"))
        if (one := read_approval(tx, row["approval_id"])) is not None
    ]
    doubts = list_readable(tx, rows_of(interventions, run_id=run_id, state=OPEN))
    waiting = [*map(_wait_for_approval, asked), *map(_wait_for_settling, doubts)]
    ended = run["closed_ms"] is not None
    result = RunResult(
        run_id=run_id,
        state=base.RunState(run["state"]),
        steps=_steps_of(tx, run_id, plan, waiting),
        effects=[Entry.from_row(row).view() for row in entries],
        waiting_for=[] if ended else waiting,
        foreign=foreign_content(tx, run_id),
        error=run["error"],
    )
    newest = rows_of(events, run_id=run_id).order_by(events.c.seq.desc()).limit(_MOST_EVENTS)
    return RunView(
        result=result,
        tenant=run["tenant_id"],
        user=run["user_id"],
        started_by=name_starter(tx, run_id),
        plan=plan,
        plan_version=kept["plan_version"],
        started_at=_time_of(run["opened_ms"]),
        pending=[] if ended else [_request_of(one) for one in asked],
        timeline=tell_events(tx.all(leave_sealed(tx, newest))[::-1]),
    )


def read_open_doubts(tx: Transaction) -> list[base.Waiting]:
    """Return the open interventions of a tenant, newest first, each with its run.

    A process without keys sees them, too: a human has to settle each.
    """
    query = rows_of(interventions, state=OPEN).order_by(interventions.c.opened_ms.desc())
    return [
        _wait_for_settling(row).model_copy(update={"run_id": row["run_id"]})
        for row in list_readable(tx, query)
    ]


def _read_rows(tx: Transaction, table: Table, run_id: str) -> Sequence[Mapping[str, Any]]:
    return list_readable(tx, rows_of(table, run_id=run_id))


def _time_of(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _steps_of(
    tx: Transaction, run_id: str, plan: Plan, waiting: list[base.Waiting]
) -> list[StepView]:
    """Return the plan's steps, and those that the run has added, by their newest attempts."""
    known = {
        step.id: StepView(id=step.id, tool=step.does, state=base.StepState.PENDING)
        for step in plan.steps
    }
    for row in sorted(_read_rows(tx, steps, run_id), key=itemgetter("attempt")):
        known[row["step_id"]] = StepView(
            id=row["step_id"],
            tool=row["tool"],
            state=base.StepState(row["state"]),
            output=row["output"],
            attempts=row["attempt"],
            error=row["error"],
        )
    for item in waiting:
        if item.step_id in known:
            waits = {"state": item.kind.step_state}
            known[item.step_id] = known[item.step_id].model_copy(update=waits)
    return list(known.values())


def _wait_for_approval(one: OneApproval) -> base.Waiting:
    row = one.row
    return base.Waiting(
        kind=base.WaitKind.APPROVAL,
        id=row["approval_id"],
        step_id=row["step_id"],
        params_hash=row["params_hash"],
        question=row["description"] or _UNREAD,
    )


def _wait_for_settling(row: Mapping[str, Any]) -> base.Waiting:
    question = row["question"] or _UNREAD
    return base.Waiting(
        kind=base.WaitKind.INTERVENTION,
        id=row["intervention_id"],
        step_id=row["step_id"],
        question=question,
    )


def _request_of(one: OneApproval) -> ApprovalRequest:
    yes = [
        label_vote(said["approver"], None, said["deputy_for"])
        for said in one.decisions
        if (said["outcome"], said["verdict"]) == ("approve", "accepted")
    ]
    return show_request(
        one.row,
        one.needs,
        params={} if one.row["params"] is None else one.row["params"],
        description=one.row["description"] or _UNREAD,
        votes=(*one.standing, *yes),
        excluded=one.excluded,
        started_by=one.started_by,
        foreign=one.foreign,
    )


def show_request(row: Mapping[str, Any], needs: Needs, **seen: Any) -> ApprovalRequest:
    """Return a request as people see it; ``seen`` is what its row does not say."""
    return ApprovalRequest(
        approval_id=row["approval_id"],
        step_id=row["step_id"],
        tool=row["tool"],
        version=row["tool_version"],
        params_hash=row["params_hash"],
        requested_by=row["user_id"],
        expires_at=_time_of(row["expires_ms"]),
        undo=row["undo"],
        requirements=needs.requirements,
        assurance=Assurance(row["assurance"]),
        editors=tuple(row["editors"]),
        on_expiry=needs.on_expiry,
        remind_every=needs.remind_every,
        key=row["key"],
        **seen,
    )


_DIED: Final = "{tool} was interrupted: nobody knew whether it had happened"
#: What is told of an event, by its type and rule.
_RECOVERY: Final[Mapping[str, Mapping[str, str]]] = {
    "effect.in_doubt": {
        "lease_over": _DIED,
        "stale": _DIED,
        "held_up": "{tool} was held up too long to be called again: nobody knew whether it had"
        " happened",
        "call_ended_without_an_outcome": "{tool} ended without saying whether it had happened",
        "no_to_a_repeat": "{tool} was called again and said no: nobody knew whether the first call"
        " had happened",
        RESTORED: "the ledger was restored, and may have forgotten that {tool} was called",
    },
    "effect.reconciled": {
        "lookup_not_found": "the outside system was asked: {tool} had not happened; it was called"
        " again",
        "dedupes": "{tool} had no recorded outcome; it was called again with the same key, which"
        " its provider recognises",
        "transactional": "{tool} had not happened, because it commits with its outcome; it was"
        " called again",
        "not_called": "{tool} had not been called yet; it was called now",
    },
    "effect.committed": {
        "lookup": "the outside system was asked: {tool} had happened; it was not called again",
    },
}


def read_recovery(tx: Transaction, run_id: str, step_id: str) -> tuple[base.TimelineLine, ...]:
    """Return how unknown outcomes of a step's calls were found out, oldest fact first."""
    told = rows_of(events, run_id=run_id, step_id=step_id).where(events.c.type.in_(_RECOVERY))
    rows = tx.all(leave_sealed(tx, told.order_by(events.c.seq)))
    lines = ((row, _recovery_text(row)) for row in rows)
    return tuple(_line_of(row, text) for row, text in lines if text is not None)


def tell_events(told: Sequence[Mapping[str, Any]]) -> list[base.TimelineLine]:
    """Return one line for each of a run's events."""
    return [_line_of(event, _recovery_text(event) or _plain_text(event)) for event in told]


def _line_of(event: Mapping[str, Any], text: str) -> base.TimelineLine:
    at = _time_of(event["at_ms"])
    return base.TimelineLine(at=at, step_id=event["step_id"], text=text)


def _recovery_text(event: Mapping[str, Any]) -> str | None:
    body = event["body"]
    if event["type"] == "effect.reconciled" and body.get("action") != "call_again":
        return f"{body['tool']} had not happened; it is not called any more"
    text = _RECOVERY.get(event["type"], {}).get(body.get("rule"))
    return None if text is None else text.format(tool=body["tool"])


def _plain_text(event: Mapping[str, Any]) -> str:
    words = str(event["type"]).replace(".", " ").replace("_", " ")
    about = event["body"].get("tool") or event["body"].get("approval_id")
    return f"{words}: {about}" if about else words
