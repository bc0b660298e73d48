"""Guarantee G5: database, server or outside system is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from surehand.process.dev_server import DevServer
from surehand.workflows.contracts.base import RunState
from tests.conftest import missing
from tests.e2e.runs import Run, decision_on, refund_plan
from tests.e2e.stage import Stage
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresMissing, PostgresServer

pytestmark = [pytest.mark.crash, pytest.mark.guarantee("G5")]


async def one_refund(stage: Stage, run: Run, order_id: str) -> None:
    await run.completed()
    assert stage.made(order_id) == (1, 1, 1)
    assert set((await stage.effect_states(run)).values()) == {"committed"}


@pytest.fixture
def killable_database() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer.start()
    except PostgresMissing as error:
        missing(str(error))
    yield server
    server.remove()


class TestDatabase:
    pytestmark = pytest.mark.postgres

    @pytest.fixture
    def ledger_url(self, killable_database: PostgresServer) -> str:
        return PostgresLedgers(killable_database).create()

    @pytest.mark.parametrize(
        ("answers_after_s", "down_until_the_answer"),
        [pytest.param(1, False, id="for a moment"), pytest.param(4, True, id="beyond the lease")],
    )
    async def test_a_database_killed_while_a_call_is_under_way_loses_no_outcome(
        self,
        stage: Stage,
        killable_database: PostgresServer,
        order_id: str,
        answers_after_s: int,
        down_until_the_answer: bool,
    ) -> None:
        stage.shop.fault("refunds", ignore_keys=True, delay_after_s=answers_after_s)
        with stage.ready_worker():
            run, before = await stage.at_the_shop(order_id)
            killable_database.kill_immediate()
            if down_until_the_answer:
                stage.shop.wait_finished("refunds", before + 1)
            killable_database.restart()
            await one_refund(stage, run, order_id)
        assert stage.shop.requests("refunds")["received"] == before + 1

    async def test_a_database_killed_while_a_run_waits_for_approval_keeps_the_request(
        self, stage: Stage, killable_database: PostgresServer, order_id: str
    ) -> None:
        with stage.ready_worker() as worker:
            run = await stage.start(refund_plan(order_id))
            await run.asks()
            killable_database.kill_immediate()
            # The decision arrives while nothing can verify it.
            await run.approve()
            worker.wait_said("ledger.unavailable")
            killable_database.restart()
            await one_refund(stage, run, order_id)


@pytest.mark.parametrize("slow", ["delay_before_s", "delay_after_s"])
async def test_a_killed_shop_is_asked_about_refunds(stage: Stage, order_id: str, slow: str) -> None:
    stage.shop.fault("refunds", ignore_keys=True, **{slow: 60})
    refunds = stage.shop.counts()["refunds"]
    before = stage.shop.requests("refunds")["received"]
    with stage.ready_worker():
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        if slow == "delay_after_s":
            stage.shop.wait_effects("refunds", refunds + 1)
        else:
            stage.shop.wait_requests("refunds", before + 1)
        stage.shop.kill()
        stage.shop.start()
        stage.shop.fault("refunds", ignore_keys=True)
        await one_refund(stage, run, order_id)


class KillableServer:
    """A Temporal server of this test's own, started again on the same file and port."""

    def __init__(self, cli: Path, folder: Path) -> None:
        self._cli, self._folder = cli, folder
        self._server = self._start(0)

    @property
    def address(self) -> str:
        return self._server.address

    def _start(self, port: int) -> DevServer:
        return DevServer.start(
            cli=self._cli,
            db_file=self._folder / "temporal.db",
            log_file=self._folder / "temporal.log",
            port=port,
            ui_port=None,
        )

    def kill(self) -> None:
        self._server.kill()

    def start_again(self) -> None:
        self._server = self._start(self._server.port)


@pytest.fixture
def killable(temporal_cli: Path, tmp_path: Path) -> Iterator[KillableServer]:
    server = KillableServer(temporal_cli, tmp_path / "temporal")
    yield server
    server.kill()


@pytest.fixture
async def killable_stage(killable: KillableServer, stage: Stage) -> Stage:
    """The stage, on a Temporal server that may be killed."""
    client = await Client.connect(killable.address, data_converter=pydantic_data_converter)
    return replace(stage, client=client)


async def test_a_temporal_server_killed_while_a_run_waits_for_approval_loses_nothing(
    killable_stage: Stage, killable: KillableServer, order_id: str
) -> None:
    with killable_stage.ready_worker():
        run = await killable_stage.start(refund_plan(order_id))
        request = await run.asks()
        killable.kill()
        killable.start_again()
        view = await run.in_state(RunState.WAITING_APPROVAL)
        assert view.pending == [request]
        await run.send(decision_on(request))
        await one_refund(killable_stage, run, order_id)


@pytest.mark.parametrize("slow", ["delay_before_s", "delay_after_s"])
async def test_a_temporal_server_killed_while_a_call_is_under_way_does_not_repeat_it(
    killable_stage: Stage, killable: KillableServer, order_id: str, slow: str
) -> None:
    killable_stage.shop.fault("refunds", ignore_keys=True, **{slow: 3})
    with killable_stage.ready_worker():
        run, before = await killable_stage.at_the_shop(order_id)
        killable.kill()
        # Down until the call has ended: its outcome is recorded, and nobody can be told.
        killable_stage.shop.wait_finished("refunds", before + 1)
        killable.start_again()
        await one_refund(killable_stage, run, order_id)
    assert killable_stage.shop.requests("refunds")["received"] == before + 1


@pytest.mark.fast
async def test_server_and_worker_killed_together_lose_nothing(
    killable_stage: Stage, killable: KillableServer, order_id: str
) -> None:
    killable_stage.shop.fault("refunds", ignore_keys=True, delay_before_s=2)
    with killable_stage.ready_worker() as worker:
        run, _ = await killable_stage.at_the_shop(order_id)
        killable.kill()
        worker.kill()
    killable.start_again()
    with killable_stage.worker():
        await one_refund(killable_stage, run, order_id)
