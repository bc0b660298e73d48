"""G1, G5: a ledger is kept by PostgreSQL as it needs it, whatever its defaults; or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import Connection, make_url, text

from surehand.activities.ledger.core.engine import LedgerUnfit, require_fit
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, open_ledger
from surehand.activities.ledger.effects.claims import claim_effect
from surehand.activities.ledger.effects.run_tree import bar_step
from surehand.activities.ledger.steps.entries import Barred
from tests.ledger.scene import RUN, STEP, Scene
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_ledgers: PostgresLedgers) -> str:
    """A database of this test's own, as workers see it."""
    return postgres_ledgers.create()


def set_default(server: PostgresServer, url: str, name: str, value: str) -> None:
    """Give a database another default, as its administrator may."""
    server.execute(f'ALTER DATABASE "{make_url(url).database}" SET {name} = {value}')


@pytest.fixture(params=["read committed", "repeatable read", "serializable"])
async def two(
    request: pytest.FixtureRequest, url: str, postgres_server: PostgresServer
) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """Two workers' ledgers over a database with another default isolation."""
    set_default(postgres_server, url, "default_transaction_isolation", f"'{request.param}'")
    async with open_ledger(url) as one, open_ledger(url) as other:
        yield one, other


async def test_a_late_claim_sees_the_bar_that_it_has_waited_for(two: tuple[Ledger, Ledger]) -> None:
    """Whatever isolation the database has as its default."""
    scene, late = Scene.begin(two[0], "t"), Scene(two[1], "t")

    def claim_late() -> object:
        with late.tx() as tx:
            return claim_effect(tx, scene.call())

    with scene.tx() as tx:
        tx.lock_step(RUN, STEP)
        waiting = asyncio.create_task(asyncio.to_thread(claim_late))
        while not _waiting(tx.connection):
            await asyncio.sleep(0.01)
        bar_step(tx, RUN, STEP)

    assert isinstance(await waiting, Barred)


def _waiting(connection: Connection) -> bool:
    found = connection.execute(
        text(
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database()))"
        )
    )
    return bool(found.scalar_one())


@pytest.mark.parametrize(
    ("default", "used"),
    [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
async def test_a_commit_is_kept_whatever_the_database_has_as_its_default(
    url: str, postgres_server: PostgresServer, default: str, used: str
) -> None:
    set_default(postgres_server, url, "synchronous_commit", default)
    async with open_ledger(url) as ledger:
        with ledger.transaction("t") as tx:
            found = tx.connection.execute(text("SHOW synchronous_commit"))
            level = tx.connection.execute(text("SHOW transaction_isolation"))

            assert (found.scalar_one(), level.scalar_one()) == (used, "read committed")


async def fit(url: str, *, fsync_off: bool = False) -> None:
    async with open_ledger(url) as ledger:
        require_fit(ledger.engine, fsync_off=fsync_off)


#: How servers that speak PostgreSQL's protocol answer instead of it.
PRETENDERS = {
    "another name": (
        "version() RETURNS text AS $$ SELECT 'CockroachDB CCL v24.1.0 (x86_64)' $$",
        "it is no PostgreSQL, it says: CockroachDB",
    ),
    "a derived name": (
        "version() RETURNS text AS $$ SELECT 'PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64' $$",
        "it is no PostgreSQL, it says: PostgreSQL 11.2-YB",
    ),
    "locks that do not lock": (
        "pg_try_advisory_xact_lock(bigint) RETURNS boolean AS $$ SELECT true $$",
        "its advisory locks do not lock",
    ),
}


@pytest.mark.parametrize("pretender", PRETENDERS)
async def test_a_server_that_only_speaks_postgresqls_protocol_is_refused(
    url: str, postgres_server: PostgresServer, pretender: str
) -> None:
    function, says = PRETENDERS[pretender]
    name = str(make_url(url).database)
    postgres_server.execute("CREATE SCHEMA pretended", name)
    postgres_server.execute("GRANT USAGE ON SCHEMA pretended TO PUBLIC", name)
    postgres_server.execute(f"CREATE FUNCTION pretended.{function} LANGUAGE sql", name)
    set_default(postgres_server, url, "search_path", "pretended, pg_catalog, public")

    with pytest.raises(LedgerUnfit, match=says) as refused:
        await fit(url, fsync_off=True)

    assert name in str(refused.value) and "SUREHAND_DATABASE_URL" in str(refused.value)


def _fsync(server: PostgresServer, value: str) -> None:
    server.execute(f"ALTER SYSTEM SET fsync = {value}")
    server.execute("SELECT pg_reload_conf()")
    until = time.monotonic() + 30
    while server.execute("SHOW fsync") != value:
        assert time.monotonic() < until


@pytest.fixture
def without_fsync(postgres_server: PostgresServer) -> Iterator[None]:
    _fsync(postgres_server, "off")
    yield
    _fsync(postgres_server, "on")


@pytest.mark.usefixtures("without_fsync")
async def test_a_server_that_does_not_wait_for_its_disk_is_refused(url: str) -> None:
    with pytest.raises(LedgerUnfit, match="fsync=off"):
        await fit(url)

    await fit(url, fsync_off=True)


async def test_a_server_that_is_away_is_not_called_unfit() -> None:
    with pytest.raises(LedgerUnavailable, match="cannot be reached") as away:
        await fit("postgresql://nobody@127.0.0.1:1/nothing")

    assert not isinstance(away.value, LedgerUnfit)
