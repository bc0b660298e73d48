"""One database of each kind for all tests; each test has a tenant of its own in it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from surehand.activities.ledger.core.store import Ledger, open_ledger
from tests.ledger import databases
from tests.ledger.databases import Database
from tests.ledger.people import OWNED, owned
from tests.ledger.scene import WORKERS, Scene
from tests.ledger_databases import DATABASES, OWNER, RETENTION, WORKER, PostgresLedgers
from tests.postgres_server import PostgresServer
from tests.run_keys import AllKnown, encrypted
from tests.variants.credits import TABLE

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)  # while the cases of both databases are here
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Play each case of a table that is marked ``in_turns`` on one of the databases only.

    Along each axis of a table they take turns: where there are two, each value meets both.
    """
    places: dict[tuple[Path, str, int], dict[str, int]] = {}

    def is_played(item: pytest.Item) -> bool:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("in_turns") is None:
            return True
        turn = 0
        for axis, value in enumerate(item.callspec._idlist):
            known = places.setdefault((item.path, item.originalname, axis), {})
            turn += known.setdefault(value, len(known))
        return turn % len(DATABASES) == 0

    items[:] = [item for item in items if is_played(item)]


@pytest.fixture(scope="session")
def sqlite_database(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Database:
    file = tmp_path_factory.mktemp("conformance") / "ledger.db"
    shutil.copy(sqlite_template, file)
    return databases.sqlite(file)


@pytest.fixture(scope="session")
def postgres_database(
    postgres_server: PostgresServer, postgres_ledgers: PostgresLedgers
) -> Database:
    return databases.postgresql(postgres_server, postgres_ledgers.create())


@pytest.fixture(scope="session", params=DATABASES)
def database(request: pytest.FixtureRequest) -> Database:
    """Every test of the ledger runs over both."""
    name = "sqlite_database" if request.param == "sqlite" else "postgres_database"
    found: Database = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session")
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(database.url, channels=("log",)) as opened:
        opened.keys = AllKnown() if encrypted() else None
        with owned(opened) as owner:  # to connect takes longer than what most tests do
            OWNED[opened] = owner
            yield opened
            del OWNED[opened]


@pytest.fixture(scope="module")
async def workers(database: Database) -> AsyncIterator[list[Ledger]]:
    """As many workers as a deployment may have; each has its own connections."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_ledger(database.url)) for _ in range(WORKERS)]


@pytest.fixture
def scene(ledger: Ledger) -> Scene:
    """A tenant nobody else has, with one open run."""
    return Scene.begin(ledger, f"tenant-{next(_numbers)}")


@pytest.fixture
def other(ledger: Ledger) -> Scene:
    """Another tenant of the same database, with an open run of the same id."""
    return Scene.begin(ledger, f"tenant-{next(_numbers)}")


@pytest.fixture(params=DATABASES)
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return databases.sqlite(tmp_path / "empty.db")
    request.getfixturevalue("postgres_ledgers")  # makes the roles
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return databases.postgresql(server, server.create_database(f"empty_{next(_numbers)}", OWNER))


@pytest.fixture(scope="session")
def credits_table(database: Database) -> None:
    """The table on which transactional tools work."""
    engine = create_engine(database.owner_url)
    with engine.begin() as connection:
        connection.execute(text(TABLE))
        if database.dialect == "postgresql":
            connection.execute(text(f"GRANT SELECT, INSERT ON credits TO {WORKER}"))
    engine.dispose()


@pytest.fixture(scope="session")
async def keeper(database: Database) -> AsyncIterator[Ledger]:
    """The ledger, by the role of the retention; SQLite has no roles."""
    url = make_url(database.url)
    if database.dialect == "postgresql":
        url = url.set(username=RETENTION)
    async with open_ledger(url.render_as_string(hide_password=False)) as opened:
        yield opened
