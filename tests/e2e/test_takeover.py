"""Guarantee G5: a dead worker is noticed by its lock, and nobody else (``worker/takeover.py``)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from temporalio.api.failure.v1 import Failure

from surehand.activities.worker import watchdog
from surehand.activities.worker.crash_points import CrashPoint
from surehand.client.connection import every_event
from surehand.workflows.contracts.base import RunState
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import Plan
from tests import freezing_worker
from tests.e2e.kinds import DEDUPES, LOOKUP, SHOPS, one_of_each
from tests.e2e.line import Line
from tests.e2e.runs import Run, refund_plan, step
from tests.e2e.stage import SHOP_TOOLS, Stage
from tests.ledger_databases import DATABASES
from tests.postgres_server import PostgresServer
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.crash
#: What a worker says that has noticed a death.
DIED = "worker.died"


async def failures(run: Run) -> list[Failure]:
    """Return how the attempts failed that others followed, the newest one of each activity."""
    events = [one async for one in every_event(run.handle._client, run.run_id)]
    started = [one.activity_task_started_event_attributes for one in events]
    return [one.last_failure for one in started if one.attempt > 1]


def is_noticed(failure: Failure) -> bool:
    return failure.application_failure_info.type == ErrorType.WORKER_DIED


@contextmanager
def two_workers(stage: Stage, **settings: str) -> Iterator[list[WorkerProcess]]:
    """Start two workers, each with a log of its own, that are ready."""
    environment = stage.environment(**settings)
    with ExitStack() as running:
        workers = [
            running.enter_context(WorkerProcess(environment, stage.folder / name))
            for name in ("one", "another")
        ]
        for worker in workers:
            worker.wait_ready()
        yield workers


def dead_and_alive(workers: list[WorkerProcess]) -> tuple[WorkerProcess, WorkerProcess]:
    """Return the worker that was killed, and the other one."""
    dead, alive = sorted(workers, key=lambda worker: worker.running)
    assert (dead.killed, alive.running) == (True, True)
    return dead, alive


@pytest.mark.parametrize(
    ("database", "durability"),
    [("sqlite", "exit"), pytest.param("postgresql", "sync", marks=pytest.mark.postgres)],
)
async def test_noticed_deaths_start_attempts(stage: Stage, order_id: str, durability: str) -> None:
    stage.shop.fault("refunds", **SHOPS[DEDUPES])
    settings = {
        "tool_modules": DEDUPES,
        "crash_at": "payments.refund:after_call",
        "crash_once": str(stage.folder / "crashed"),
    }
    with two_workers(stage, **settings) as workers:
        plan = refund_plan(order_id)
        run = await stage.start(plan, durability=durability)
        await run.approve()
        result = await run.result()
        _, alive = dead_and_alive(workers)
        alive.wait_said(DIED)

    assert result.state is RunState.COMPLETED
    noticed = await failures(run)
    assert noticed
    assert all(map(is_noticed, noticed))
    await one_of_each(stage, run, order_id)


@pytest.mark.parametrize("database", DATABASES)
async def test_a_starting_worker_notices_a_death(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", **SHOPS[DEDUPES])
    run = await stage.die_at(
        "payments.refund:after_call",
        refund_plan(order_id),
        approve=True,
        tool_modules=DEDUPES,
    )
    with stage.worker(tool_modules=DEDUPES) as worker:
        worker.wait_said(DIED)
        await run.completed()
    await one_of_each(stage, run, order_id)


@pytest.mark.parametrize("database", DATABASES)
async def test_a_stopped_worker_with_its_lock_is_not_dead_and_changes_nothing_afterwards(
    stage: Stage, order_id: str
) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    with two_workers(stage, tool_modules=LOOKUP) as workers:
        run, before = await stage.at_the_shop(order_id)
        frozen, other = await the_caller(run, workers)
        # With SQLite's write lock, which it takes now and then, it would hold up the other one.
        with stage.ledger.transaction(stage.tenant):
            frozen.signal(signal.SIGSTOP)
        stage.shop.clear_faults()
        result = await run.result(timeout_s=200)
        assert DIED not in other.output()
        frozen.signal(signal.SIGCONT)
        # It loses its entry and stops; or its watchdog ends it, if it slept past the deadline.
        assert await asyncio.to_thread(frozen.wait_exit) in (0, watchdog.EXIT_CODE)

    assert result.state is RunState.COMPLETED
    assert not any(map(is_noticed, await failures(run)))
    assert stage.shop.requests("refunds")["received"] == before + 1
    entries = {row["tool"]: row for row in await stage.effects(run)}
    assert entries["payments.refund"]["receipt"] == step(result, "refund").output
    # Woken up, it may have read the shop's answer: that is kept as evidence.
    types = [event["type"] for event in await stage.events(run)]
    assert set(types[types.index("run.completed") + 1 :]) <= {"effect.late_receipt"}
    await one_of_each(stage, run, order_id)


async def the_caller(run: Run, workers: list[WorkerProcess]) -> tuple[WorkerProcess, WorkerProcess]:
    """Return who makes a run's call, told to take no more work, and the other one."""
    [activity] = (await run.handle.describe()).raw_description.pending_activities
    caller, other = sorted(
        workers, key=lambda one: not activity.last_worker_identity.startswith(f"{one.pid}@")
    )
    caller.signal(signal.SIGTERM)  # what it takes is lost with it, as long as it is frozen
    caller.wait_said("worker.stopping")
    return caller, other


def end_own_sessions(server: PostgresServer, stage: Stage) -> int:
    """End the sessions whose locks show that workers live, and return how many."""
    name = stage.ledger_url.rpartition("/")[2]
    held = (
        "SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
        f" WHERE d.datname = '{name}' AND l.locktype = 'advisory' AND l.granted"
    )
    ended = server.execute(f"SELECT count(pg_terminate_backend(pid)) FROM ({held}) AS holders")
    return int(ended)


@pytest.mark.postgres
@pytest.mark.parametrize("database", [pytest.param("postgresql", id="postgresql")])
async def test_a_lost_session_of_a_worker_that_lives_costs_no_attempt(
    stage: Stage, order_id: str, postgres_server: PostgresServer
) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    with two_workers(stage, tool_modules=LOOKUP) as workers:
        run, before = await stage.at_the_shop(order_id)
        assert end_own_sessions(postgres_server, stage) == 2
        for worker in workers:
            worker.wait_said("takeover.lost")
        stage.shop.clear_faults()
        await run.completed()

    assert stage.shop.requests("refunds")["received"] == before + 1
    await one_of_each(stage, run, order_id)


@pytest.mark.postgres
@pytest.mark.parametrize("database", [pytest.param("postgresql", id="postgresql")])
async def test_a_worker_taken_for_dead_while_it_lives_changes_nothing_afterwards(
    stage: Stage, order_id: str, postgres_server: PostgresServer
) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    with two_workers(stage, tool_modules=LOOKUP) as workers:
        run, before = await stage.at_the_shop(order_id)
        frozen, other = await the_caller(run, workers)
        frozen.signal(signal.SIGSTOP)
        assert end_own_sessions(postgres_server, stage) == 2
        other.wait_said(DIED)
        stage.shop.clear_faults()
        result = await run.result(timeout_s=200)
        frozen.signal(signal.SIGCONT)
        assert await asyncio.to_thread(frozen.wait_exit) in (0, watchdog.EXIT_CODE)

    assert result.state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + 1
    await one_of_each(stage, run, order_id)


# Guarantee G1 against attempts that are late: a worker that was frozen wakes up and goes on.


@pytest.mark.parametrize("tools", [SHOP_TOOLS, DEDUPES], ids=["lookup", "dedupes"])
async def test_a_frozen_claim_makes_no_late_call(stage: Stage, order_id: str, tools: str) -> None:
    stage.shop.fault("refunds", ignore_keys=True)
    before = stage.shop.requests("refunds")["received"]
    crash_at = f"payments.refund:{CrashPoint.AFTER_CLAIM}"
    with stage.freezing_worker(tool_modules=tools, crash_at=crash_at) as frozen:
        frozen.wait_ready()
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        await asyncio.to_thread(frozen.wait_said, freezing_worker.CALLS)
        frozen.signal(signal.SIGTERM)  # it takes no more work, which would be lost with it
        frozen.wait_said("worker.stopping")
        (stage.folder / freezing_worker.GO_ON).touch()
        frozen.wait_said(freezing_worker.FREEZES)
        with stage.worker(tool_modules=tools):
            result = await run.result(timeout_s=200)
            frozen.signal(signal.SIGCONT)
            assert await asyncio.to_thread(frozen.wait_exit) == 0

    assert result.state is RunState.COMPLETED
    assert step(result, "refund").attempts > 1
    assert stage.shop.requests("refunds")["received"] == before + 1
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert set((await stage.effect_states(run)).values()) == {"committed"}


# G1, G5: a worker that is cut off from the Temporal server works on, and somebody else does too.


@pytest.mark.parametrize(
    ("tools", "calls"),
    [
        # It keeps its lease, so another one waits for the outcome that it records.
        pytest.param(LOOKUP, 1, id="lookup"),
        # The shop knows the key, so another one takes over and calls again; the first one is late.
        pytest.param(DEDUPES, 2, id="dedupes"),
    ],
)
async def test_a_worker_cut_off_in_its_call_changes_nothing_when_it_is_back(
    stage: Stage, order_id: str, tools: str, calls: int
) -> None:
    # Longer than the server waits for a sign of life.
    stage.shop.fault("refunds", **SHOPS[tools], delay_after_s=4, times=1)
    async with Line.to(stage.client.service_client.config.target_host) as line:
        environment = stage.environment(tool_modules=tools) | {"TEMPORAL_ADDRESS": line.address}
        with WorkerProcess(environment, stage.folder) as lonely:
            await asyncio.to_thread(lonely.wait_ready)
            run, before = await stage.at_the_shop(order_id)
            line.cut()
            result = await stage.finish(run, tool_modules=tools)
            line.mend()
            # It is back when it works; so all that it had to say has been said.
            look = {"id": "look", "tool": "orders.read", "params": {"order_id": order_id}}
            another = await stage.start(Plan.model_validate({"steps": [look]}))
            await another.completed()
            assert await asyncio.to_thread(lonely.stop) == 0

    assert result.state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + calls
    assert step(result, "refund").attempts > 1
    await one_of_each(stage, run, order_id)
    # What it was told by the shop after it had lost its entry is kept as evidence.
    types = [event["type"] for event in await stage.events(run)]
    assert set(types[types.index("run.completed") + 1 :]) <= {"effect.late_receipt"}
