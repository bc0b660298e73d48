"""Guarantee G1 when its memory is gone: a run that the ledger does not know calls nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.history.reads import knows_run
from surehand.workflows.contracts.checkpoint import Checkpoint
from surehand.workflows.contracts.states import RunState
from tests.e2e.interceptors import Pause
from tests.e2e.runs import example_plan
from tests.e2e.stage import Stage
from tests.ledger_databases import migrate


@pytest.fixture
def empty_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    migrate(url)
    return url


async def test_a_run_unknown_to_its_ledger_waits_for_a_human_and_goes_on_once_it_is_restored(
    stage: Stage, empty_url: str, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.asks()
    async with open_ledger(empty_url) as empty, replace(stage, ledger=empty).worker_here():
        await run.approve()
        view = await run.in_state(RunState.NEEDS_INTERVENTION)
        checkpoint = await run.handle.query("checkpoint", result_type=Checkpoint)
        assert stage.shop.counts(order_id)["refunds"] == 0
    assert f"the ledger does not know run {run.run_id}" in (view.result.error or "")
    assert checkpoint.last_error == view.result.error
    assert any("does not know run" in line.text for line in view.timeline)

    async with stage.worker_here():
        result = await run.result()
    assert (result.state, result.error) == (RunState.COMPLETED, None)
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_call_whose_run_the_ledger_has_lost_is_never_made(
    stage: Stage, empty_url: str, order_id: str
) -> None:
    before = stage.shop.requests("refunds")["received"]
    calling = Pause("execute_tools", lambda batch: batch.first.step_id == "refund")
    async with stage.worker_here(client=calling.client(stage.client)):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        await calling.reached()
        async with open_ledger(empty_url) as empty:
            kept, stage.ledger.engine = stage.ledger.engine, empty.engine
            calling.go_on()
            await run.in_state(RunState.NEEDS_INTERVENTION)
            assert stage.shop.requests("refunds")["received"] == before
            stage.ledger.engine = kept
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.requests("refunds")["received"] == before + 1


async def test_a_ledger_without_its_tables_knows_no_run(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "no-tables.db"
    file.touch()
    async with open_ledger(f"sqlite:///{file}") as bare:
        assert not await bare.transact("default", knows_run, "run-1")
    assert not await ledger.transact("default", knows_run, "run-1")
