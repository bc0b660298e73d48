"""One database of each kind for all tests; each test has a tenant of its own in it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.ledger.migrate import migrate
from activities.ledger.store import Ledger, open_ledger
from tests.ledger import databases
from tests.ledger.databases import Database
from tests.ledger.scene import Scene
from tests.postgres_server import PostgresServer

BOTH = [
    pytest.param("sqlite", id="sqlite"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.postgres),
]
_tenants = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with databases.postgres() as server:
        yield server


@pytest.fixture(scope="session")
async def sqlite_database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    database = databases.empty_sqlite(tmp_path_factory.mktemp("ledger"), "ledger.db")
    await migrate(database.owner_url)
    return database


@pytest.fixture(scope="session")
async def postgres_database(postgres_server: PostgresServer) -> Database:
    database = databases.empty_postgres(postgres_server, "ledger")
    await migrate(database.owner_url)
    databases.grant_worker(postgres_server, "ledger")
    return database


@pytest.fixture(scope="session", params=BOTH)
def database(request: pytest.FixtureRequest) -> Database:
    """Every test of the ledger runs over both."""
    found: Database = request.getfixturevalue(
        "sqlite_database" if request.param == "sqlite" else "postgres_database"
    )
    return found


@pytest.fixture(scope="session")
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(database.url) as opened:
        yield opened


@pytest.fixture
async def scene(ledger: Ledger) -> Scene:
    """A tenant nobody else has, with one open run."""
    return await Scene.begin(ledger, f"tenant-{next(_tenants)}")


@pytest.fixture
async def other(ledger: Ledger) -> Scene:
    """Another tenant of the same database, with an open run of the same id."""
    return await Scene.begin(ledger, f"tenant-{next(_tenants)}")


@pytest.fixture(params=BOTH)
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database without tables."""
    if request.param == "sqlite":
        return databases.empty_sqlite(tmp_path, "empty.db")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return databases.empty_postgres(server, f"empty_{next(_tenants)}")
