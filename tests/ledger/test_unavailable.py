"""A database that is away, full or in the middle of a failover loses and repeats nothing."""

from __future__ import annotations

import asyncio
import itertools
import resource
import shutil
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg.errors
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from structlog.testing import capture_logs
from temporalio.exceptions import ApplicationError

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.engine import unreachable
from surehand.activities.ledger.core.migrate import current_revision
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import (
    Ledger,
    LedgerUnavailable,
    Transaction,
    open_ledger,
)
from surehand.activities.ledger.core.tables import artifacts, effects
from surehand.activities.ledger.effects import claims
from surehand.activities.ledger.steps.entries import Claimed
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from tests.ledger.attempts import Payment, Provider, effect_call, request_for
from tests.ledger.databases import Database
from tests.ledger.scene import LARGEST_INLINE, LEASE_OVER, RUN, Scene
from tests.ledger_databases import PostgresLedgers
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
def test_a_cut_transaction_says_so(own_ledger: Ledger, postgres_server: PostgresServer) -> None:
    scene = Scene.begin(own_ledger, "cut-off-in-transaction")
    before = scene.events()

    with pytest.raises(LedgerUnavailable) as away, scene.tx() as tx:
        tx.event(RUN, "test.lost")
        cut_off(postgres_server, connection_of(tx))

    assert "\n" not in str(away.value)
    assert scene.events() == before


@pytest.mark.postgres
def test_a_database_may_come_back(own_ledger: Ledger, postgres_server: PostgresServer) -> None:
    scene = Scene.begin(own_ledger, "cut-off-between")
    entry = scene.claimed(scene.call())
    with scene.tx() as tx:
        pid = connection_of(tx)
    cut_off(postgres_server, pid)

    with pytest.raises(LedgerUnavailable):
        scene.events()

    assert scene.entry(entry.entry_id) == entry


@pytest.mark.postgres
async def test_a_stopped_worker_frees_it(own_ledger: Ledger, postgres_database: Database) -> None:
    scene = Scene.begin(own_ledger, "stopped-in-transaction")
    second = timedelta(seconds=1)
    async with open_ledger(postgres_database.url, patience=second) as stopped:
        with pytest.raises(LedgerUnavailable), stopped.transaction(scene.tenant) as tx:
            assert isinstance(claims.claim_effect(tx, scene.call()), Claimed)
            # It says nothing from here on. Another one waits for what it has locked.
            entry = scene.claimed(scene.call(attempt=2))
            tx.event(RUN, "test.late")

        assert scene.row(effects)["holder"] == entry.holder
        with stopped.transaction(scene.tenant) as tx:
            assert tx.one(rows_of(effects, effects.c.entry_id)) is not None


@pytest.mark.postgres
async def test_a_transactional_tool_may_work_for_its_timeout(own_ledger: Ledger) -> None:
    asked = text("SELECT current_setting('idle_in_transaction_session_timeout')")
    async with own_ledger.long_transaction("patient", "run-1", timedelta(minutes=2)) as opened:
        longest = await opened.do(lambda tx: tx.connection.execute(asked).scalar_one())

    assert longest == "130s"


def test_wrong_sql_is_our_mistake_and_not_taken_for_a_database_that_is_away(scene: Scene) -> None:
    with pytest.raises(DBAPIError, match="no_such_table"), scene.tx() as tx:
        tx.connection.execute(text("SELECT * FROM no_such_table"))


def test_a_database_that_says_nothing_is_named_as_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/ledger"
        engine = create_engine(url, connect_args={"connect_timeout": 2})
        with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1.*: connection timeout"):
            current_revision(engine)


#: As large as a receipt gets in the ledger itself: it needs pages that are not there yet.
RECEIPT = {"id": "r-1", "note": "x" * 8000}
#: Beyond all that the ledger of a test holds.
PLENTY = 1_000_000  # pages
#: Larger than what this process writes besides, smaller than the artifact.
FILE_LIMIT = 300_000  # bytes
LARGE = {"lines": ["x" * 1000 for _ in range(1000)]}


@pytest.fixture
async def small(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Ledger]:
    """A ledger of this test's own, whose disk can be full."""
    file = tmp_path / "ledger.db"
    shutil.copy(sqlite_template, file)
    async with open_ledger(f"sqlite:///{file}") as ledger:
        yield ledger


def pages(ledger: Ledger, most: int) -> None:
    """Let the file have so many pages, or those that it has already: real SQLITE_FULL errors."""
    with ledger.transaction("nobody") as tx:
        tx.execute(text(f"PRAGMA max_page_count={most}"))


def fill(scene: Scene) -> None:
    pages(scene.ledger, 1)
    with pytest.raises(LedgerUnavailable, match="database or disk is full"):
        for _ in range(100):
            with scene.tx() as tx:
                tx.event("run-1", "test.filler", text="x" * 8000)


def refund(calls: list[str], before_the_answer: Any = None) -> Tool:
    async def pay(params: Payment, ctx: ToolContext) -> Any:
        calls.append(ctx.idempotency_key)
        if before_the_answer is not None:
            before_the_answer()
        return RECEIPT

    return tool("payments.refund", effect=WRITE, irreversible=True, recovery="human")(pay)


async def test_nothing_is_called_while_the_disk_of_the_ledger_is_full(small: Ledger) -> None:
    scene = Scene.begin(small, "full-before")
    calls: list[str] = []
    loaded = refund(calls)
    large = request_for(scene, loaded, params={"order": "x" * 8000, "amount": "1.00"})
    fill(scene)
    with pytest.raises(LedgerUnavailable, match="database or disk is full"):
        await effect_call(scene, loaded, large).run()
    assert calls == []

    pages(small, PLENTY)
    assert isinstance(await effect_call(scene, loaded, large).run(), Done)
    assert len(calls) == 1


async def test_an_outcome_waits_until_there_is_space_and_says_so(small: Ledger) -> None:
    scene = Scene.begin(small, "full-after")
    calls: list[str] = []
    loaded = refund(calls, lambda: fill(scene))
    with capture_logs() as said:
        running = asyncio.create_task(effect_call(scene, loaded, request_for(scene, loaded)).run())
        while not any(line["event"] == "ledger.unavailable" for line in said):
            await asyncio.wait({running}, timeout=0.01)
            assert not running.done(), running
        pages(small, PLENTY)
        result = await running

    assert isinstance(result, Done) and result.receipt == RECEIPT
    assert len(calls) == 1
    [warned, *_] = [line for line in said if line["event"] == "ledger.unavailable"]
    assert "database or disk is full" in warned["error"]
    assert warned["holding"] == "an outcome"
    [entry] = scene.rows(effects)
    assert (entry["state"], entry["receipt"]) == ("committed", RECEIPT)
    assert len(scene.events(type_="effect.committed")) == 1


@pytest.mark.postgres
async def test_a_postgresql_without_space_is_unavailable(postgres_database: Database) -> None:
    disk_full = "DO $$ BEGIN RAISE EXCEPTION 'No space left' USING ERRCODE = '53100'; END $$"
    async with open_ledger(postgres_database.url) as ledger:
        full = pytest.raises(LedgerUnavailable, match="No space left")
        with full, ledger.transaction("tenant") as tx:
            tx.execute(text(disk_full))


@contextmanager
def no_large_files() -> Iterator[None]:
    """Let this process write no large file: real write errors, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_full_artifact_disk_holds_up_no_outcome(scene: Scene, tmp_path: Path) -> None:
    place = str(tmp_path / "artifacts")
    folder = ArtifactStore(place, scene.ledger, largest_inline=LARGEST_INLINE)
    provider = Provider([LARGE])
    loaded = provider.tool(recovery="human")
    call = effect_call(scene, loaded, request_for(scene, loaded), artifacts=folder)
    with no_large_files(), capture_logs() as said:
        result = await call.run()

    assert isinstance(result, Done)
    assert len(provider.keys) == 1
    assert [line["log_level"] for line in said if line["event"] == "artifact.kept_in_ledger"] == [
        "warning"
    ]
    [row] = scene.rows(artifacts)
    assert row["content"] is not None
    assert (scene.row(effects))["state"] == "committed"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@dataclass
class Standby:
    """A server that takes a ledger's place, and answers before it may write."""

    server: PostgresServer
    database: str
    refused: int = 0

    def takes_over(self) -> None:
        """Let no connection write from now on."""
        self.server.execute(
            f'ALTER DATABASE "{self.database}" SET default_transaction_read_only=on'
        )
        self.server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{self.database}'"
        )

    def transaction(self, outcome: str, seconds: float) -> None:
        """Become the one that writes once it has refused three transactions."""
        self.refused += outcome == "unavailable"
        if self.refused == 3:
            # New connections only: those that it had are to be left.
            self.server.execute(
                f'ALTER DATABASE "{self.database}" RESET default_transaction_read_only'
            )

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        """Take no note of it."""


@pytest.fixture
def standby(postgres_server: PostgresServer, postgres_ledgers: PostgresLedgers) -> Standby:
    return Standby(postgres_server, str(make_url(postgres_ledgers.create()).database))


@pytest.fixture
async def failing_over_ledger(
    standby: Standby, postgres_database: Database
) -> AsyncIterator[Ledger]:
    url = make_url(postgres_database.url).set(database=standby.database)
    async with open_ledger(url.render_as_string(False), observer=standby) as ledger:
        yield ledger


@pytest.mark.postgres
async def test_outcomes_wait_for_a_standby(failing_over_ledger: Ledger, standby: Standby) -> None:
    @tool("payments.refund", effect=WRITE, recovery="human", irreversible=True)
    async def refund(params: Payment, ctx: ToolContext) -> str:
        """Apply it while the server goes."""
        standby.takes_over()
        return "r-1"

    scene = Scene.begin(failing_over_ledger, "failed-over")

    result = await effect_call(scene, refund, request_for(scene, refund)).run()

    assert isinstance(result, Done)
    assert standby.refused >= 3
    assert (scene.row(effects)["state"], scene.row(effects)["receipt"]) == ("committed", "r-1")


@pytest.mark.parametrize(
    "state", ["08006", "25006", "25P03", "25P04", "40001", "53300", "55P03", "57P01", "58030",
              "XX000"],
)  # fmt: skip
def test_what_a_server_says_that_cannot_now_is_told_from_what_it_refuses(state: str) -> None:
    said = psycopg.errors.lookup(state)()
    assert unreachable(DBAPIError("", {}, said))
    for refused in ("23505", "22P05", "42P01"):
        assert not unreachable(DBAPIError("", {}, psycopg.errors.lookup(refused)()))


@contextmanager
def refusing(database: Database, tenant: str) -> Iterator[None]:
    """Have the database refuse each commit of a tenant's effects."""
    name = f"refusing_{next(_numbers)}"
    when = f"WHEN (NEW.tenant_id = '{tenant}' AND NEW.state = 'committed')"
    if database.dialect == "sqlite":
        make = [
            f"CREATE TRIGGER {name} BEFORE UPDATE ON effects {when}"
            " BEGIN SELECT RAISE(ABORT, 'refused'); END"
        ]
        drop = f"DROP TRIGGER {name}"
    else:
        make = [
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'refused' USING ERRCODE = 'check_violation'; END $$",
            f"CREATE TRIGGER {name} BEFORE UPDATE ON effects FOR EACH ROW {when}"
            f" EXECUTE FUNCTION {name}()",
        ]
        drop = f"DROP FUNCTION {name} CASCADE"
    engine = create_engine(make_url(database.owner_url))
    try:
        with engine.begin() as connection:
            for statement in make:
                connection.execute(text(statement))
        yield
        with engine.begin() as connection:
            connection.execute(text(drop))
    finally:
        engine.dispose()


_numbers = itertools.count(1)


async def test_a_receipt_that_comes_late_can_be_read_by_whoever_reconciles_it(scene: Scene) -> None:
    class Slow(Provider):
        async def pay(self, params: Payment, ctx: ToolContext) -> Any:
            """Take so long that another attempt takes over."""
            scene.claim(request_for(scene, refund, attempt=2), LEASE_OVER)
            return await super().pay(params, ctx)

    refund = Slow([{"id": "r-1"}]).tool(recovery="human")

    with pytest.raises(ApplicationError, match="taken"):
        await effect_call(scene, refund, request_for(scene, refund)).run()

    kept = await scene.artifacts.keep_in_ledger(scene.tenant, RUN, {"id": "r-1"})
    assert scene.row(artifacts)["content"] == kept.content
    [late] = scene.events(type_="effect.late_receipt")
    assert late["body"]["evidence"] == kept.digest


async def test_a_refused_outcomes_receipt_is_evidence(scene: Scene, database: Database) -> None:
    refund: Tool = Provider([{"id": "r-1"}]).tool(recovery="human")

    with refusing(database, scene.tenant), pytest.raises(IntegrityError, match="refused"):
        await effect_call(scene, refund, request_for(scene, refund)).run()

    assert scene.row(effects)["state"] == "claimed"
    kept = await scene.artifacts.keep_in_ledger(scene.tenant, RUN, {"id": "r-1"})
    assert scene.row(artifacts)["content"] == kept.content
    [late] = scene.events(type_="effect.late_receipt")
    assert late["body"]["evidence"] == kept.digest
