"""A database that is away is told from a mistake of ours, and is used again when it is back."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from activities.ledger.migrate import current_revision
from activities.ledger.store import Ledger, LedgerUnavailable, Transaction, open_ledger
from tests.ledger.databases import Database
from tests.ledger.scene import RUN, Scene
from tests.postgres_server import PostgresServer


@pytest.fixture
async def own_ledger(postgres_database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(postgres_database.url) as ledger:
        yield ledger


async def connection_of(tx: Transaction) -> int:
    """Return the server process that a transaction talks to; a ledger at rest keeps one."""
    return int((await tx.connection.execute(text("SELECT pg_backend_pid()"))).scalar_one())


def cut_off(server: PostgresServer, pid: int) -> None:
    """End a connection, as a restart of the database does."""
    server.execute(f"SELECT pg_terminate_backend({pid})")


@pytest.mark.postgres
async def test_a_transaction_that_is_cut_off_says_so_and_leaves_nothing(
    own_ledger: Ledger, postgres_server: PostgresServer
) -> None:
    scene = await Scene.begin(own_ledger, "cut-off-in-transaction")
    before = await scene.events()

    with pytest.raises(LedgerUnavailable) as away:
        async with scene.tx() as tx:
            tx.event(RUN, "test.lost")
            cut_off(postgres_server, await connection_of(tx))

    assert "\n" not in str(away.value)
    assert await scene.events() == before


@pytest.mark.postgres
async def test_a_database_that_is_back_is_used_again(
    own_ledger: Ledger, postgres_server: PostgresServer
) -> None:
    scene = await Scene.begin(own_ledger, "cut-off-between")
    entry = await scene.claimed(scene.call())
    async with scene.tx() as tx:
        pid = await connection_of(tx)
    cut_off(postgres_server, pid)

    with pytest.raises(LedgerUnavailable):
        await scene.events()

    assert await scene.entry(entry.entry_id) == entry


async def test_wrong_sql_is_our_mistake_and_not_taken_for_a_database_that_is_away(
    scene: Scene,
) -> None:
    with pytest.raises(DBAPIError, match="no_such_table"):
        async with scene.tx() as tx:
            await tx.connection.execute(text("SELECT * FROM no_such_table"))


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("postgresql+asyncpg://nobody@127.0.0.1:1/ledger", id="postgresql"),
        pytest.param("sqlite+aiosqlite:////proc/no-such-folder/ledger.db", id="sqlite"),
    ],
)
async def test_a_database_that_was_never_there_is_unavailable(url: str) -> None:
    async with open_ledger(url) as ledger:
        with pytest.raises(LedgerUnavailable):
            async with ledger.transaction("tenant"):
                raise AssertionError("no transaction can have begun")


async def test_a_database_that_says_nothing_is_named_as_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+asyncpg://nobody@127.0.0.1:{silent.getsockname()[1]}/ledger"
        engine = create_async_engine(url, connect_args={"timeout": 0.2})
        with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1.*: TimeoutError"):
            await current_revision(engine)
