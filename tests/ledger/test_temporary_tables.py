"""G1, G6: on PostgreSQL no table passes for one of the ledger's, whatever a session has made.

PostgreSQL looks for a table among the session's temporary ones first. So whoever may make those
gives a guard another table to read, unless the guard names where it looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Table, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.migrate import weak_guards
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import decisions, deletions, effects, events, steps
from surehand.activities.ledger.runs import deletion
from surehand.activities.ledger.steps.entries import Committed
from tests.cli.starter import Starter
from tests.ledger.databases import Database
from tests.ledger.scene import RUN, Scene
from tests.ledger_databases import OWNER, RETENTION, WORKER, PostgresLedgers
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres
#: What whoever writes SQL in a session can say first.
FIRST = "SET LOCAL search_path = pg_temp, public"


@pytest.fixture
def url(postgres_ledgers: PostgresLedgers, postgres_server: PostgresServer) -> str:
    """A database of this test's own, in which all roles may make temporary tables."""
    url = postgres_ledgers.create()
    name = make_url(url).database
    postgres_server.execute(f'GRANT TEMPORARY ON DATABASE "{name}" TO {WORKER}, {RETENTION}')
    return url


def of(url: str, role: str) -> str:
    return make_url(url).set(username=role).render_as_string(hide_password=False)


@pytest.fixture
async def scene(url: str) -> AsyncIterator[Scene]:
    async with open_ledger(url) as ledger:
        yield Scene.begin(ledger, "acme")


@pytest.fixture
async def keeper(url: str) -> AsyncIterator[Ledger]:
    async with open_ledger(of(url, RETENTION)) as ledger:
        yield ledger


def test_functions_look_among_temporary_tables_last(postgres_database: Database) -> None:
    engine = create_engine(postgres_database.owner_url)
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
            )
        ).all()
    engine.dispose()

    assert {"refuse_change", "deletions_begun"} <= {one.proname for one in found}
    wrong = [one for one in found if one.proconfig != ["search_path=public, pg_temp"]]
    assert wrong == []


@pytest.mark.parametrize("role", [WORKER, RETENTION])
@pytest.mark.parametrize("what", ["TEMPORARY TABLE x ()", "TABLE public.x ()", "SCHEMA x"])
def test_owners_alone_make_such_tables(postgres_database: Database, role: str, what: str) -> None:
    engine = create_engine(of(postgres_database.url, role))
    with pytest.raises(DBAPIError, match="permission denied"), engine.begin() as connection:
        connection.execute(text(f"CREATE {what}"))
    engine.dispose()


@pytest.mark.parametrize("table", [decisions, events, steps], ids=str)
def test_a_namesake_deletes_no_open_or_held_run(scene: Scene, keeper: Ledger, table: Table) -> None:
    scene.committed(scene.approved(scene.call()))
    with keeper.transaction(scene.tenant) as tx:
        deletion.hold_run(tx, RUN, by="lena", reason="legal hold")
    before = scene.rows(table)
    assert before

    refused = pytest.raises(DBAPIError, match="until their run is being deleted")
    with refused, keeper.transaction(scene.tenant) as tx:
        tx.connection.execute(
            text(
                "CREATE TEMP TABLE deletions AS SELECT tenant_id, run_id,"
                " NULL::bigint AS deleted_ms FROM public.runs"
            )
        )
        tx.connection.execute(text(FIRST))
        tx.connection.execute(text(f"DELETE FROM public.{table}"))

    assert scene.rows(table) == before


def test_a_tables_namesake_lets_no_run_that_is_open_go(scene: Scene, keeper: Ledger) -> None:
    refused = pytest.raises(DBAPIError, match="only what has ended is deleted")
    with refused, keeper.transaction(scene.tenant) as tx:
        namesake = "runs AS SELECT tenant_id, run_id, 1::bigint AS closed_ms FROM public.runs"
        tx.connection.execute(text(f"CREATE TEMP TABLE {namesake}"))
        tx.connection.execute(text(FIRST))
        tx.connection.execute(
            text(
                "INSERT INTO public.deletions (tenant_id, run_id, begun_ms, begun_by)"
                " VALUES (:tenant, :run, :now, 'somebody')"
            ),
            {"tenant": scene.tenant, "run": RUN, "now": tx.now_ms},
        )

    assert scene.rows(deletions) == []


@pytest.mark.guarantee("G1")
def test_a_tools_temporary_tables_catch_no_claim(scene: Scene, url: str) -> None:
    """The pool hands a tool's connection on; it has rolled back, and forgotten nothing."""
    mine = Scene(Ledger(make_engine(url)), scene.tenant)
    with mine.tx() as tx:
        for table in ("effects", "events", "runs", "steps"):
            tx.connection.execute(
                text(f"CREATE TEMP TABLE {table} (LIKE public.{table} INCLUDING ALL)")
            )
        tx.connection.execute(text("CREATE TEMP SEQUENCE effects_commit_no"))
        tx.connection.execute(text("SET search_path = pg_temp, public"))

    mine.committed(mine.call())
    mine.ledger.close()

    again = scene.claim(scene.call(step_id="another"))
    assert isinstance(again, Committed)
    assert len(scene.rows(effects)) == 1


def test_doctor_warns_of_what_could_pass_for_a_table_of_the_ledger(
    url: str, postgres_database: Database, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    for fit in (postgres_database.url, of(url, OWNER)):
        engine = make_engine(fit)
        assert weak_guards(engine) == []
        engine.dispose()
    name = str(make_url(url).database)
    postgres_server.execute("ALTER FUNCTION refuse_change() RESET search_path", name)
    postgres_server.execute(f"GRANT CREATE ON SCHEMA public TO {WORKER}", name)

    own = {
        "SUREHAND_DATABASE_URL": url,
        "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
        "SUREHAND_ARTIFACTS": str(tmp_path / "artifacts"),
        "SUREHAND_FSYNC_OFF": "allow",
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
    }
    checks = Starter(own, tmp_path)("doctor", "--json").document()["checks"]
    (database,) = [one["detail"] for one in checks if one["name"] == "database"]

    assert f"warning: role {WORKER} may make temporary tables" in database
    assert f"warning: role {WORKER} may make tables and functions" in database
    assert "warning: functions of the ledger without a search_path: refuse_change: " in database
