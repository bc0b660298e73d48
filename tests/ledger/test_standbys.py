"""G5 with standbys: what was acknowledged outlasts a failover, or people are warned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from surehand.activities.ledger.core.engine import find_asynchronous_standbys, make_engine
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.core.tables import effects
from surehand.process.dev_server import DevServer
from tests.cli.starter import Starter
from tests.conftest import missing
from tests.ledger.scene import Scene
from tests.ledger_databases import WORKER
from tests.postgres_server import SUPERUSER, PostgresMissing, PostgresServer
from tests.replication import STANDBY, Replicated
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.postgres, pytest.mark.guarantee("G5")]


@pytest.fixture
def asynchronous() -> Iterator[Replicated]:
    try:
        with Replicated.running(synchronous=False) as pair:
            yield pair
    except PostgresMissing as error:
        missing(str(error))


@pytest.fixture
def synchronous() -> Iterator[Replicated]:
    try:
        with Replicated.running(synchronous=True) as pair:
            yield pair
    except PostgresMissing as error:
        missing(str(error))


def claim_until_it_ends(scene: Scene, prefix: str, acknowledged: list[str]) -> None:
    """Claim and commit one key after the other; keep those whose commit was acknowledged."""
    for number in range(100_000):
        request = scene.call(key=f"{prefix}:{number}", step_id=f"{prefix}-{number}")
        try:
            entry = scene.claimed(request)
            acknowledged.append(entry.entry_id)
            scene.commit(request, entry)
        except LedgerUnavailable:
            return
        acknowledged.append(f"{entry.entry_id} committed")


def test_an_acknowledged_commit_survives_on_a_synchronous_standby(synchronous: Replicated) -> None:
    ledger = Ledger(make_engine(synchronous.url(WORKER)))
    scene = Scene.begin(ledger, "default")
    acknowledged: list[str] = []
    work = [
        threading.Thread(target=claim_until_it_ends, args=(scene, name, acknowledged))
        for name in ("a", "b", "c", "d")
    ]
    for one in work:
        one.start()
    while len(acknowledged) < 100:
        assert any(one.is_alive() for one in work)
    synchronous.fail_over()
    for one in work:
        one.join()

    found = scene.rows(effects)
    there = {row["entry_id"] for row in found}
    there |= {f"{row['entry_id']} committed" for row in found if row["state"] == "committed"}
    assert set(acknowledged) <= there
    ledger.close()


def test_an_asynchronous_standby_is_told_of(asynchronous: Replicated) -> None:
    """Also to a worker, which may not see all that PostgreSQL knows of it."""
    engines = [make_engine(asynchronous.url(user)) for user in (WORKER, SUPERUSER)]
    for engine in engines:
        told = find_asynchronous_standbys(engine)
        assert told is not None and "can lose entries that were acknowledged" in told
        assert "\n" not in told
        assert STANDBY in told
    asynchronous.make_synchronous()
    for engine in engines:
        assert find_asynchronous_standbys(engine) is None
        engine.dispose()


def test_a_standby_next_in_line_is_told_of(synchronous: Replicated) -> None:
    second = PostgresServer.follow(synchronous.primary, "standby_2")
    kinds = "SELECT string_agg(sync_state, ' ' ORDER BY application_name) FROM pg_stat_replication"
    engine = make_engine(synchronous.url(SUPERUSER))
    try:
        synchronous.commit_on("FIRST 1 (standby_1, standby_2)")
        synchronous.wait(kinds, "sync potential")
        told = find_asynchronous_standbys(engine)
        synchronous.commit_on("FIRST 2 (standby_1, standby_2)")
        synchronous.wait(kinds, "sync sync")
        assert find_asynchronous_standbys(engine) is None
    finally:
        engine.dispose()
        second.remove()

    assert told is not None and "asynchronously: 1 (standby_2): " in told


async def test_a_server_without_standbys_is_not_warned_of(ledger: Ledger) -> None:
    assert find_asynchronous_standbys(ledger.engine) is None


async def test_a_worker_and_doctor_warn_of_an_asynchronous_standby_in_one_line(
    asynchronous: Replicated, temporal_server: DevServer, tmp_path: Path
) -> None:
    own = {
        "SUREHAND_DATABASE_URL": asynchronous.url(WORKER),
        "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
        "SUREHAND_ARTIFACTS": str(tmp_path / "artifacts"),
        "TEMPORAL_ADDRESS": temporal_server.address,
    }
    checks = Starter(own, tmp_path)("doctor", "--json").document()["checks"]
    (database,) = [one for one in checks if one["name"] == "database"]
    assert database["ok"] and "warning: standbys" in database["detail"]

    with WorkerProcess(own, tmp_path) as worker:
        worker.wait_said("worker.standby_asynchronous")


def test_an_unawaited_standby_takes_nobodys_place(synchronous: Replicated) -> None:
    engine = make_engine(synchronous.url(SUPERUSER))
    synchronous.commit_on("standby_2")
    synchronous.wait("SELECT sync_state FROM pg_stat_replication", "async")

    told = find_asynchronous_standbys(engine)
    assert told is not None and f"asynchronously: 1 ({STANDBY}): " in told
    engine.dispose()
