"""Guarantee G3, at the gate: what a decision may do, and what it may not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.common import RawValue

from surehand.client.messages import claims_for, sign
from surehand.workflows.contracts.approvals import ApprovalRequest, Verdict, VerdictCode
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from surehand.workflows.identity import DEFAULT_TENANT, approval_id, params_hash
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run import questions
from surehand.workflows.run.run_data import LONGEST_SIGNAL_NAME, MOST_REFUSED_SIGNALS
from tests.e2e.interceptors import Failing, Pause
from tests.e2e.messages import event, told
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import Run, decision_on, refund_plan, step, until
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person
from tests.ledger_databases import DATABASES

WRONG_HASH = "sha256:" + "0" * 64


async def waiting_run(stage: Stage, order_id: str) -> tuple[Run, ApprovalRequest]:
    run = await stage.start(refund_plan(order_id))
    return run, await run.asks()


def verdict_codes(view: RunView) -> list[str]:
    return [verdict.code.value for verdict in view.verdicts]


async def refusals(stage: Stage, run: Run) -> list[str]:
    return [event["body"]["reason"] for event in await stage.events(run, "decision.refused")]


async def goes_on_after_the_right_decision(
    stage: Stage, run: Run, request: ApprovalRequest, order_id: str
) -> None:
    """Nothing has changed: the run still waits, and the right decision is taken."""
    assert stage.shop.counts(order_id)["refunds"] == 0
    assert (await run.view()).pending == [request]
    assert (await run.decide(decision_on(request))).code is VerdictCode.ACCEPTED
    await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize("database", DATABASES)
async def test_unstorable_text_does_not_block_the_gate(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run, request = await waiting_run(stage, order_id)
        decision = decision_on(request, params_hash=WRONG_HASH).model_dump(mode="json")
        for field, text in (
            ("approver", "a\x00nn"),
            ("approver", "y" * 5000),
            ("approval_id", "a\x00b"),
            ("approval_id", "x" * 5000),
            ("params_hash", "z" * 5000),
            ("reason", "r\x00" * 5000),
        ):
            await run.send(decision | {field: text})
        await run.until(lambda view: len(view.verdicts) == 6, timeout_s=20)
        assert len(await refusals(stage, run)) == 6
        await goes_on_after_the_right_decision(stage, run, request, order_id)


def early(run: Run, order_id: str, **changes: Any) -> dict[str, Any]:
    """Return the decision of somebody who knows what the run is going to ask."""
    params = {"order_id": order_id, "amount": "120.00", "currency": "EUR", "reason": "returned"}
    return {
        "approval_id": approval_id(run.run_id, "refund", 1),
        "params_hash": params_hash("payments.refund", "1", params),
        "outcome": "approve",
        "approver": "ann",
        **changes,
    }


async def test_a_decision_during_its_request_is_not_early(stage: Stage, order_id: str) -> None:
    asking, failing = Pause("request_approval", done=True), Failing("request_approval")
    client = failing.client(asking.client(stage.client))
    async with stage.worker_here(client=client):
        run = await stage.start(refund_plan(order_id))
        await asking.reached()
        deciding = asyncio.create_task(run.decide(early(run, order_id)))
        await run.history_has("WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        asking.go_on()
        assert (await deciding).code is VerdictCode.ACCEPTED
        await run.completed()
    assert stage.shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize(
    ("outcome", "state"), [("approve", "approved"), ("reject", "rejected"), ("edit", "superseded")]
)
async def test_what_is_decided_before_it_is_asked_is_never_said_to_wait(
    stage: Stage, order_id: str, outcome: str, state: str
) -> None:
    run = await stage.start(refund_plan(order_id))
    less = {"order_id": order_id, "amount": "7.00", "currency": "EUR", "reason": "returned"}
    params = less if outcome == "edit" else None
    await run.send(early(run, order_id, outcome=outcome, params=params))
    async with stage.worker_here():
        if outcome == "edit":
            second = await run.asks()
            assert second.params["amount"] == "7.00"
            await run.decide(decision_on(second))
        await run.result()
        view = await run.view()
    assert stage.approval_rows(run)[0]["state"] == state
    assert verdict_codes(view)[0] == "accepted"
    assert await refusals(stage, run) == []
    waited = [line.text for line in view.timeline if line.text.startswith("waiting for approval")]
    assert len(waited) == (outcome == "edit")


async def test_wrong_signal_names_change_nothing(stage: Stage, order_id: str) -> None:
    run = await stage.start(refund_plan(order_id))
    await run.handle.signal("before-any-worker")
    async with stage.worker_here():
        request = await run.asks()
        for number in range(MOST_REFUSED_SIGNALS):
            await run.handle.signal(f"wrong-{number}", args=[request, {"more": number}])
        await run.handle.signal("x" * 900)
        await run.handle.signal("cancel", "now")
        view = await run.until(lambda view: view.refused_signals[-1].name == "cancel")
        await goes_on_after_the_right_decision(stage, run, request, order_id)
    assert len(view.refused_signals) == MOST_REFUSED_SIGNALS
    assert view.refused_signals[0].name == "wrong-2"
    assert view.refused_signals[-2].name == "x" * LONGEST_SIGNAL_NAME
    assert await refusals(stage, run) == []


# Guarantee G3 against whoever can send to a run but may not decide: it goes on as before.


#: As many levels as the JSON reader of a signal takes, and one too many for that of an activity.
DEEPEST = 198
#: No integer of canonical JSON.
UNSAFE = 2**60


def nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return {"amount": value}


async def failed_tasks(run: Run) -> int:
    """Return how often the run could not be moved on."""
    failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    return sum(
        [1 async for event in run.handle.fetch_history_events() if event.event_type == failed]
    )


async def test_no_payload_blocks_the_gate(stage: Stage, order_id: str) -> None:
    person(stage, "ann")
    key = key_of(stage, "ann")
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        edit = decision_on(request, outcome="edit")
        huge = edit.model_copy(update={"params": {"amount": UNSAFE}})
        claims = claims_for(huge, DEFAULT_TENANT, run.run_id, int(time.time()), edited="sha256:0")

        for name in ("decide", "cancel", "resume", "resolve"):
            await run.handle.signal(name)
            await run.handle.signal(name, args=[None, "and more"])
        assert (await run.decide(None)).code == "malformed"
        assert (await run.handle.execute_update("decide", result_type=Verdict)).code == "malformed"
        await run.send({**edit.model_dump(mode="json"), "params": nested(DEEPEST)})
        await run.send(huge.model_copy(update={"signature": sign(key, claims)}))
        await run.decide(decision_on(request))

        await run.completed()
        assert stage.shop.counts(order_id)["refunds"] == 1
        assert await failed_tasks(run) == 0


async def test_a_request_that_ends_at_once_and_is_asked_again_does_not_fill_the_history(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MOST_UNANSWERED", 3)
    plan = refund_plan(order_id).model_dump(mode="json")
    plan["defaults"]["approval"] = {"expires_in": "1ms", "on_expiry": "ask_again"}
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(Plan.model_validate({**plan, "steps": plan["steps"][:1]}))
        result = await run.result()

        assert result.state is RunState.FAILED
        assert len(stage.approval_rows(run)) == 3


# What is sent before any worker has taken a run up counts like everything else.


async def test_signals_before_any_worker_count_in_order(stage: Stage, order_id: str) -> None:
    wait = {"id": "back", "wait": {"event": "returned", "about": "order-7"}, "after": []}
    run = await stage.start(plan(refund_step(order_id, after=[]), wait))
    await run.handle.signal(Verb.EVENT, event("e1", {"at": 1}))
    await run.handle.signal(Verb.RESUME, ResumeRun(actor="uma"))
    await run.handle.signal(Verb.PAUSE, PauseRun(actor="uma"))
    await run.handle.signal(Verb.CANCEL, {"actor": 7})
    await run.handle.signal(Verb.CANCEL)
    await run.handle.signal(Verb.CANCEL, RawValue(Payload(data=b"{}")))
    await run.handle.signal("stop_it", "now")
    async with stage.worker_here():
        view = await run.in_state(RunState.PAUSED_USER)
        refused = view.refused_signals
        assert [one.name for one in refused] == ["cancel", "cancel", "cancel", "stop_it"]
        assert ["actor" in one.reason for one in refused] == [True, True, False, False]
        assert stage.shop.counts(order_id)["refunds"] == 0
        # Later, too, it is told what cannot be read at all.
        await run.handle.signal(Verb.CANCEL, RawValue(Payload(data=b"{}")))
        await until(run.view, lambda view: len(view.refused_signals) == len(refused) + 1)
        await told(run, Verb.RESUME, ResumeRun(actor="uma"))
        await run.approve()
        result = await run.completed()

    assert step(result, "back").output == {"at": 1}
