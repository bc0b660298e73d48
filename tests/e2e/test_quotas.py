"""Runs whose tenant has used up a quota: they wait, say so, and go on; or they are refused."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from statistics import mean
from typing import Any, Final, NoReturn

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from surehand import Client
from surehand.activities.ledger import quotas
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import quota_usage
from surehand.client.connection import every_event
from surehand.process.exits import StartNotTaken
from surehand.worker import workflow_runner
from surehand.workflows.contracts import base
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import OpenRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.ports import OPEN_RUN
from surehand.workflows.run.agent_run import AgentRun
from tests.e2e.executions import executions
from tests.e2e.plans import mail_step, plan
from tests.e2e.runs import Run, states, step, until
from tests.e2e.stage import Stage
from tests.ledger.quotas import limited


@pytest.fixture(autouse=True)
def endless_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no hour and no day end while a test runs."""
    monkeypatch.setattr(quotas, "HOUR_MS", 2 * int(time.time() * 1000))
    monkeypatch.setattr(quotas, "DAY_MS", 2 * int(time.time() * 1000))


def mails(order_id: str, *kinds: str, **rest: Any) -> Plan:
    return plan(*(mail_step(order_id, kind) for kind in kinds), **rest)


def used(stage: Stage, kind: str) -> int:
    with stage.ledger.transaction(stage.tenant) as tx:
        return sum(row["used"] for row in tx.all(rows_of(quota_usage, kind=kind)))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_effects_over_the_quota_wait(stage: Stage, order_id: str, durability: str) -> None:
    limited(stage, effects_per_hour=1)
    async with stage.worker_here():
        run = await stage.start(mails(order_id, "one", "two"), durability=durability)
        view = await run.in_state(RunState.WAITING_QUOTA)
        before = stage.shop.counts(order_id)["mails"]
        limited(stage, effects_per_hour=2)
        result = await run.result()

    [waiting] = view.result.waiting_for
    assert (waiting.kind, waiting.step_id) == ("quota", "two")
    assert "effects_per_hour: 1 of 1 used, until" in waiting.question
    assert before == 1
    assert result.state is RunState.COMPLETED
    assert step(result, "two").error is None
    assert stage.shop.counts(order_id)["mails"] == 2
    assert used(stage, "effects") == 2


async def _all_end(runs: list[Run], timeout_s: float = 240) -> None:
    ends = await asyncio.gather(*(run.result(timeout_s) for run in runs))
    assert {end.state for end in ends} == {RunState.COMPLETED}


async def test_a_run_over_the_open_runs_waits_and_listens(stage: Stage, order_id: str) -> None:
    limited(stage, open_runs=1)
    asking = plan({"id": "go", "ask": {"question": "Go?"}}, mail_step(order_id, "one"))
    async with stage.worker_here():
        first = await stage.start(asking)
        await first.in_state(RunState.WAITING_INPUT)
        # One after the other: whichever is opened first has the first turn.
        second = await stage.start(asking)
        view = await second.in_state(RunState.WAITING_QUOTA)
        third = await stage.start(asking)
        await third.in_state(RunState.WAITING_QUOTA)
        [waiting] = view.result.waiting_for
        assert (waiting.kind, waiting.id) == ("quota", second.run_id)
        assert "open_runs: 1 of 1 used, 0 ahead in the queue" in waiting.question
        await second.handle.execute_update("pause", {"actor": "oscar"})
        await second.in_state(RunState.PAUSED_USER)
        await second.handle.execute_update("resume", {"actor": "oscar"})
        await second.cancel()
        ended = await second.result()
        assert (ended.state, ended.effects) == (RunState.CANCELLED, [])
        [asked] = (await first.view()).interrupts
        answer = {"actor": "oscar", "answers": {asked.interrupt_id: "yes"}}
        await first.handle.execute_update("answer", answer)
        await first.completed()
        await third.in_state(RunState.WAITING_INPUT)
        await third.cancel()
        await third.result()

    assert stage.shop.counts(order_id)["mails"] == 1


async def test_a_waiting_run_continues_and_keeps_its_place(stage: Stage, order_id: str) -> None:
    limited(stage, open_runs=0)
    async with stage.worker_here():
        run = await stage.start(mails(order_id, "one"), continue_after=1)
        await until(lambda: executions(stage, run), lambda found: len(found) > 2, 120)
        await run.in_state(RunState.WAITING_QUOTA)
        limited(stage)
        await run.completed()

    assert stage.shop.counts(order_id)["mails"] == 1
    assert [e["type"] for e in await stage.events(run, "run.opened", "run.admitted")] == [
        "run.opened",
        "run.admitted",
    ]


@pytest.mark.usefixtures("no_settings")
async def test_a_start_over_the_quota_may_be_rejected(stage: Stage, order_id: str) -> None:
    limited(stage, open_runs=0, over="reject")
    async with stage.worker_here():
        client = await connected(stage)
        started = await client.start(mails(order_id, "one"), run_id="once-more")
        with pytest.raises(StartNotTaken, match="open_runs: 0 of 0 used") as refused:
            await started.taken_up()
        assert int(refused.value.code) == 2
        run = stage_run(stage, started.run_id)
        assert stage.run_rows(run) == []

        limited(stage, open_runs=1)
        again = await client.start(mails(order_id, "one"), run_id="once-more")
        assert (await again.wait()).state is RunState.COMPLETED

    assert stage.shop.counts(order_id)["mails"] == 1


@pytest.mark.usefixtures("no_settings")
async def test_runs_and_calls_have_priority_and_weight(stage: Stage, order_id: str) -> None:
    limited(stage, weight=2.5)
    async with stage.worker_here():
        client = await connected(stage)
        started = await client.start(mails(order_id, "one", priority=1))
        await started.wait()
        events = [event async for event in every_event(stage.client, started.run_id)]

    begun = events[0].workflow_execution_started_event_attributes.priority
    calls = [
        event.activity_task_scheduled_event_attributes
        for event in events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert (begun.priority_key, begun.fairness_key) == (1, stage.tenant)
    weights = {call.activity_type.name: call.priority.fairness_weight for call in calls}
    assert weights == {"execute_tools": 2.5, "close_run": 2.5}


async def connected(stage: Stage) -> Client:
    return await Client.connect(
        temporal=stage.client,
        user="uma",
        task_queue=stage.task_queue,
        artifacts=str(stage.folder / "artifacts"),
    )


def stage_run(stage: Stage, run_id: str) -> Run:
    run = Run(run_id, stage.client.get_workflow_handle(run_id))
    stage.started.append(run)
    return run


@pytest.mark.crash
async def test_a_kill_counts_the_effect_once(stage: Stage, order_id: str) -> None:
    limited(stage, effects_per_hour=1)
    once = str(stage.folder / "died")
    with stage.ready_worker(crash_at="mail.send:after_claim", crash_once=once) as dies:
        run = await stage.start(mails(order_id, "one"))
        await asyncio.to_thread(dies.wait_killed)
        with stage.ready_worker():
            await run.completed()

    assert stage.shop.counts(order_id)["mails"] == 1
    assert used(stage, "effects") == 1


@pytest.mark.parametrize(("tool", "how"), [("model.ask", "well"), ("model.order", "transient")])
async def test_a_call_behind_spent_tokens_waits(stage: Stage, tool: str, how: str) -> None:
    fails = 1 if how == "transient" else 0
    limited(stage, tokens_per_day=10 * (1 + fails))
    calls = [
        {"id": name, "tool": tool, "params": {"fails": fails if name == "one" else 0}}
        for name in ("one", "two")
    ]
    async with stage.worker_here(tool_modules="tests.variants.spends", retries_transient="10ms"):
        run = await stage.start(plan(*calls))
        view = await run.in_state(RunState.WAITING_QUOTA)
        assert used(stage, "tokens") == 10 * (1 + fails)
        limited(stage, tokens_per_day=1000)
        result = await run.result()

    assert states(view.result) == {"one": "succeeded", "two": "waiting_quota"}
    assert "tokens_per_day" in (step(view.result, "two").error or "")
    assert result.state is RunState.COMPLETED
    assert used(stage, "tokens") == 10 * (2 + fails)


async def test_a_busy_tenant_holds_up_nobody(stage: Stage, order_id: str) -> None:
    many, few, limit = 12, 3, 3
    limited(stage, open_runs=limit)
    seen: list[int] = []
    asks = plan({"id": "go", "ask": {"question": "Go?"}})
    reads = plan({"id": "read", "tool": "orders.read", "params": {"order_id": order_id}})

    async def watch() -> None:
        while True:
            with stage.ledger.transaction(stage.tenant) as tx:
                seen.append(quotas.count_open_runs(tx))
            await asyncio.sleep(0.05)

    async def let_go(run: Run) -> None:
        [asked] = (await run.until(lambda view: bool(view.interrupts))).interrupts
        answer = {"actor": "oscar", "answers": {asked.interrupt_id: "yes"}}
        await run.handle.execute_update("answer", answer)

    async with stage.worker_here():
        watching = asyncio.create_task(watch())
        large = [await stage.start(asks) for _ in range(many)]
        for run in large:
            await run.until(lambda view: bool(view.result.waiting_for))
        small = [await stage.start(reads, tenant="acme") for _ in range(few)]
        await _all_end(small)
        with stage.ledger.transaction(stage.tenant) as tx:
            queued = quotas.count_queued_runs(tx)
        await asyncio.gather(*map(let_go, large))
        await _all_end(large)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    assert queued == many - limit, "the small tenant was not behind the large one"
    assert max(seen) == limit


@pytest.mark.crash
async def test_a_doubt_is_no_quotas_to_settle(stage: Stage, order_id: str) -> None:
    once = str(stage.folder / "died")
    one = mail_step(order_id, "one", approval={"expires_in": "5s"}, on_failure="continue")
    with stage.ready_worker(crash_at="mail.send:after_call", crash_once=once) as dies:
        run = await stage.start(plan(one, mail_step(order_id, "two")))
        view = await run.until(lambda view: bool(view.pending))
        await run.approve()
        await asyncio.to_thread(dies.wait_killed)
        expires_ms = view.pending[0].expires_at.timestamp() * 1000
        await until(lambda: _clock(stage), lambda now_ms: now_ms > expires_ms)
        # Asking again needs a place, and there is none.
        limited(stage, pending_approvals=0, over="reject")
        with stage.ready_worker():
            view = await run.in_state(RunState.NEEDS_INTERVENTION)

    assert states(view.result) == {"one": "failed", "two": "pending"}
    assert stage.shop.counts(order_id)["mails"] == 1
    await run.handle.terminate()
    stage.started.clear()


async def _clock(stage: Stage) -> int:
    with stage.ledger.transaction(stage.tenant) as tx:
        return tx.now_ms


async def _activities(run: Run) -> int:
    begun = 0
    async for event in run.handle.fetch_history_events():
        begun += event.HasField("activity_task_scheduled_event_attributes")
    return begun


async def test_waiting_for_a_quota_takes_no_time_of_a_step(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHORTEST_LOOK", "LONGEST_LOOK"):
        monkeypatch.setattr(base, name, timedelta(milliseconds=5))
    limited(stage, effects_per_hour=0)
    async with stage.worker_here():
        run = await stage.start(plan(mail_step(order_id, "one", time_limit="1s")))
        await until(lambda: _activities(run), lambda begun: begun > 60)
        limited(stage, effects_per_hour=1)
        await run.completed()


# Tenants take turns: what one has queued keeps nobody else waiting.


#: Runs of the tenant that has started many, and then of the one that has started a few.
MANY: Final = 80
FEW: Final = 6


async def test_a_tenant_with_few_runs_has_its_turn_early(stage: Stage) -> None:
    order: list[str] = []

    @activity.defn(name=OPEN_RUN.name)
    async def later(asked: OpenRun) -> NoReturn:
        raise ApplicationError("the run's own worker cannot: it goes into the queue")

    @activity.defn(name=OPEN_RUN.name)
    async def refuse(asked: OpenRun) -> NoReturn:
        order.append(activity.info().workflow_id or "")
        raise ApplicationError("not today", type="PlanInvalid", non_retryable=True)

    plan = Plan.model_validate([{"id": "any", "tool": "orders.read", "params": {}}])
    queue, client = stage.task_queue, stage.client
    runs: list[Run] = []
    async with Worker(
        client,
        task_queue=queue,
        workflows=[AgentRun],
        activities=[later],
        no_remote_activities=True,
        workflow_runner=workflow_runner(),
    ):
        for tenant, number in (("acme", MANY), ("default", FEW)):
            started = [await stage.start(plan, tenant=tenant) for _ in range(number)]
            await asyncio.gather(*(run.history_has("activity_task_scheduled") for run in started))
            runs += started
        # In the history an activity is before it is in the queue.
        await until(lambda: queued(stage), lambda found: found == MANY + FEW)
        async with Worker(
            client, task_queue=queue, activities=[refuse], max_concurrent_activities=1
        ):
            results = (run.handle.result() for run in runs)
            ends = await asyncio.gather(*results, return_exceptions=True)

    assert {type(end) for end in ends} == {WorkflowFailureError}
    places = [place for place, run_id in enumerate(order) if not run_id.startswith("acme/")]
    # In the order of their coming they are behind nearly all of the others. Exact it is not: the
    # server keeps a queue in several parts, each of which is fair by itself.
    assert mean(places) < MANY / 2, f"places {places} of {len(order)}"


async def queued(stage: Stage) -> int:
    """Return how many activities wait in the queue, in all parts of it."""
    said = await stage.client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=stage.client.namespace,
            task_queue=TaskQueue(name=stage.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            report_stats=True,
        )
    )
    return said.stats.approximate_backlog_count
