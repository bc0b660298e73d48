"""G1, G5: the ledger's disk is full when a call is answered; with space the run goes on."""

from __future__ import annotations

import resource

import pytest
from sqlalchemy import make_url

from tests.e2e.kinds import one_of_each
from tests.e2e.stage import Stage

pytestmark = pytest.mark.crash


async def test_an_answer_waits_for_a_full_disk(stage: Stage, order_id: str) -> None:
    stage.shop.fault("refunds", ignore_keys=True, hold="after")
    with stage.ready_worker() as worker:
        run, before = await stage.at_the_shop(order_id)
        # What SQLite writes next goes beyond the end of its log of changes.
        changes = stage.folder / f"{make_url(stage.ledger_url).database}-wal"
        worker.limit(resource.RLIMIT_FSIZE, changes.stat().st_size)
        stage.shop.clear_faults()
        stage.shop.wait_finished("refunds", before + 1)
        worker.wait_said("ledger.unavailable")
        assert await stage.events(run, "effect.committed") == []
        worker.limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
        await run.completed()

    assert stage.shop.requests("refunds")["received"] == before + 1
    await one_of_each(stage, run, order_id)
