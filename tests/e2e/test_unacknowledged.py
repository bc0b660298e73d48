"""A run that stops its calls to look: what they have begun ends, is heard of, and is not lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.runs import Amend
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from surehand.workflows.plan.plan import Plan
from tests.e2e.messages import told
from tests.e2e.plans import mail_step
from tests.e2e.runs import Run, example_plan, states
from tests.e2e.stage import Stage
from tests.e2e.test_durability import restocking
from tests.ledger_databases import migrate

MODES = ["sync", "async", "exit"]
PRICES = {"tool_modules": "tests.variants.prices"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_fails_for_now_while_its_run_is_paused_is_tried_again(
    stage: Stage, order_id: str, mode: str
) -> None:
    asked = stage.shop.requests("refunds")["received"]
    stage.shop.fault("refunds", hold="before", fail="before", status=503, times=1)
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), durability=mode)
        await run.approve()
        await asyncio.to_thread(stage.shop.wait_requests, "refunds", asked + 1)
        await told(run, Verb.PAUSE, PauseRun(actor="olga"))
        stage.shop.clear_faults()
        view = await run.in_state(RunState.PAUSED_USER)
        await told(run, Verb.RESUME, ResumeRun(actor="olga"))
        result = await run.result()

    assert (states(view.result)["refund"], states(view.result)["mail"]) == ("succeeded", "pending")
    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"], counts["mails"]) == (1, 1, 1)


def refund_without(step_id: str, order_id: str) -> Plan:
    """Return the example's plan but for one step."""
    plan = example_plan("refund.yaml", order_id=order_id)
    left = tuple(step for step in plan.steps if step.id != step_id)
    return plan.model_copy(update={"steps": left})


def told_of(order_id: str, price: Path) -> list[dict[str, Any]]:
    """Return steps that read a price, mail it, and restock."""
    restock = {"order_id": order_id, "lines": [{"sku": "sku-1", "quantity": 1}]}
    return [
        {"id": "price", "tool": "prices.lasting", "params": {"file": str(price)}},
        # Of another price it is another mail.
        mail_step(order_id, "price-${price.amount}", id="mail"),
        {"id": "restock", "tool": "inventory.restock", "params": restock},
    ]


async def lost(stage: Stage, order_id: str, price: Path) -> Run:
    """Return a run that has mailed a price, which is another now; its worker died unheard."""
    price.write_text("1050")
    at = f"inventory.restock:{CrashPoint.BEFORE_CLAIM}"
    with stage.worker(crash_at=at, **PRICES) as doomed:
        doomed.wait_ready()
        plan = Plan.model_validate(told_of(order_id, price))
        run = await stage.start(plan, durability="exit")
        doomed.wait_killed()
    price.write_text("1275")
    return run


@pytest.mark.crash
async def test_what_a_paused_run_did_before_its_worker_died_is_not_done_anew_from_newer_reads(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    run = await lost(stage, order_id, tmp_path / "price")
    await run.handle.signal("pause", {"actor": "olga"})
    async with stage.worker_here(**PRICES):
        view = await run.in_state(RunState.PAUSED_USER)
        await told(run, Verb.RESUME, ResumeRun(actor="olga"))
        result = await run.result()

    # All that was done is known while the run is paused, and nothing more is begun.
    assert states(view.result) == {
        "price": "succeeded",
        "mail": "succeeded",
        "restock": "paused_user",
    }
    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["mails"], counts["restocks"]) == (1, 1)


async def test_what_was_done_before_the_ledger_was_away_is_not_done_anew_from_newer_reads(
    stage: Stage, order_id: str, tmp_path: Path
) -> None:
    price, url = tmp_path / "price", f"sqlite:///{tmp_path / 'empty.db'}"
    migrate(url)
    price.write_text("1050")
    stage.shop.fault("restocks", hold="after")
    before = stage.shop.counts()["restocks"]
    async with stage.worker_here(**PRICES), open_ledger(url) as empty:
        plan = Plan.model_validate(told_of(order_id, price))
        run = await stage.start(plan, durability="exit")
        await asyncio.to_thread(stage.shop.wait_effects, "restocks", before + 1)
        kept, stage.ledger.engine = stage.ledger.engine, empty.engine
        stage.shop.clear_faults()
        await run.in_state(RunState.NEEDS_INTERVENTION)
        price.write_text("1275")
        stage.ledger.engine = kept
        result = await run.result()

    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["mails"], counts["restocks"]) == (1, 1)


@pytest.mark.crash
@pytest.mark.parametrize("dropped", ["mail", "restock"])
async def test_a_plan_may_drop_what_was_not_done_before_its_worker_died_and_nothing_else(
    stage: Stage, order_id: str, tmp_path: Path, dropped: str
) -> None:
    run = await lost(stage, order_id, tmp_path / "price")
    left = [one for one in told_of(order_id, tmp_path / "price") if one["id"] != dropped]
    amend = Amend(actor="olga", plan=Plan.model_validate(left), based_on=1)
    await run.handle.signal(Verb.AMEND, amend)
    async with stage.worker_here(**PRICES):
        result = await run.result()
        refused = [one.reason for one in (await run.view()).refused_signals]

    done = dropped == "mail"
    assert [("drops step mail" in reason) for reason in refused] == ([True] if done else [])
    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["mails"], counts["restocks"]) == (1, int(done))


@pytest.mark.parametrize("mode", MODES)
async def test_a_plan_that_drops_the_write_under_way_is_refused_until_it_says_so(
    stage: Stage, order_id: str, mode: str
) -> None:
    new = refund_without("restock", order_id)
    async with stage.worker_here():
        run = await restocking(stage, order_id, mode)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await told(run, Verb.AMEND, Amend(actor="olga", plan=new, based_on=1))
        result = await run.result()

    assert "drops step restock" in str(refused.value.cause)
    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["restocks"], counts["restock_undos"], counts["mails"]) == (1, 0, 1)


async def test_a_plan_is_judged_when_its_run_has_heard_of_the_batch_under_way(
    stage: Stage, order_id: str
) -> None:
    new = refund_without("mail", order_id)
    async with stage.worker_here():
        run = await restocking(stage, order_id, "exit")
        await told(run, Verb.AMEND, Amend(actor="olga", plan=new, based_on=1))
        result = await run.result()

    assert (result.state, stage.shop.counts(order_id)["mails"]) == (RunState.COMPLETED, 0)
    names, ends = dict[int, str](), list[str]()
    async for event in run.handle.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            names[event.event_id] = name
            ends.append(f"{name} begins")
        elif event.HasField("activity_task_completed_event_attributes"):
            begun = event.activity_task_completed_event_attributes.scheduled_event_id
            ends.append(f"{names[begun]} ends")
    last = max(at for at, end in enumerate(ends) if end == "execute_tools ends")
    assert last < ends.index("amend_run begins")


async def test_whoever_sends_something_while_a_plan_waits_to_be_judged_is_heard(
    stage: Stage, order_id: str
) -> None:
    new = refund_without("mail", order_id)
    async with stage.worker_here():
        run = await restocking(stage, order_id, "exit")
        await run.handle.signal(Verb.AMEND, Amend(actor="olga", plan=new, based_on=1))
        await run.cancel()
        assert stage.shop.requests("restocks")["in_flight"] == 1
        result = await run.result()

    assert result.state is RunState.CANCELLED
    counts = stage.shop.counts(order_id)
    assert (counts["restocks"], counts["restock_undos"], counts["mails"]) == (1, 1, 0)
