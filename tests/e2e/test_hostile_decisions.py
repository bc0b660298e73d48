"""Guarantee G3 against whoever can send to a run but may not decide: it goes on as before."""

from __future__ import annotations

import time
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from surehand.client.messages import claims_for, sign
from surehand.workflows.contracts.approvals import Verdict
from surehand.workflows.contracts.states import RunState
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.plan import Plan
from surehand.workflows.steps import approval
from tests.e2e.executions import reset_before
from tests.e2e.runs import Run, decision_on, example_plan, step
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person

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


async def test_no_payload_blocks_the_gate_for_those_who_may_decide(
    stage: Stage, order_id: str
) -> None:
    person(stage, "ann")
    key = key_of(stage, "ann")
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
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

        assert (await run.result()).state is RunState.COMPLETED
        assert stage.shop.counts(order_id)["refunds"] == 1
        assert await failed_tasks(run) == 0


# Before the first request of the two, and long before it.
@pytest.mark.parametrize("activity", ["request_approval", "execute_tools"])
async def test_a_run_that_is_reset_after_an_edit_keeps_the_edit_and_asks_nobody_again(
    stage: Stage, order_id: str, activity: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        first = await run.asks()
        params = {**first.params, "amount": "15.00"}
        await run.decide(decision_on(first, outcome="edit", approver="bob", params=params))
        await run.decide(decision_on(await run.asks(), approver="carl"))
        await run.result()
        again = await reset_before(stage, run, activity, 1)
        result = await again.result()

        assert result.state is RunState.COMPLETED
        assert step(result, "refund").replayed
        assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_request_that_ends_at_once_and_is_asked_again_does_not_fill_the_history(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval, "MOST_UNANSWERED", 3)
    plan = example_plan("refund.yaml", order_id=order_id).model_dump(mode="json")
    plan["defaults"]["approval"] = {"expires_in": "1ms", "on_expiry": "ask_again"}
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(Plan.model_validate({**plan, "steps": plan["steps"][:1]}))
        result = await run.result()

        assert result.state is RunState.FAILED
        assert len(stage.approval_rows(run)) == 3
