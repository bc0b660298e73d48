"""G5 with standbys: what was acknowledged outlasts a failover, or people are warned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.standbys import Standbys, standbys_of
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


def test_without_a_synchronous_standby_commits_can_be_lost(asynchronous: Replicated) -> None:
    ledger = Ledger(make_engine(asynchronous.url(WORKER)))
    scene = Scene.begin(ledger, "default")
    asynchronous.wait_level()
    asynchronous.cut_off()
    scene.committed(scene.call())
    asynchronous.fail_over()
    ledger.engine.dispose()

    assert scene.rows(effects) == []
    ledger.close()


@pytest.mark.parametrize("user", [WORKER, SUPERUSER], ids=["worker", "who may see all"])
def test_an_asynchronous_standby_is_told_of(asynchronous: Replicated, user: str) -> None:
    engine = make_engine(asynchronous.url(user))
    told = standbys_of(engine).losing()

    assert told is not None and "can lose entries that were acknowledged" in told
    assert "\n" not in told
    assert STANDBY in told
    asynchronous.make_synchronous()
    assert standbys_of(engine).losing() is None
    engine.dispose()


def test_a_standby_next_in_line_is_told_of(synchronous: Replicated) -> None:
    second = PostgresServer.follow(synchronous.primary, "standby_2")
    kinds = "SELECT string_agg(sync_state, ' ' ORDER BY application_name) FROM pg_stat_replication"
    engine = make_engine(synchronous.url(SUPERUSER))
    try:
        synchronous.commit_on("FIRST 1 (standby_1, standby_2)")
        synchronous.wait(kinds, "sync potential")
        told = standbys_of(engine).losing()
        synchronous.commit_on("FIRST 2 (standby_1, standby_2)")
        synchronous.wait(kinds, "sync sync")
        assert standbys_of(engine).losing() is None
    finally:
        engine.dispose()
        second.remove()

    assert told is not None and "asynchronously: 1 (standby_2): " in told


def test_how_far_a_standby_is_behind_is_told_to_who_may_see_it(asynchronous: Replicated) -> None:
    ledger = Ledger(make_engine(asynchronous.url(WORKER)))
    scene = Scene.begin(ledger, "default")
    engine = make_engine(asynchronous.url(SUPERUSER))
    asynchronous.wait_level()
    asynchronous.cut_off()
    before = standbys_of(engine).behind_bytes
    scene.committed(scene.call())

    after = standbys_of(engine)
    assert (after.asynchronous, after.synchronous, after.missing) == ((STANDBY,), 0, 0)
    assert before is not None and after.behind_bytes is not None
    assert after.behind_bytes > before
    assert standbys_of(ledger.engine).behind_bytes is None
    engine.dispose()
    ledger.close()


def test_a_standby_that_is_configured_and_not_there_is_told_of(synchronous: Replicated) -> None:
    engine = make_engine(synchronous.url(WORKER))
    assert standbys_of(engine) == Standbys(synchronous=1)

    synchronous.standby.kill()
    synchronous.wait("SELECT count(*) FROM pg_stat_replication", "0")
    awaited = standbys_of(engine)
    synchronous.commit_on("")
    synchronous.wait("SHOW synchronous_standby_names", "")
    nobody = standbys_of(engine)
    synchronous.primary.execute("SELECT pg_create_physical_replication_slot('standby_1')")
    kept_log_for = standbys_of(engine)

    assert (awaited, nobody, kept_log_for) == (Standbys(missing=1), Standbys(), Standbys(missing=1))
    engine.dispose()


async def test_a_server_without_standbys_is_not_warned_of(ledger: Ledger) -> None:
    assert standbys_of(ledger.engine) == Standbys()


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


@pytest.mark.parametrize("user", [WORKER, SUPERUSER], ids=["worker", "who may see all"])
def test_as_many_standbys_are_missing_as_awaited(synchronous: Replicated, user: str) -> None:
    engine = make_engine(synchronous.url(user))
    found = {}
    for names in (
        "FIRST 1 (standby_1, standby_2)",
        'ANY 2 (standby_1, Standby_1, standby_2, "standby 3")',
        "2 (*)",
        "any 12(*)",
        'standby_1, "2 (of them)"',
        "*",
    ):
        synchronous.commit_on(names)
        synchronous.wait("SHOW synchronous_standby_names", names)
        synchronous.wait("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'", "0")
        found[names] = standbys_of(engine).missing

    assert list(found.values()) == [0, 1, 1, 11, 0, 0]
    engine.dispose()


def test_an_unawaited_standby_takes_nobodys_place(synchronous: Replicated) -> None:
    engine = make_engine(synchronous.url(SUPERUSER))
    synchronous.commit_on("standby_2")
    synchronous.wait("SELECT sync_state FROM pg_stat_replication", "async")

    assert standbys_of(engine) == Standbys(
        asynchronous=(STANDBY,), missing=1, behind_bytes=standbys_of(engine).behind_bytes
    )
    engine.dispose()
