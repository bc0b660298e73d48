"""A run that stops its calls to look: what they have begun ends, is heard of, and is not lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from surehand.activities.ledger.core.migrate import migrate
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Amend
from surehand.workflows.contracts.steering import AnswerInterrupts, PauseRun, ResumeRun, Verb
from surehand.workflows.plan.plan import Plan
from tests.e2e.line import Line
from tests.e2e.messages import told
from tests.e2e.plans import mail_step
from tests.e2e.runs import Run, refund_plan, states, until
from tests.e2e.stage import Stage
from tests.e2e.test_pause import restocking
from tests.worker_process import WorkerProcess

MODES = ["sync", "async", "exit"]
PRICES = {"tool_modules": "tests.variants.prices"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_paused_runs_failed_call_is_retried(stage: Stage, order_id: str, mode: str) -> None:
    asked = stage.shop.requests("refunds")["received"]
    stage.shop.fault("refunds", hold="before", fail="before", status=503, times=1)
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id), durability=mode)
        await run.approve()
        await asyncio.to_thread(stage.shop.wait_requests, "refunds", asked + 1)
        await told(run, Verb.PAUSE, PauseRun(actor="olga"))
        stage.shop.clear_faults()
        view = await run.in_state(RunState.PAUSED_USER)
        await told(run, Verb.RESUME, ResumeRun(actor="olga"))
        result = await run.result()

    assert (states(view.result)["refund"], states(view.result)["mail"]) == ("succeeded", "pending")
    assert result.state is RunState.COMPLETED
    assert stage.made(order_id) == (1, 1, 1)


def refund_without(step_id: str, order_id: str) -> Plan:
    """Return the example's plan but for one step."""
    plan = refund_plan(order_id)
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
    with stage.ready_worker(crash_at=at, **PRICES) as doomed:
        plan = Plan.model_validate(told_of(order_id, price))
        run = await stage.start(plan, durability="exit")
        doomed.wait_killed()
    price.write_text("1275")
    return run


async def test_a_lost_ledger_repeats_no_reads(stage: Stage, order_id: str, tmp_path: Path) -> None:
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
        await run.completed()

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
async def test_no_plan_drops_the_write_under_way(stage: Stage, order_id: str, mode: str) -> None:
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


async def test_a_plan_waits_for_the_batch_under_way(stage: Stage, order_id: str) -> None:
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


async def test_messages_are_heard_while_a_plan_waits(stage: Stage, order_id: str) -> None:
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


# What a run did before its worker was lost, and a control that meets its second life.


TOOLS = {"tool_modules": "tests.variants.gates"}

#: What a worker says that is too late with a read.
LATE = "has taken this read over"
ASK: dict[str, Any] = {"id": "sure", "ask": "?"}


def mail(order_id: str, kind: str, step_id: str = "mail") -> dict[str, Any]:
    return mail_step(order_id, kind, id=step_id)


def restock(order_id: str, quantity: int = 1) -> dict[str, Any]:
    params = {"order_id": order_id, "lines": [{"sku": "sku-1", "quantity": quantity}]}
    return {"id": "restock", "tool": "inventory.restock", "params": params}


async def exists(file: Path) -> None:
    async def look() -> bool:
        return file.exists()

    await until(look, bool)


async def killed(stage: Stage, mode: str, at: str, *steps: dict[str, Any], **more: Any) -> Run:
    """Return a run whose worker has died, after its question (if it has one) was answered."""
    with stage.ready_worker(crash_at=at, **TOOLS) as doomed:
        run = await stage.start(Plan.model_validate(list(steps)), durability=mode, **more)
        if any("ask" in step for step in steps):
            await run.in_state(RunState.WAITING_INPUT)
            await run.handle.signal(Verb.ANSWER, AnswerInterrupts(actor="bob", answer="y"))
        doomed.wait_killed()
    return run


@pytest.mark.crash
@pytest.mark.parametrize("mode", MODES)
async def test_a_paused_run_finishes_what_it_did_before_it_reads_anew(
    stage: Stage, order_id: str, tmp_path: Path, mode: str
) -> None:
    price = tmp_path / "price"
    price.write_text("1050")
    read = {"id": "price", "tool": "prices.read", "params": {"file": str(price)}}
    last = {"id": "end", "ask": "Done?"}
    steps = [read, ASK, mail(order_id, "price-${price.amount}"), last]
    run = await killed(stage, mode, "mail.send:after_outcome", *steps)
    price.write_text("1275")
    await run.handle.signal(Verb.PAUSE, PauseRun(actor="olga"))
    async with stage.worker_here(**TOOLS):
        view = await run.in_state(RunState.PAUSED_USER)
        await told(run, Verb.RESUME, ResumeRun(actor="olga"))
        await run.in_state(RunState.WAITING_INPUT)
        await told(run, Verb.ANSWER, AnswerInterrupts(actor="bob", answer="y"))
        result = await run.result()

    assert states(view.result)["mail"] == "succeeded"
    assert (result.state, stage.shop.counts(order_id)["mails"]) == (RunState.COMPLETED, 1)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("change", "mode"),
    [("another mail", "sync"), ("other lines", "async"), ("another order", "exit")],
)
async def test_what_a_run_did_is_a_fact_of_its_new_plan_whatever_that_says(
    stage: Stage, order_id: str, mode: str, change: str
) -> None:
    other = stage.shop.new_order()
    old, new = {
        "another mail": (mail(order_id, "one"), mail(order_id, "two")),
        "other lines": (restock(order_id), restock(order_id, quantity=2)),
        "another order": (restock(order_id), restock(other)),
    }[change]
    run = await killed(stage, mode, f"{old['tool']}:after_outcome", ASK, old)
    amend = Amend(actor="olga", plan=Plan.model_validate([ASK, new]), based_on=1)
    await run.handle.signal(Verb.AMEND, amend)
    result = await stage.finish(run, **TOOLS)

    assert result.state is RunState.COMPLETED
    made = [stage.shop.counts(one) for one in (order_id, other)]
    assert sum(counts["mails"] + counts["restocks"] for counts in made) == 1


@pytest.mark.crash
async def test_a_plan_waits_for_all_that_a_batch_has_done(stage: Stage, order_id: str) -> None:
    # Given so many steps of the new plan that the run continues as new meanwhile
    m0, m1 = mail(order_id, "k0", "m0"), mail(order_id, "k1", "m1")
    steps = [m0, m1, restock(order_id), mail(order_id, "k2", "m2")]
    at = "inventory.restock:during_call"
    run = await killed(stage, "exit", at, *steps, continue_after=60)
    read = {"tool": "orders.read", "params": {"order_id": order_id}, "when": "1 == 1"}
    reads = [{**read, "id": f"r{n}"} for n in range(12)]
    plan = Plan.model_validate([m0, restock(order_id), *reads])
    amend = Amend(actor="olga", plan=plan, based_on=1, drops=("m1",))
    await run.handle.signal(Verb.AMEND, amend)
    result = await stage.finish(run, **TOOLS)

    assert result.state is RunState.COMPLETED
    counts = stage.shop.counts(order_id)
    assert (counts["mails"], counts["restocks"]) == (2, 1)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("mode", "how"), [("sync", "keep"), ("async", "cleanup"), ("exit", "keep")]
)
async def test_cancelled_runs_show_it_all(stage: Stage, order_id: str, mode: str, how: str) -> None:
    steps = [mail(order_id, "k0", "m0"), mail(order_id, "k1", "m1"), restock(order_id)]
    run = await killed(stage, mode, "inventory.restock:after_outcome", *steps)
    await run.handle.signal(Verb.CANCEL, {"actor": "oscar", "mode": how})
    result = await stage.finish(run, **TOOLS)

    assert result.state is RunState.CANCELLED
    done = states(result)
    assert (done["m0"], done["m1"]) == ("succeeded", "succeeded")
    assert done["restock"] != "skipped"
    assert {one.step_id for one in result.uncompensated} == {"m0", "m1", "restock"}
    assert all(one.reason for one in result.uncompensated)


async def test_a_deaf_worker_begins_no_step(stage: Stage, order_id: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    reads = {"id": "gate", "tool": "gates.read", "params": {"file": str(gate)}}
    steps = [mail(order_id, "k"), reads, restock(order_id)]
    async with Line.to(stage.client.service_client.config.target_host) as line:
        environment = stage.environment(**TOOLS) | {"TEMPORAL_ADDRESS": line.address}
        with WorkerProcess(environment, stage.folder) as lonely:
            await asyncio.to_thread(lonely.wait_ready)
            run = await stage.start(Plan.model_validate(steps), durability="exit")
            await exists(gate.with_suffix(".began"))
            line.cut()
            await run.handle.signal(Verb.CANCEL, {"actor": "oscar"})
            async with stage.worker_here(**TOOLS):
                await run.result()
                gate.with_suffix(".open").touch()
                await asyncio.to_thread(lonely.wait_said, LATE)
            line.mend()

    assert stage.shop.counts(order_id)["restocks"] == 0


@pytest.mark.parametrize("verb", [Verb.AMEND, Verb.PAUSE])
async def test_a_run_that_is_about_to_fail_takes_no_new_plan_and_no_pause(
    stage: Stage, order_id: str, tmp_path: Path, verb: Verb
) -> None:
    gate = tmp_path / "gate"
    reads = {"id": "gate", "tool": "gates.read", "params": {"file": str(gate)}, "after": []}
    none = {"file": str(tmp_path / "none")}
    bad = {"id": "bad", "tool": "prices.read", "params": none, "after": []}
    new = Plan.model_validate([reads, mail(order_id, "k")])
    sent = {Verb.AMEND: Amend(actor="o", plan=new, based_on=1), Verb.PAUSE: PauseRun(actor="o")}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(Plan.model_validate([reads, bad]))
        await exists(gate.with_suffix(".began"))
        await run.until(lambda view: states(view.result)["bad"] == "failed")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await told(run, verb, sent[verb])
        gate.with_suffix(".open").touch()
        result = await run.result()

    assert "the run is ending" in str(refused.value.cause)
    assert result.state is RunState.FAILED


@pytest.mark.parametrize("mode", ["sync", "exit"])
async def test_a_worker_that_another_has_overtaken_does_nothing_with_what_it_has_read(
    stage: Stage, order_id: str, tmp_path: Path, mode: str
) -> None:
    price = tmp_path / "price"
    price.write_text("1050")
    reads = {"id": "price", "tool": "gates.price", "params": {"file": str(price)}}
    # Of another price it is another mail.
    steps = [mail(order_id, "first", "first"), reads, mail(order_id, "price-${price.amount}")]
    async with Line.to(stage.client.service_client.config.target_host) as line:
        environment = stage.environment(**TOOLS) | {"TEMPORAL_ADDRESS": line.address}
        with WorkerProcess(environment, stage.folder) as lonely:
            await asyncio.to_thread(lonely.wait_ready)
            run = await stage.start(Plan.model_validate(steps), durability=mode)
            await exists(price.with_suffix(".began"))
            line.cut()
            price.write_text("1275")
            result = await stage.finish(run, **TOOLS)
            price.with_suffix(".open").touch()
            await asyncio.to_thread(lonely.wait_said, LATE)
            line.mend()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["mails"] == 2


@pytest.mark.crash
async def test_a_step_asked_again_starts_over(stage: Stage, order_id: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    asks = {"id": "ask", "tool": "gates.answer", "params": {"file": str(answer)}}
    asks["on_failure"] = "pause"
    looks = {"id": "look", "tool": "orders.read", "params": {"order_id": order_id}}
    last = mail(order_id, "price-${ask.amount}")
    async with stage.worker_here(**TOOLS):
        run = await stage.start(Plan.model_validate([asks, last]), durability="exit")
        await run.in_state(RunState.PAUSED_FAILURE)
    answer.write_text("1275")
    plan = Plan.model_validate([looks, {**asks, "after": ["look"]}, last])
    with stage.ready_worker(crash_at="orders.read:after_call", **TOOLS) as doomed:
        await told(run, Verb.AMEND, Amend(actor="olga", plan=plan, based_on=1))
        await asyncio.to_thread(doomed.wait_killed)
    async with stage.worker_here(**TOOLS):
        await run.until(lambda view: states(view.result)["ask"] in ("succeeded", "paused_failure"))
        state = states((await run.view()).result)["ask"]
        await run.cancel() if state == "paused_failure" else await run.result()

    assert (state, stage.shop.counts(order_id)["mails"]) == ("succeeded", 1)
