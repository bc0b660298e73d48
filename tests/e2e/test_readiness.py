"""A worker says at an endpoint of its own that it lives, and whether it can work."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from surehand.activities.worker.health import Readiness
from surehand.process.dev_server import DevServer, free_ports
from surehand.worker import workflow_runner
from surehand.workflows.maintenance import Ping
from tests.conftest import missing
from tests.e2e.runs import decision_on, example_plan, until
from tests.e2e.stage import Stage
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresMissing, PostgresServer
from tests.worker_process import WorkerProcess

READY = {"ready": True, "ledger": "ok", "temporal": "ok", "polling": "ok"}


def asked(address: str, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
    """Return what the endpoint answers; 0: it does not."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{address}{path}", timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, {}


async def answers(address: str, code: int) -> dict[str, Any]:
    """Wait until the endpoint answers so, and return what it says."""

    async def look() -> tuple[int, dict[str, Any]]:
        return await asyncio.to_thread(asked, address)

    return (await until(look, lambda answer: answer[0] == code))[1]


@pytest.fixture
def address() -> str:
    [port] = free_ports(1)
    return f"127.0.0.1:{port}"


class TestLedger:
    pytestmark = pytest.mark.postgres

    @pytest.fixture
    def database(self) -> Iterator[PostgresServer]:
        """A PostgreSQL of this test's own."""
        try:
            server = PostgresServer.start()
        except PostgresMissing as error:
            missing(str(error))
        yield server
        server.remove()

    @pytest.fixture
    def ledger_url(self, database: PostgresServer) -> str:
        return PostgresLedgers(database).create()

    async def test_without_its_ledger_a_worker_lives_and_is_not_ready_until_that_is_back(
        self, stage: Stage, database: PostgresServer, address: str, order_id: str
    ) -> None:
        with stage.worker(health=address) as worker:
            assert await answers(address, 200) == READY
            database.stop()
            said = await answers(address, 503)
            assert said["ledger"].startswith(("ledger database: OperationalError", "does not"))
            assert {**said, "ledger": "ok"} == {**READY, "ready": False}
            assert await asyncio.to_thread(asked, address, "/livez") == (200, {"live": True})
            database.restart()
            assert await answers(address, 200) == READY
            run = await stage.start(example_plan("refund.yaml", order_id=order_id))
            await run.decide(decision_on(await run.asks()))
            await run.result()
            assert worker.running
        assert stage.shop.counts(order_id)["refunds"] == 1


async def test_without_its_server_a_worker_is_not_ready_until_that_is_back(
    stage: Stage, temporal_cli: Path, address: str, tmp_path: Path
) -> None:
    where: dict[str, Any] = {
        "cli": temporal_cli,
        "db_file": tmp_path / "temporal.db",
        "log_file": tmp_path / "temporal.log",
        "ui_port": None,
    }
    server = DevServer.start(**where)
    port = int(server.address.rpartition(":")[2])
    environment = stage.environment(health=address) | {"TEMPORAL_ADDRESS": server.address}
    try:
        with WorkerProcess(environment, stage.folder):
            assert await answers(address, 200) == READY
            server.kill()
            said = await answers(address, 503)
            assert said["temporal"] != "ok" and said["polling"] != "ok"
            assert said["ledger"] == "ok"
            server = DevServer.start(**where, port=port)
            assert await answers(address, 200) == READY
    finally:
        server.kill()


async def test_a_worker_is_ready_whichever_partition_of_its_queue_it_polls(stage: Stage) -> None:
    # Polls go where the fewest wait: of the first worker to each of the queue's four partitions,
    # and of the others to one each. What waits there behind others is told to no other partition.
    polls = [PollerBehaviorSimpleMaximum(number) for number in (8, 1, 1, 1, 1)]
    async with AsyncExitStack() as all_of_them:
        for number, behavior in enumerate(polls):
            client = await Client.connect(
                stage.client.service_client.config.target_host, identity=f"worker-{number}"
            )
            worker = Worker(
                client,
                task_queue=stage.task_queue,
                workflows=[Ping],
                activities=[nothing],
                workflow_runner=workflow_runner(),
                max_cached_workflows=0,
                workflow_task_poller_behavior=behavior,
                activity_task_poller_behavior=behavior,
            )
            await all_of_them.enter_async_context(worker)
            readiness = Readiness.of(stage.ledger, client, stage.task_queue, str)
            said = await until(readiness.look, lambda said: said["polling"] == "ok", timeout_s=20)
            assert said == {"ledger": "ok", "temporal": "ok", "polling": "ok"}


@activity.defn
async def nothing() -> None:
    """Do nothing."""


async def test_a_worker_that_stops_says_so_while_its_calls_end(
    stage: Stage, address: str, order_id: str
) -> None:
    stage.shop.fault("refunds", hold="before")
    before = stage.shop.requests("refunds")["received"]
    with stage.worker(health=address) as worker:
        assert await answers(address, 200) == READY
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        await asyncio.to_thread(stage.shop.wait_requests, "refunds", before + 1)
        worker.signal(signal.SIGTERM)
        assert (await answers(address, 503))["worker"] == "it is stopping"
        stage.shop.clear_faults()
        assert await asyncio.to_thread(worker.wait_exit) == 0


async def test_what_is_no_question_of_ours_gets_no_more_than_a_refusal(
    stage: Stage, address: str
) -> None:
    host, port = address.split(":")
    with stage.worker(health=address) as worker:
        await answers(address, 200)
        assert (await asyncio.to_thread(asked, address, "/metrics"))[0] == 404
        for sent in (b"POST /readyz HTTP/1.1\r\n\r\n", b"\xff\x00\r\n\r\n", b"x" * 100_000, b""):
            with socket.create_connection((host, int(port)), timeout=20) as one:
                one.sendall(sent)
                one.shutdown(socket.SHUT_WR)
                try:
                    answer = await asyncio.to_thread(one.recv, 100)
                except ConnectionResetError:
                    answer = b""
            assert answer == b"" or answer.startswith(b"HTTP/1.1 405 ")
        assert (await answers(address, 200)) == READY
        assert "Traceback" not in worker.output()


def test_an_address_of_health_that_is_taken_is_named_in_one_line(
    stage: Stage, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "{}:{}".format(*taken.getsockname())
        with stage.worker(health=address) as worker:
            code = worker.wait_exit()

    assert code == 2
    last = worker.output().strip().splitlines()[-1]
    assert last.startswith(f"surehand: health cannot be served at {address} (SUREHAND_HEALTH): ")
    assert "in use" in last
