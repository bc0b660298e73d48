"""The ledger through PgBouncer in transaction mode: no session outlasts a transaction."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import create_engine, text

from surehand.activities.ledger.core.engine import as_url, make_engine
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import effects
from tests.conftest import missing
from tests.e2e.kinds import DEDUPES, LOOKUP, SHOPS, one_of_each
from tests.e2e.runs import refund_plan
from tests.e2e.stage import Stage
from tests.ledger.scene import Scene
from tests.ledger_databases import PostgresLedgers
from tests.pgbouncer import PgBouncer, PgBouncerMissing
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres
#: Fewer than a worker's own: those of one client are served by now this one, now that one.
CONNECTIONS = 6


@pytest.fixture(scope="module")
def bouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    try:
        started = PgBouncer(postgres_server, CONNECTIONS)
    except PgBouncerMissing as error:
        missing(str(error))
    with started:
        yield started


@pytest.fixture
def ledger_url(bouncer: PgBouncer, postgres_ledgers: PostgresLedgers) -> str:
    return bouncer.before(postgres_ledgers.create())


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    async with open_ledger(ledger_url) as opened:
        yield opened


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_runs_through_a_pooler_make_each_effect_once(stage: Stage, durability: str) -> None:
    orders = [stage.shop.new_order() for _ in range(4)]
    with stage.ready_worker():
        runs = [await stage.start(refund_plan(order), durability=durability) for order in orders]
        for run in runs:
            await run.approve()
        for run, order in zip(runs, orders, strict=True):
            await run.completed()
            await one_of_each(stage, run, order)


def test_a_worker_behind_a_pooler_says_that_its_death_is_noticed_by_time_outs(stage: Stage) -> None:
    with stage.worker() as worker:
        worker.wait_said("takeover.off")
        worker.wait_ready()


@pytest.mark.crash
@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("kind", [LOOKUP, DEDUPES])
async def test_a_kill_behind_a_pooler_is_one_effect(stage: Stage, order_id: str, kind: str) -> None:
    stage.shop.fault("refunds", **SHOPS[kind])
    run = await stage.die_at(
        "payments.refund:after_call",
        refund_plan(order_id),
        approve=True,
        tool_modules=kind,
    )
    with stage.worker(tool_modules=kind):
        await run.completed()
    await one_of_each(stage, run, order_id)


@pytest.mark.guarantee("G1")
def test_tenants_that_share_connections_see_their_own_rows(ledger_url: str) -> None:
    ledger = Ledger(make_engine(ledger_url))
    scenes = [Scene.begin(ledger, f"tenant-{number}") for number in range(8)]
    wrong: list[str] = []

    def work(scene: Scene) -> None:
        for number in range(20):
            scene.committed(scene.call(key=f"{scene.tenant}:{number}", step_id=f"s{number}"))
            with ledger.transaction(scene.tenant) as tx:
                # By hand, past our own comparison: row-level security alone is asked.
                seen = tx.connection.execute(text("SELECT DISTINCT tenant_id FROM effects"))
                wrong.extend(set(seen.scalars()) - {scene.tenant})

    threads = [threading.Thread(target=work, args=(scene,)) for scene in scenes]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert wrong == []
    assert [len(scene.rows(effects)) for scene in scenes] == [20] * len(scenes)
    ledger.close()
    # What a transaction has said is gone with it, on the same connections of the pooler.
    bare = create_engine(as_url(ledger_url), connect_args={"prepare_threshold": None})
    with bare.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM effects")).scalar_one() == 0
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "0"
        assert "pg_temp" not in connection.execute(text("SHOW search_path")).scalar_one()
    bare.dispose()


def test_a_pooler_prepares_no_statement(ledger_url: str, postgres_ledgers: PostgresLedgers) -> None:
    def threshold(url: str) -> int | None:
        engine = make_engine(url)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            found: int | None = driver.prepare_threshold
        engine.dispose()
        return found

    assert threshold(ledger_url) is None
    assert threshold(postgres_ledgers.create()) == 5
