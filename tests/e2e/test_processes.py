"""``worker --processes N``: several workers as one, and each death is taken over as any other."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from surehand.process.dev_server import free_ports
from surehand.process.exits import ExitCode
from surehand.workflows.contracts.states import RunState
from tests.e2e.runs import decision_on, example_plan, step, until
from tests.e2e.stage import Stage
from tests.e2e.test_metrics import scraped, value
from tests.e2e.test_readiness import READY, answers, asked
from tests.worker_process import WorkerProcess

BOTH = {"ready": True, "1": READY, "2": READY}


@pytest.fixture
def health() -> str:
    [port] = free_ports(1)
    return f"127.0.0.1:{port}"


def started(supervisor: WorkerProcess) -> list[int]:
    """Return all processes that it has started, the newest last."""
    plain = re.sub("\x1b\\[[0-9;]*m", "", supervisor.output())
    return [int(pid) for pid in re.findall(r"processes\.started\b.*?\bpid=(\d+)", plain)]


def gone(pid: int) -> bool:
    """Return whether a process has ended; nobody may have waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


async def all_gone(pids: list[int]) -> None:
    async def look() -> list[int]:
        return [pid for pid in pids if not gone(pid)]

    await until(look, lambda left: not left)


async def test_one_that_is_killed_after_its_call_is_started_again_and_the_call_is_not(
    stage: Stage, order_id: str, health: str
) -> None:
    [port] = free_ports(1)
    metrics, once = f"127.0.0.1:{port}", stage.folder / "crashed"
    crash = {"crash_at": "payments.refund:after_call", "crash_once": str(once)}
    with stage.worker(processes="2", health=health, metrics=metrics, **crash) as both:
        assert await answers(health, 200) == BOTH
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.decide(decision_on(await run.asks()))
        result = await run.result()
        both.wait_said("processes.ended")
        assert await answers(health, 200) == BOTH
        page = await asyncio.to_thread(scraped, metrics)
        pids = started(both)
        assert both.stop() == 0
        assert len(pids) == 3 and all(map(gone, pids))

    assert once.exists()
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    for number in (1, 2):
        assert value(page, "temporal_num_pollers", f'process="{number}"') > 0
    assert page.count("# TYPE temporal_num_pollers ") == 1


async def test_told_to_stop_all_end_in_order_and_the_call_under_way_is_made_once(
    stage: Stage, order_id: str, health: str
) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    before = stage.shop.requests("refunds")["received"]
    with stage.worker(processes="2", health=health) as leaving:
        await answers(health, 200)
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        stage.shop.wait_requests("refunds", before + 1)
        leaving.signal(signal.SIGTERM)
        leaving.wait_said("worker.stopping")
        stage.shop.clear_faults()
        with stage.worker():
            assert await asyncio.to_thread(leaving.wait_exit) == 0
            result = await run.result()

    assert [gone(pid) for pid in started(leaving)] == [True, True]
    assert step(result, "refund").attempts == 1
    assert stage.shop.requests("refunds")["received"] == before + 1


async def test_workers_whose_supervisor_is_killed_end_in_order(stage: Stage, health: str) -> None:
    with stage.worker(processes="2", health=health) as supervisor:
        await answers(health, 200)
        pids = started(supervisor)
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.wait_killed()
        await all_gone(pids)

    assert supervisor.output().count("worker.stopped") == len(pids) == 2


async def test_while_one_of_them_hangs_they_are_not_live(stage: Stage, health: str) -> None:
    with stage.worker(processes="2", health=health) as supervisor:
        await answers(health, 200)
        frozen = started(supervisor)[0]
        os.kill(frozen, signal.SIGSTOP)
        try:
            status, told = await asyncio.to_thread(asked, health, "/livez")
        finally:
            os.kill(frozen, signal.SIGCONT)

        assert (status, told["live"], told["2"]) == (503, False, {"live": True})
        assert await answers(health, 200) == BOTH


def test_what_none_of_them_can_begin_with_is_said_once_with_its_own_exit_code(
    tmp_path: Path,
) -> None:
    environment = {
        "SUREHAND_DATABASE_URL": "sqlite:///none.db",
        "SUREHAND_TOOL_MODULES": "no.such.module",
        "SUREHAND_PROCESSES": "2",
    }
    with WorkerProcess(environment, tmp_path) as supervisor:
        code = supervisor.wait_exit()

    assert code == ExitCode.WRONG_USE
    assert supervisor.output().count("no.such.module") == 1
