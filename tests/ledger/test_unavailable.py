"""A database that is away is told from a mistake of ours, and is used again when it is back."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core.migrate import current_revision
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import (
    Ledger,
    LedgerUnavailable,
    Transaction,
    open_ledger,
)
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import claims
from surehand.activities.ledger.steps.entries import Claimed
from tests.ledger.databases import Database
from tests.ledger.scene import RUN, Scene
from tests.postgres_server import PostgresServer


@pytest.fixture
async def own_ledger(postgres_database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(postgres_database.url) as ledger:
        yield ledger


def connection_of(tx: Transaction) -> int:
    """Return the server process that a transaction talks to; a ledger at rest keeps one."""
    return int((tx.connection.execute(text("SELECT pg_backend_pid()"))).scalar_one())


def cut_off(server: PostgresServer, pid: int) -> None:
    """End a connection, as a restart of the database does."""
    server.execute(f"SELECT pg_terminate_backend({pid})")


@pytest.mark.postgres
def test_a_transaction_that_is_cut_off_says_so_and_leaves_nothing(
    own_ledger: Ledger, postgres_server: PostgresServer
) -> None:
    scene = Scene.begin(own_ledger, "cut-off-in-transaction")
    before = scene.events()

    with pytest.raises(LedgerUnavailable) as away, scene.tx() as tx:
        tx.event(RUN, "test.lost")
        cut_off(postgres_server, connection_of(tx))

    assert "\n" not in str(away.value)
    assert scene.events() == before


@pytest.mark.postgres
def test_a_database_that_is_back_is_used_again(
    own_ledger: Ledger, postgres_server: PostgresServer
) -> None:
    scene = Scene.begin(own_ledger, "cut-off-between")
    entry = scene.claimed(scene.call())
    with scene.tx() as tx:
        pid = connection_of(tx)
    cut_off(postgres_server, pid)

    with pytest.raises(LedgerUnavailable):
        scene.events()

    assert scene.entry(entry.entry_id) == entry


@pytest.mark.postgres
async def test_a_worker_that_is_stopped_in_a_transaction_keeps_its_locks_no_longer_than_patience(
    own_ledger: Ledger, postgres_database: Database
) -> None:
    scene = Scene.begin(own_ledger, "stopped-in-transaction")
    second = timedelta(seconds=1)
    async with open_ledger(postgres_database.url, patience=second) as stopped:
        with pytest.raises(LedgerUnavailable), stopped.transaction(scene.tenant) as tx:
            assert isinstance(claims.claim(tx, scene.call()), Claimed)
            # It says nothing from here on. Another one waits for what it has locked.
            entry = scene.claimed(scene.call(attempt=2))
            tx.event(RUN, "test.late")

        assert scene.row(effects)["holder"] == entry.holder
        with stopped.transaction(scene.tenant) as tx:
            assert tx.one(rows_of(effects, effects.c.entry_id)) is not None


@pytest.mark.postgres
async def test_a_transactional_tool_may_work_as_long_as_its_timeout_between_statements(
    own_ledger: Ledger,
) -> None:
    asked = text("SELECT current_setting('idle_in_transaction_session_timeout')")
    async with own_ledger.long_transaction("patient", "run-1", timedelta(minutes=2)) as opened:
        longest = await opened.do(lambda tx: tx.connection.execute(asked).scalar_one())

    assert longest == "130s"


def test_wrong_sql_is_our_mistake_and_not_taken_for_a_database_that_is_away(
    scene: Scene,
) -> None:
    with pytest.raises(DBAPIError, match="no_such_table"), scene.tx() as tx:
        tx.connection.execute(text("SELECT * FROM no_such_table"))


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("postgresql://nobody@127.0.0.1:1/ledger", id="postgresql"),
        pytest.param("sqlite:////proc/no-such-folder/ledger.db", id="sqlite"),
    ],
)
async def test_a_database_that_was_never_there_is_unavailable(url: str) -> None:
    async with open_ledger(url) as ledger:
        with pytest.raises(LedgerUnavailable), ledger.transaction("tenant"):
            raise AssertionError("no transaction can have begun")


def test_a_database_that_says_nothing_is_named_as_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/ledger"
        engine = create_engine(url, connect_args={"connect_timeout": 2})
        with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1.*: connection timeout"):
            current_revision(engine)
