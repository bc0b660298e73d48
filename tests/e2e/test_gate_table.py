"""Guarantee G3 as one table: what the gate makes of every decision in every state of a request.

Each line holds however the decision arrives: as an update or a signal of the SDK. A signal of the
plain Temporal CLI is the same to the server, so it is sent where a decision counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from surehand.workflows.contracts.approvals import ApprovalRequest, Verdict
from surehand.workflows.contracts.base import RunState
from surehand.workflows.identity import approval_id
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, decision_on, refund_plan
from tests.e2e.stage import SHOP_TOOLS, Stage

#: `then` is the request's state after the decision, `calls` how many calls reached the shop in all,
#: `recorded` the event (`decision.accepted`, `decision.refused`); `-` is none.
TABLE: Final = """
request     decision   verdict           then        recorded  calls
early       approve    held              -           -         0
early       reject     held              -           -         0
early       edit       held              -           -         0
early       malformed  malformed         -           refused   0
pending     approve    accepted          approved    accepted  1
pending     reject     accepted          rejected    accepted  0
pending     edit       accepted          superseded  accepted  0
pending     malformed  malformed         pending     refused   0
approved    approve    already_decided   approved    refused   0
approved    reject     already_decided   approved    refused   0
approved    edit       already_decided   approved    refused   0
approved    malformed  malformed         approved    refused   0
consumed    approve    already_decided   approved    refused   1
consumed    reject     already_decided   approved    refused   1
consumed    edit       already_decided   approved    refused   1
consumed    malformed  malformed         approved    refused   1
rejected    approve    already_decided   rejected    refused   0
rejected    reject     already_decided   rejected    refused   0
rejected    edit       already_decided   rejected    refused   0
rejected    malformed  malformed         rejected    refused   0
expired     approve    expired           expired     refused   0
expired     reject     expired           expired     refused   0
expired     edit       expired           expired     refused   0
expired     malformed  malformed         expired     refused   0
superseded  approve    not_waiting       superseded  refused   0
superseded  reject     not_waiting       superseded  refused   0
superseded  edit       not_waiting       superseded  refused   0
superseded  malformed  malformed         superseded  refused   0
void        approve    not_waiting       void        refused   0
void        reject     not_waiting       void        refused   0
void        edit       not_waiting       void        refused   0
void        malformed  malformed         void        refused   0
unknown     approve    unknown_approval  -           refused   0
unknown     reject     unknown_approval  -           refused   0
unknown     edit       unknown_approval  -           refused   0
unknown     malformed  malformed         -           refused   0
"""

UPDATE, SIGNAL, CLI = "update", "signal", "temporal workflow signal"
TRANSPORTS: Final = (UPDATE, SIGNAL, CLI)
DECISIONS: Final = ("approve", "reject", "edit", "malformed")
LESS: Final = "15.00"


class Line(NamedTuple):
    """What becomes of one decision."""

    request: str
    decision: str
    verdict: str
    then: str
    recorded: str
    calls: str


LINES: Final = [Line(*line.split()) for line in TABLE.strip().splitlines()[1:]]


class Asked(NamedTuple):
    """A run, and the request in it that decisions are sent about."""

    run: Run
    request: ApprovalRequest


def plan(order_id: str, **approval: Any) -> Plan:
    """Return a plan with an undoable write, the refund that is asked about, and one more request.

    The shop cannot take the restock back: a run that has to undo it waits for a human, and takes
    decisions for as long as it does.
    """
    document = refund_plan(order_id).model_dump(mode="json")
    order, amount, refund, restock, mail = document["steps"]
    if approval:
        refund["approval"] = approval
    mail["approval"] = {}
    return Plan.model_validate({**document, "steps": [order, amount, restock, refund, mail]})


async def waiting(stage: Stage, **approval: Any) -> Asked:
    """Start a run that waits for the approval of its refund."""
    run = await stage.start(plan(stage.shop.new_order(), **approval))
    return Asked(run, await run.asks("refund"))


async def early(stage: Stage) -> Asked:
    run, request = await waiting(stage)
    later = {"approval_id": approval_id(run.run_id, "mail", 1), "step_id": "mail"}
    return Asked(run, request.model_copy(update=later))


async def pending(stage: Stage) -> Asked:
    return await waiting(stage)


async def approved(stage: Stage) -> Asked:
    run, request = await waiting(stage)
    await run.decide(decision_on(request))
    await run.in_state(RunState.PAUSED_PERMISSION)  # right before the approval would be used
    return Asked(run, request)


async def consumed(stage: Stage) -> Asked:
    run, request = await waiting(stage)
    await run.decide(decision_on(request))
    await run.asks("mail")
    return Asked(run, request)


async def rejected(stage: Stage) -> Asked:
    run, request = await waiting(stage)
    await run.decide(decision_on(request, outcome="reject"))
    await run.in_state(RunState.NEEDS_INTERVENTION)
    return Asked(run, request)


async def expired(stage: Stage) -> Asked:
    run, request = await waiting(stage, expires_in="4s")
    await run.in_state(RunState.NEEDS_INTERVENTION)
    return Asked(run, request)


async def superseded(stage: Stage) -> Asked:
    run, request = await waiting(stage)
    await run.decide(edit_of(request, "bob"))
    await run.asks(but=request)
    return Asked(run, request)


async def void(stage: Stage) -> Asked:
    run, request = await waiting(stage)
    await run.cancel()
    await run.in_state(RunState.NEEDS_INTERVENTION)
    return Asked(run, request)


async def unknown(stage: Stage) -> Asked:
    run, request = await waiting(stage)
    other = approval_id(run.run_id, "refund", 7)
    return Asked(run, request.model_copy(update={"approval_id": other}))


STATES: Final[dict[str, Callable[[Stage], Awaitable[Asked]]]] = {
    "early": early,
    "pending": pending,
    "approved": approved,
    "consumed": consumed,
    "rejected": rejected,
    "expired": expired,
    "superseded": superseded,
    "void": void,
    "unknown": unknown,
}
#: Lines that change what they look at: each is tried with runs of its own.
CHANGES: Final = [line for line in LINES if line.verdict == "accepted"]


def edit_of(request: ApprovalRequest, approver: str, **changes: str) -> Any:
    params = {**request.params, "amount": LESS}
    return decision_on(request, outcome="edit", approver=approver, params=params, **changes)


def payload(request: ApprovalRequest, decision: str, by: str) -> dict[str, Any]:
    """Return a decision as JSON; none equals one that was sent before."""
    if decision == "edit":
        sent = edit_of(request, "carl", reason=f"by {by}")
    else:
        outcome = "approve" if decision == "malformed" else decision
        sent = decision_on(request, outcome=outcome, approver="carl", reason=f"by {by}")
    document: dict[str, Any] = sent.model_dump(mode="json", exclude_none=True)
    return {**document, "outcome": "yes"} if decision == "malformed" else document


async def send(
    stage: Stage, cli: Path, run: Run, by: str, decisions: list[dict[str, Any]]
) -> list[Verdict]:
    """Send decisions and return what became of them, as their sender or everybody can see it."""
    if by == UPDATE:
        return [await run.decide(decision) for decision in decisions]
    before = len((await run.view()).verdicts)
    for decision in decisions:
        if by == SIGNAL:
            await run.send(decision)
        else:
            await signal_by_cli(stage, cli, run, decision)
    view = await run.until(lambda view: len(view.verdicts) == before + len(decisions))
    return view.verdicts[before:]  # judged in the order of their arrival


async def signal_by_cli(stage: Stage, cli: Path, run: Run, decision: dict[str, Any]) -> None:
    server = ["--address", stage.client.service_client.config.target_host]
    told = ["--workflow-id", run.run_id, "--name", "decide", "--input", json.dumps(decision)]
    sending = await asyncio.create_subprocess_exec(
        *(str(cli), "workflow", "signal", *server, *told),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await sending.communicate()
    assert sending.returncode == 0, said


async def found(
    stage: Stage, asked: Asked, request: str, decision: str, verdict: Verdict, before: int
) -> Line:
    rows = {row["approval_id"]: row["state"] for row in stage.approval_rows(asked.run)}
    types = [
        event["type"].removeprefix("decision.")
        for event in await stage.events(asked.run, "decision.accepted", "decision.refused")
        if event["body"]["decision_id"] == verdict.decision_id
    ]
    recorded = " and ".join(types) or "-"
    calls = stage.shop.requests("refunds")["received"] - before
    then = rows.get(asked.request.approval_id, "-")
    return Line(request, decision, verdict.code, then, recorded, str(calls))


def lines_of(state: str) -> list[Line]:
    return [line for line in LINES if line.request == state and line not in CHANGES]


def test_the_table_has_a_line_for_each_decision_in_each_state() -> None:
    assert [(line.request, line.decision) for line in LINES] == [
        (state, decision) for state in STATES for decision in DECISIONS
    ]


@pytest.mark.parametrize("state", STATES)
async def test_idle_decisions_change_nothing(stage: Stage, temporal_cli: Path, state: str) -> None:
    stage.shop.fault("restock_undos", fail="before", status=422)
    tools = "tests.variants.refund_strict" if state == "approved" else SHOP_TOOLS
    before = stage.shop.requests("refunds")["received"]
    async with stage.worker_here(tool_modules=tools):
        asked = await STATES[state](stage)
        for by in (UPDATE, SIGNAL):
            expected = lines_of(state)
            decisions = [payload(asked.request, line.decision, by) for line in expected]
            verdicts = await send(stage, temporal_cli, asked.run, by, decisions)
            seen = [
                await found(stage, asked, state, line.decision, verdict, before)
                for line, verdict in zip(expected, verdicts, strict=True)
            ]
            assert seen == expected, by


@pytest.mark.parametrize("line", CHANGES, ids=lambda line: line.decision)
async def test_the_first_decision_counts(stage: Stage, temporal_cli: Path, line: Line) -> None:
    async with stage.worker_here():
        for by in TRANSPORTS:
            before = stage.shop.requests("refunds")["received"]
            asked = await STATES[line.request](stage)
            decision = payload(asked.request, line.decision, by)
            [verdict] = await send(stage, temporal_cli, asked.run, by, [decision])
            await followed(asked.run, line.decision)
            seen = await found(stage, asked, line.request, line.decision, verdict, before)
            assert seen == line, by


async def followed(run: Run, decision: str) -> None:
    """Wait until the run has done what a decision that counts leads to."""
    match decision:
        case "approve":
            await run.asks("mail")
        case "edit":
            assert (await run.asks("refund")).params["amount"] == LESS
        case "reject":
            assert (await run.result()).state is RunState.FAILED
