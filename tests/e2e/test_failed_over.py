"""G5 with a synchronous standby, which goes on where its primary was killed in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.workflows.contracts.base import RunState
from tests.conftest import missing
from tests.e2e.runs import refund_plan, until
from tests.e2e.stage import Stage
from tests.ledger_databases import WORKER
from tests.postgres_server import PostgresMissing
from tests.replication import Replicated

pytestmark = [
    pytest.mark.crash,
    pytest.mark.postgres,
    pytest.mark.guarantee("G5"),
    pytest.mark.timeout(240),
]
RUNS = 12


@pytest.fixture
def pair() -> Iterator[Replicated]:
    try:
        with Replicated.running(synchronous=True) as running:
            yield running
    except PostgresMissing as error:
        missing(str(error))


@pytest.fixture
def ledger_url(pair: Replicated) -> str:
    return pair.url(WORKER)


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    async with open_ledger(ledger_url) as opened:
        yield opened


@pytest.mark.parametrize("effects", [1, RUNS, 2 * RUNS])
async def test_a_killed_primary_loses_none(stage: Stage, pair: Replicated, effects: int) -> None:
    # A repeated request would count, whatever its key: only the ledger and lookups protect.
    for endpoint in ("refunds", "restocks"):
        stage.shop.fault(endpoint, ignore_keys=True)
    before = stage.shop.counts()
    orders = [stage.shop.new_order() for _ in range(RUNS)]
    with stage.ready_worker(tool_modules="tests.variants.refund_ungated"):
        runs = [await stage.start(refund_plan(one)) for one in orders]

        def made() -> int:
            now = stage.shop.counts()
            return sum(now[name] - before[name] for name in ("refunds", "restocks", "mails"))

        await until(made, lambda count: count >= effects)
        await asyncio.to_thread(pair.fail_over)
        results = [await run.result(timeout_s=180) for run in runs]

    assert [result.state for result in results] == [RunState.COMPLETED] * RUNS
    counts = [stage.shop.counts(order) for order in orders]
    assert [(one["refunds"], one["restocks"], one["mails"]) for one in counts] == [(1, 1, 1)] * RUNS
    for run in runs:
        assert set((await stage.effect_states(run)).values()) == {"committed"}
