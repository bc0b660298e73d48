"""``time_limit``: a step's calls end in time, and none between its claim and its outcome."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import ResumeRun, Way
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, states, step, timeline, until
from tests.e2e.stage import Stage

#: An attempt is made at once, the next one long after the limit.
PATIENT = {"retries_in_doubt": "60s", "retries_dependency_down": "60s", "retries_transient": "60s"}
OVER = "its time limit (1 s) is over"


def plan_for(order_id: str, refund: dict[str, Any]) -> Plan:
    """Return a plan of a refund within a second, and a mail after it."""
    params = {"order_id": order_id, "amount": "120.00", "currency": "EUR"}
    limited = {"id": "refund", "tool": "payments.refund", "params": params, "time_limit": "1s"}
    text = {"kind": "note", "to": "ada@example.com", "subject": "S", "body": "B"}
    mail = {"id": "mail", "tool": "mail.send", "params": {"order_id": order_id} | text}
    return Plan.model_validate({"steps": [limited | refund, mail]})


async def refunding(
    stage: Stage, order_id: str, *, durability: str | None = None, **refund: Any
) -> Run:
    """Start a run that refunds an order, and approve it."""
    run = await stage.start(plan_for(order_id, refund), durability=durability)
    await run.approve()
    return run


def refunds(stage: Stage, order_id: str) -> tuple[int, int]:
    """Return how many refunds of an order were made, and taken back."""
    counted = stage.shop.counts(order_id)
    return counted["refunds"], counted["refund_cancellations"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_call_under_way_at_the_limit_is_finished_and_recorded(
    stage: Stage, order_id: str, durability: str
) -> None:
    stage.shop.fault("refunds", delay_before_s=2.5, times=1)
    async with stage.worker_here(**PATIENT):
        run = await refunding(stage, order_id, durability=durability)
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert step(result, "refund").attempts == 1
    assert refunds(stage, order_id) == (1, 0)
    assert (await stage.effect_states(run))["payments.refund"] == "committed"


@pytest.mark.parametrize(
    ("on_failure", "ends", "mails"),
    [("continue", RunState.COMPLETED, 1), ("compensate", RunState.FAILED, 0)],
)
async def test_what_a_step_may_have_done_when_its_time_is_over_is_undone(
    stage: Stage, order_id: str, on_failure: str, ends: RunState, mails: int
) -> None:
    # Given a refund that is made, while nobody hears of it and would ask for a minute
    stage.shop.fault("refunds", fail="drop_after", times=1)
    async with stage.worker_here(**PATIENT):
        run = await refunding(stage, order_id, on_failure=on_failure)
        result = await run.result()
        view = await run.view()

    assert result.state is ends
    assert OVER in (step(result, "refund").error or "")
    assert "compensated" in timeline(view, "refund")
    assert refunds(stage, order_id) == (1, 1)
    assert stage.shop.counts(order_id)["mails"] == mails
    assert (await stage.effect_states(run))["payments.refund"] == "compensated"


async def test_a_step_that_somebody_tries_again_has_its_time_anew_and_repeats_no_effect(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("refunds", fail="drop_after", times=1)
    async with stage.worker_here(**PATIENT):
        run = await refunding(stage, order_id, on_failure="pause")
        await run.in_state(RunState.PAUSED_FAILURE)
        await run.handle.execute_update(
            "resume", ResumeRun(actor="uma", step="refund", way=Way.RETRY)
        )
        await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert refunds(stage, order_id) == (1, 0)


async def test_a_read_whose_time_is_over_has_failed_and_waits_for_people_are_none_of_it(
    stage: Stage, order_id: str
) -> None:
    # Given a read that would be tried again in a minute, and an approval that comes late
    stage.shop.fault("orders", fail="before", status=503)
    before = stage.shop.requests("orders")["received"]
    reads = {"id": "order", "tool": "orders.read", "params": {"order_id": order_id}}
    limited = reads | {"time_limit": "1s", "on_failure": "continue", "approval": "required"}
    async with stage.worker_here(**PATIENT):
        run = await stage.start(Plan.model_validate([limited]))
        await run.asks()
        late = stage.now() + timedelta(seconds=1.2)
        await until(stage.now, lambda now: now > late)
        await run.approve()
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert (states(result)["order"], step(result, "order").error) == ("failed", OVER)
    assert stage.shop.requests("orders")["received"] == before + 1


async def test_a_run_that_is_cancelled_within_the_limit_ends_its_call_and_undoes_it(
    stage: Stage, order_id: str
) -> None:
    async def made() -> tuple[int, int]:
        return refunds(stage, order_id)

    stage.shop.fault("refunds", hold="after", times=1)
    async with stage.worker_here():
        run = await refunding(stage, order_id, time_limit="1h")
        await until(made, lambda seen: seen == (1, 0))
        await run.cancel()
        stage.shop.clear_faults()
        result = await run.result()

    assert result.state is RunState.CANCELLED
    assert refunds(stage, order_id) == (1, 1)
    assert (await stage.effect_states(run))["payments.refund"] == "compensated"
