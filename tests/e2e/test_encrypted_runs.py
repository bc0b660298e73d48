"""With encryption, nothing that goes through Temporal can be read by whoever has its database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import run_keys
from surehand.client.connection import Connection
from surehand.process.connect import find_target
from surehand.process.dev_server import DevServer
from surehand.process.settings import client_settings
from surehand.workflows.contracts.base import RunState
from surehand.workflows.names import WORKFLOW
from tests.conftest import KEYS
from tests.e2e.runs import Run, decision_on, refund_plan, until
from tests.e2e.stage import Stage, speaking
from tests.e2e.test_pause import at_step, restocking
from tests.ledger_databases import DATABASES


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", KEYS))


@pytest.fixture
def own_server(temporal_cli: Path, tmp_path: Path) -> Iterator[DevServer]:
    folder = tmp_path / "temporal"
    server = DevServer.start(
        cli=temporal_cli, db_file=folder / "temporal.db", log_file=folder / "log", ui_port=None
    )
    yield server
    server.kill()


def found_in(folder: Path, marker: str) -> list[str]:
    """Return the files below a folder that have a text in them, as whoever steals them reads it."""
    wanted = marker.encode()
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and wanted in file.read_bytes()
    )


async def task_failure(stage: Stage, run_id: str) -> str:
    """Return what people are told of a run whose workflow task fails."""
    environment = stage.environment()
    connection = Connection(stage.client, find_target(environment), client_settings(environment))
    return await connection.task_failure(await connection.describe(run_id)) or ""


async def started_with(run: Run) -> Payload:
    """Return what a run was started with, as Temporal has it."""
    async for event in run.handle.fetch_history_events():
        return event.workflow_execution_started_event_attributes.input.payloads[0]
    raise AssertionError("there is no first event")


@pytest.mark.parametrize(
    "keys",
    [pytest.param("", id="plain"), pytest.param(KEYS, id="encrypted", marks=pytest.mark.fast)],
    indirect=True,
)
async def test_a_run_that_was_killed_ends_and_a_stolen_temporal_database_tells_nothing_of_it(
    own_server: DevServer, stage: Stage, tmp_path: Path, keys: str
) -> None:
    marker = f"order-{uuid.uuid4().hex}"
    stage.shop.new_order(order_id=marker)
    plain = await Client.connect(own_server.address, data_converter=pydantic_data_converter)
    stage = replace(stage, client=speaking(plain, tmp_path / "artifacts", stage.ledger, stage.keys))
    crash_at = "payments.refund:after_call"
    with stage.ready_worker(crash_at=crash_at, crash_once=str(tmp_path / "crashed")) as worker:
        run = await stage.start(refund_plan(marker))
        request = await run.asks()
        await run.send(decision_on(request, reason=f"{marker} came back"))
        worker.wait_killed()
    with stage.ready_worker():
        failing = await stage.start(refund_plan(f"no-{marker}"))
        result = await run.result()
        failed = await failing.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(marker)["refunds"] == 1
    assert failed.state is RunState.FAILED and marker in str(failed.error)
    assert bool(found_in(tmp_path / "temporal", marker)) is (keys == "")


@pytest.mark.parametrize("database", DATABASES)
async def test_a_run_encrypts_with_one_key_of_its_own(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        await run.completed()

    with stage.ledger.transaction("default") as tx:
        # The tenant's own is for what is compared between runs.
        assert {row["run_id"] for row in tx.all(rows_of(run_keys))} == {"", run.run_id}


async def test_encrypted_heartbeats_tell_where_a_call_is(stage: Stage, order_id: str) -> None:
    async with stage.worker_here():
        run = await restocking(stage, order_id, "exit")
        assert await until(lambda: at_step(run), lambda at: at == "restock")
        await run.completed()


@pytest.mark.parametrize("name", ["child", "forwarded"])
async def test_what_only_runs_send_to_runs_is_refused_in_plain(
    stage: Stage, client: Client, order_id: str, name: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        request = await run.asks()
        said = {"verb": "cancel", "content": {"actor": "mallory"}, "run_id": run.run_id}
        await client.get_workflow_handle(run.run_id).signal(name, said)
        await run.send(decision_on(request))
        await run.completed()


async def test_another_runs_input_is_refused(stage: Stage, client: Client, order_id: str) -> None:
    run = await stage.start(refund_plan(order_id))
    payload = await started_with(run)
    name = f"copy-{uuid.uuid4().hex[:8]}"
    handle = await client.start_workflow(
        WORKFLOW, RawValue(payload), id=name, task_queue=stage.task_queue
    )
    async with stage.worker_here():
        why = await until(lambda: task_failure(stage, name), bool)
        await run.approve()
        await run.result()
    await handle.terminate()

    assert "it was encrypted for" in why
    assert stage.shop.counts(order_id)["refunds"] == 1
