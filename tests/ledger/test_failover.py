"""G5: an outcome in hand outlasts whatever a database says while another one takes its place."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg.errors
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.engine import unreachable
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import artifacts, effects
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from tests.ledger.attempts import Payment, Provider, effect_call, request_for
from tests.ledger.databases import Database
from tests.ledger.scene import LEASE_OVER, RUN, Scene
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresServer


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
async def own_ledger(standby: Standby, postgres_database: Database) -> AsyncIterator[Ledger]:
    url = make_url(postgres_database.url).set(database=standby.database)
    async with open_ledger(url.render_as_string(False), observer=standby) as ledger:
        yield ledger


@pytest.mark.postgres
async def test_an_outcome_waits_for_a_standby_that_may_not_write_yet(
    own_ledger: Ledger, standby: Standby
) -> None:
    @tool("payments.refund", effect=WRITE, recovery="human", irreversible=True)
    async def refund(params: Payment, ctx: ToolContext) -> str:
        """Apply it while the server goes."""
        standby.takes_over()
        return "r-1"

    scene = Scene.begin(own_ledger, "failed-over")

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


async def test_a_receipt_whose_outcome_the_database_refuses_is_kept_as_evidence(
    scene: Scene, database: Database
) -> None:
    refund: Tool = Provider([{"id": "r-1"}]).tool(recovery="human")

    with refusing(database, scene.tenant), pytest.raises(IntegrityError, match="refused"):
        await effect_call(scene, refund, request_for(scene, refund)).run()

    assert scene.row(effects)["state"] == "claimed"
    kept = await scene.artifacts.keep_in_ledger(scene.tenant, RUN, {"id": "r-1"})
    assert scene.row(artifacts)["content"] == kept.content
    [late] = scene.events(type_="effect.late_receipt")
    assert late["body"]["evidence"] == kept.digest
