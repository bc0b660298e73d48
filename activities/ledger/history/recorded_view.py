"""Where a run stands as the ledger has it: what people are shown while no worker answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Table

from surehand.activities.ledger.approvals.waiting import readable, without_sealed
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    OPEN,
    approvals,
    effects,
    events,
    interventions,
    plans,
    runs,
    steps,
)
from surehand.activities.ledger.effects.epochs import RESTORED
from surehand.activities.ledger.history.one_approval import OneApproval, one_approval
from surehand.activities.ledger.history.reads import require_run
from surehand.activities.ledger.people.starts import marked_starter
from surehand.activities.ledger.retention.hiding import hidden
from surehand.activities.ledger.steps.entries import Entry
from surehand.activities.ledger.steps.foreign import content_of
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance
from surehand.workflows.contracts.base import TimelineLine
from surehand.workflows.contracts.runs import RunResult, RunView, StepView
from surehand.workflows.contracts.states import RunState, StepState, Waiting
from surehand.workflows.plan.plan import Plan

#: Events that are shown, the newest; `events RUN` has all.
_MOST_EVENTS: Final = 100
#: What a step's state is while it waits so.
_WAITS: Final = {
    "approval": StepState.WAITING_APPROVAL,
    "intervention": StepState.NEEDS_INTERVENTION,
}
#: In the place of text that this process cannot read.
_UNREAD: Final = "(cannot be read here)"


def recorded_view(tx: Transaction, run_id: str) -> RunView:
    """Return a run's view from the ledger alone: it knows no pauses and no open questions.

    Raises:
        RunNotFound: No such run in this tenant, or it is hidden.
    """
    require_run(tx, run_id)
    run = without_sealed(_rows(tx, runs, run_id)[0])
    kept = max(_rows(tx, plans, run_id), key=lambda row: int(row["plan_version"]))
    read = without_sealed(kept)["plan"]
    plan = (
        Plan.model_construct(name=run["plan_name"], steps=())
        if read is None
        else Plan.model_validate(read)
    )
    entries = sorted(_rows(tx, effects, run_id), key=lambda row: int(row["claimed_ms"]))
    asked = [
        one
        for row in tx.all(
            rows_of(approvals, approvals.c.approval_id, run_id=run_id, state="pending")
        )
        if (one := one_approval(tx, row["approval_id"])) is not None
    ]
    doubts = tx.all(readable(tx, rows_of(interventions, run_id=run_id, state=OPEN)))
    waiting = [_approval(one) for one in asked] + [_doubt(without_sealed(row)) for row in doubts]
    ended = run["closed_ms"] is not None
    result = RunResult(
        run_id=run_id,
        state=RunState(run["state"]),
        steps=_steps(tx, run_id, plan, waiting),
        effects=[Entry.from_row(without_sealed(row)).view() for row in entries],
        waiting_for=[] if ended else waiting,
        foreign=content_of(tx, run_id),
        error=run["error"],
    )
    newest = rows_of(events, run_id=run_id).order_by(events.c.seq.desc()).limit(_MOST_EVENTS)
    return RunView(
        result=result,
        tenant=run["tenant_id"],
        user=run["user_id"],
        started_by=marked_starter(tx, run_id),
        plan=plan,
        plan_version=kept["plan_version"],
        started_at=_time(run["opened_ms"]),
        pending=[] if ended else [_request(one) for one in asked],
        timeline=story_of(tx.all(readable(tx, newest))[::-1]),
    )


def open_doubts(tx: Transaction) -> list[Waiting]:
    """Return the open interventions of a tenant, newest first, each with its run.

    A process without keys sees them, too: a human has to settle each.
    """
    query = rows_of(interventions, state=OPEN).order_by(interventions.c.opened_ms.desc())
    return [
        _doubt(without_sealed(row)).model_copy(update={"run_id": row["run_id"]})
        for row in tx.all(readable(tx, query))
    ]


def _rows(tx: Transaction, table: Table, run_id: str) -> Sequence[Mapping[str, Any]]:
    return tx.all(readable(tx, rows_of(table, run_id=run_id)))


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _steps(tx: Transaction, run_id: str, plan: Plan, waiting: list[Waiting]) -> list[StepView]:
    """Return the plan's steps, and those that the run has added, by their newest attempts."""
    known = {
        step.id: StepView(id=step.id, tool=step.does, state=StepState.PENDING)
        for step in plan.steps
    }
    no_outputs = hidden(tx, run_id, "outputs") is not None
    for row in sorted(
        map(without_sealed, _rows(tx, steps, run_id)), key=lambda row: row["attempt"]
    ):
        known[row["step_id"]] = StepView(
            id=row["step_id"],
            tool=row["tool"],
            state=StepState(row["state"]),
            output=None if no_outputs else row["output"],
            attempts=row["attempt"],
            error=row["error"],
        )
    for item in waiting:
        if item.step_id in known:
            state = _WAITS[item.kind]
            known[item.step_id] = known[item.step_id].model_copy(update={"state": state})
    return list(known.values())


def _approval(one: OneApproval) -> Waiting:
    row = one.row
    return Waiting(
        kind="approval",
        id=row["approval_id"],
        step_id=row["step_id"],
        params_hash=row["params_hash"],
        question=row["description"] or _UNREAD,
    )


def _doubt(row: Mapping[str, Any]) -> Waiting:
    question = row["question"] or _UNREAD
    return Waiting(
        kind="intervention", id=row["intervention_id"], step_id=row["step_id"], question=question
    )


def _request(one: OneApproval) -> ApprovalRequest:
    row, needs = one.row, one.needs
    yes = [
        said["approver"]
        for said in one.decisions
        if (said["outcome"], said["verdict"]) == ("approve", "accepted")
    ]
    return ApprovalRequest(
        approval_id=row["approval_id"],
        step_id=row["step_id"],
        tool=row["tool"],
        version=row["tool_version"],
        params={} if row["params"] is None else row["params"],
        params_hash=row["params_hash"],
        description=row["description"] or _UNREAD,
        requested_by=row["user_id"],
        expires_at=_time(row["expires_ms"]),
        undo=row["undo"],
        requirements=needs.requirements,
        assurance=Assurance(row["assurance"]),
        editors=tuple(row["editors"]),
        on_expiry=needs.on_expiry,
        remind_every=needs.remind_every,
        votes=(*one.standing, *yes),
        excluded=one.excluded,
        key=row["key"],
        started_by=one.started_by,
        foreign=one.foreign,
    )


_DIED: Final = "the worker died during {tool}, or was cut off: nobody knew whether it had happened"
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


def recovery_of(tx: Transaction, run_id: str, step_id: str) -> tuple[TimelineLine, ...]:
    """Return how unknown outcomes of a step's calls were found out, oldest fact first."""
    told = rows_of(events, run_id=run_id, step_id=step_id).where(events.c.type.in_(_RECOVERY))
    rows = tx.all(readable(tx, told.order_by(events.c.seq)))
    lines = ((row, _recovery_text(row)) for row in rows)
    return tuple(_line(row, text) for row, text in lines if text is not None)


def story_of(told: Sequence[Mapping[str, Any]]) -> list[TimelineLine]:
    """Return one line for each of a run's events."""
    return [_line(event, _recovery_text(event) or _plain_text(event)) for event in told]


def _line(event: Mapping[str, Any], text: str) -> TimelineLine:
    at = datetime.fromtimestamp(event["at_ms"] / 1000, UTC)
    return TimelineLine(at=at, step_id=event["step_id"], text=text)


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
