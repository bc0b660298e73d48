"""A worker as those see it who run it: its log, its readiness, and frameworks of the user's own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.process.connect import load_plugins
from surehand.process.dev_server import DevServer, free_ports
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.conftest import missing
from tests.e2e.plans import UNGATED
from tests.e2e.runs import decision_on, failing_plan, refund_plan, step, until
from tests.e2e.stage import Stage
from tests.e2e.test_code_first import code
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresMissing, PostgresServer
from tests.worker_process import WorkerProcess


def lines(worker: WorkerProcess) -> list[dict[str, Any]]:
    """The log, each line of which has to be JSON."""
    return [json.loads(line) for line in worker.output().splitlines()]


@pytest.mark.parametrize("mode", ["sync", "exit"])
async def test_a_failed_call_is_one_json_line(stage: Stage, order_id: str, mode: str) -> None:
    with stage.worker(log_format="json") as worker:
        plan = failing_plan(order_id)
        run = await stage.start(plan, durability=mode)
        await run.approve()
        assert (await run.result()).state is RunState.FAILED
        assert worker.stop() == 0
        log = lines(worker)

    [failed] = [line for line in log if line["event"] == "activity.failed"]
    assert failed["error_type"] == "ToolFailed"
    assert "HTTP 422" in failed["error"]
    assert (failed["run_id"], failed["step_id"], failed["attempt"]) == (run.run_id, "close", 1)
    assert not any("exception" in line for line in log)


@pytest.mark.parametrize(
    ("tool", "error"), [("read.broken", "KeyError: 'nope'"), ("write.broken", "ValueError: ")]
)
async def test_a_bug_is_logged_with_its_traceback(stage: Stage, tool: str, error: str) -> None:
    odd = {"tool_modules": "tests.variants.odd", "retries_transient": "1ms,1ms,1ms"}
    with stage.worker(log_format="json", **odd) as worker:
        run = await stage.start(Plan.model_validate({"steps": [{"id": "it", "tool": tool}]}))
        ended = (RunState.FAILED, RunState.NEEDS_INTERVENTION)
        view = await run.until(lambda view: view.result.state in ended)
        log = lines(worker)

    raised = [line for line in log if line["event"] == "tool.raised"]
    assert raised and {line["tool"] for line in raised} == {tool}
    assert (raised[0]["run_id"], raised[0]["step_id"]) == (run.run_id, "it")
    assert "tests/variants/odd.py" in raised[0]["exception"]
    assert error in raised[0]["exception"]
    said = [view.result.steps[0].error or "", *(w.question for w in view.result.waiting_for)]
    assert any(re.search(rf"{error}.* \(variants/odd\.py:\d+\)", text) for text in said), said


async def test_a_worker_without_tool_modules_says_what_follows(stage: Stage) -> None:
    with stage.ready_worker(log_format="json", tool_modules="") as worker:
        [warned] = [line for line in lines(worker) if line["event"] == "worker.no_tools"]

    assert warned["setting"] == "SUREHAND_TOOL_MODULES"
    assert "every plan is refused" in warned["meaning"]


@pytest.mark.parametrize(("origins", "told"), [("", 1), ("https://approvals.example.com", 0)])
async def test_a_worker_says_that_no_passkey_counts(stage: Stage, origins: str, told: int) -> None:
    drill = {"log_format": "json", "crash_at": "payments.refund:after_call"}
    tools = "tests.variants.refund_passkey"
    with stage.ready_worker(**drill, tool_modules=tools, passkey_origins=origins) as worker:
        log = lines(worker)

    warned = [line for line in log if line["event"] == "worker.no_passkeys"]
    assert [line["tools"] for line in warned] == [["payments.refund"]] * told
    [warned_too] = [line for line in log if line["event"] == "worker.crashes"]
    assert (warned_too["level"], warned_too["setting"]) == ("warning", "SUREHAND_CRASH_AT")
    assert "payments.refund:after_call" in warned_too["meaning"]


# A deploy: a worker that is told to stop ends its call, and the next one goes on.
async def test_a_stopping_worker_ends_its_call(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    with stage.ready_worker() as leaving:
        run, before = await stage.at_the_shop(order_id)
        leaving.signal(signal.SIGTERM)
        leaving.wait_said("worker.stopping")
        with stage.ready_worker():
            stage.shop.clear_faults()
            assert await asyncio.to_thread(leaving.stop) == 0
            result = await run.completed()

    assert re.search("worker.stopped.*SIGTERM", leaving.output())
    assert step(result, "refund").attempts == 1
    assert stage.shop.requests("refunds")["received"] == before + 1
    assert stage.made(order_id) == (1, 1, 1)


READY = {"ready": True, "ledger": "ok", "temporal": "ok"}


def asked(address: str, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
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
            run = await stage.start(refund_plan(order_id))
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
            assert said["temporal"] != "ok"
            assert said["ledger"] == "ok"
            server = DevServer.start(**where, port=port)
            assert await answers(address, 200) == READY
    finally:
        server.kill()


async def test_a_stopping_worker_says_so(stage: Stage, address: str, order_id: str) -> None:
    stage.shop.fault("refunds", hold="before")
    with stage.worker(health=address) as worker:
        assert await answers(address, 200) == READY
        await stage.at_the_shop(order_id)
        worker.signal(signal.SIGTERM)
        assert (await answers(address, 503))["worker"] == "it is stopping"
        stage.shop.clear_faults()
        assert await asyncio.to_thread(worker.wait_exit) == 0


async def test_strange_questions_of_health_are_refused(stage: Stage, address: str) -> None:
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


def test_a_taken_health_address_is_one_line(stage: Stage, tmp_path: Path) -> None:
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


FOREIGN: Final = {
    "tool_modules": UNGATED,
    "workflow_modules": "tests.e2e.code_frameworks",
    "max_cached_workflows": "0",
}
PLUGINS: Final = "tests.e2e.plugins"


@pytest.mark.parametrize(
    "given",
    [
        {"sandbox_passthrough": "httpx,anyio"},
        {"worker_plugins": f"{PLUGINS}:framework"},
        {"worker_plugins": f"{PLUGINS}:Framework"},
        {"worker_plugins": f"{PLUGINS}:Alone"},
    ],
    ids=["a setting", "a plugin", "a plugin's class", "a worker's plugin"],
)
async def test_a_workflow_may_import_what_the_sandbox_would_not_load(
    stage: Stage, order_id: str, given: dict[str, str]
) -> None:
    with stage.ready_worker(**FOREIGN, **given):
        run = await stage.start(code("Foreign", order_id=order_id))
        result = await run.completed()

    assert result.output == f"https://shop.example/{order_id}"
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert [row["state"] for row in await stage.effects(run)] == ["committed"]


def refusal(stage: Stage, **settings: str) -> str:
    """Return the one line with which a worker does not start."""
    with stage.worker(**settings) as worker:
        assert worker.wait_exit() == 2
        [line] = [one for one in worker.output().splitlines() if one.startswith("surehand: ")]
        assert "Traceback" not in worker.output()
    return line


async def test_a_worker_names_the_module_that_its_sandbox_refuses(stage: Stage) -> None:
    line = refusal(stage, **FOREIGN)

    assert "workflow Foreign cannot be loaded into Temporal's sandbox" in line
    assert "add httpx to SUREHAND_SANDBOX_PASSTHROUGH" in line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sandbox_passthrough": "httpq"}, "SUREHAND_SANDBOX_PASSTHROUGH: there is no module"),
        ({"worker_plugins": f"{PLUGINS}:other_sandbox"}, "puts another sandbox"),
        ({"crash_at": "a.b:after_call", "decisions": "signed"}, "SUREHAND_DECISIONS=signed"),
    ],
)
async def test_bad_plugins_are_refused(stage: Stage, given: dict[str, str], says: str) -> None:
    assert says in refusal(stage, **given)


def test_a_plugin_that_is_named_by_its_class_is_made_and_one_that_is_made_is_taken() -> None:
    from tests.e2e import plugins

    [made, taken] = load_plugins([f"{PLUGINS}:Framework", f"{PLUGINS}:framework"])

    assert taken is plugins.framework
    assert isinstance(made, plugins.Framework) and made is not taken
    with pytest.raises(WrongUse):
        load_plugins([f"{PLUGINS}:Framework", f"{PLUGINS}:none"])
