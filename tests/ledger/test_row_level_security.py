"""On PostgreSQL the database itself keeps tenants apart, also from SQL that forgets to ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger import limits
from surehand.activities.ledger.approvals.decisions import Lifting, vote_for_lift
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.halts import LiftPolicy, halt_calls
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.runs import deletion, keys, lifecycle, steering
from surehand.activities.ledger.runs.keys import add_tenant
from surehand.activities.ledger.steps import artifacts
from surehand.process.ciphers import Wrapped
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.steering import CancelRun
from tests.ledger.databases import Database
from tests.ledger.people import SOMEBODYS_KEY, administration, person
from tests.ledger.quotas import limited
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene
from tests.ledger.standing import ask, granted
from tests.ledger.test_lifts import lift_decision
from tests.ledger.test_limits import use
from tests.ledger.test_recovery import save
from tests.ledger.test_steering import sent
from tests.ledger_databases import OWNER, RETENTION, TENANT_TABLES, WORKER

pytestmark = pytest.mark.postgres
ROLES = [WORKER, OWNER]
#: Only an administrator writes these.
PEOPLE = [
    "principals",
    "grants",
    "principal_keys",
    "principal_changes",
    "deputies",
    "quotas",
    "standing_approvals",
    "deletions",
    "retention_rounds",
    "holds",
    "tenants",
]
#: Workers add to these, and may change some columns of a row at most.
ADDED_TO = [
    "approvals",
    "bars",
    "checkpoints",
    "halts",
    "limit_uses",
    "plans",
    "replays",
    "run_keys",
    "standing_uses",
]


@pytest.fixture(scope="session")
async def worker_ledger(postgres_database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(postgres_database.url, channels=("log",)) as ledger:
        yield ledger


@pytest.fixture(scope="session")
async def scenes(worker_ledger: Ledger, postgres_database: Database) -> tuple[Scene, Scene]:
    """Two tenants, each with a row in every table."""
    found = [Scene.begin(worker_ledger, f"rls-{name}") for name in ("ours", "theirs")]
    for scene in found:
        limited(scene, effects_per_hour=1000)
        with administration(scene) as tx:
            add_tenant(tx, "a", "root")
        gated = scene.approved(scene.call())
        scene.asked(gated)
        scene.begin_undo(step_id="barred")
        scene.open_run(OTHER_RUN)
        scene.committed(scene.call(key="replayed", run_id=OTHER_RUN))
        scene.claim(scene.call(key="replayed"))
        kept = await scene.artifacts.keep(scene.tenant, RUN, "x" * 9000)
        with scene.tx() as tx:
            artifacts.record_artifact(tx, RUN, STEP, kept)
            artifacts.begin_draft(tx, RUN, STEP, "sha256:0")
            keys.add_key(tx, RUN, Wrapped("kek", b"wrapped"))
        save(scene, "before")
        scene.hold("account:7")
        with scene.tx() as tx:
            steering.judge_steering(tx, sent(scene, CancelRun(actor="ann")), Assurance.OPEN)
        person(scene, "ann", "manager")
        person(scene, "bob")
        with administration(scene) as tx:
            principals.name_deputy(tx, "ann", "bob", datetime.now(UTC), "root")
            principals.add_key(tx, "ann", f"key-{scene.tenant}", SOMEBODYS_KEY, "root")
        granted(scene, "ann")
        ask(scene, step_id="standing")
        deleted_and_held(scene, postgres_database)
        with scene.tx() as tx:
            limits.count_uses(tx, [use("1")], "ef-1")
            made = halt_calls(tx, "ann", "it pays twice", tool="mail.send")
            asks = Lifting(LiftPolicy(roles=("manager",), quorum=2))
            assert vote_for_lift(tx, lift_decision("ann", made), asks)
        for table in TENANT_TABLES:
            assert _count_as(scene, table) > 0, table
    return found[0], found[1]


def deleted_and_held(scene: Scene, database: Database) -> None:
    """A run that is going, and one that somebody keeps, by the role of the retention."""
    scene.open_run("old")
    with scene.tx() as tx:
        asked = CloseRun(tenant=scene.tenant, run_id="old", state=RunState.COMPLETED)
        lifecycle.close_run(tx, asked)
    url = make_url(database.url).set(username=RETENTION)
    retention = Ledger(make_engine(url.render_as_string(hide_password=False)))
    with retention.transaction(scene.tenant) as tx:
        assert deletion.begin_deletion(tx, "old", by="rita") == ["old"]
        deletion.hold_run(tx, OTHER_RUN, by="rita", reason="")
        deletion.record_round(tx, failed=False)
    retention.close()


def _count_as(scene: Scene, table: str) -> int:
    with scene.tx() as tx:
        return int((tx.connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


@pytest.fixture(params=ROLES)
def engine(request: pytest.FixtureRequest, postgres_database: Database) -> Iterator[Engine]:
    """Connections of the worker, which owns nothing, and of the owner, who is no superuser."""
    url = postgres_database.url if request.param == WORKER else postgres_database.owner_url
    engine = create_engine(url)
    yield engine
    engine.dispose()


def _be(connection: Connection, tenant: str) -> None:
    connection.execute(
        text("SELECT set_config('surehand.tenant', :tenant, true)"), {"tenant": tenant}
    )


def test_neither_role_could_pass_the_policies_by(engine: Engine) -> None:
    with engine.connect() as connection:
        role = connection.execute(
            text("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
        )
        assert role.scalar_one() is False


def refusal(engine: Engine, tenant: str, sql: str) -> str:
    """Return why the database refuses a tenant's statement; nothing if it does not."""
    try:
        with engine.begin() as connection:
            _be(connection, tenant)
            connection.execute(text(sql))
    except DBAPIError as error:
        return str(error.orig)
    return ""


def test_a_query_without_a_filter_shows_one_tenant(
    scenes: tuple[Scene, Scene], engine: Engine
) -> None:
    for table in TENANT_TABLES:
        tenants = text(f"SELECT DISTINCT tenant_id FROM {table}")
        with engine.begin() as connection:
            assert connection.execute(tenants).scalars().all() == [], table  # of no tenant
            _be(connection, scenes[0].tenant)
            assert connection.execute(tenants).scalars().all() == [scenes[0].tenant], table


def test_a_row_cannot_be_written_for_another_tenant(
    scenes: tuple[Scene, Scene], engine: Engine
) -> None:
    for table in TENANT_TABLES:
        # A whole row of ours, with nothing changed but the tenant.
        copied = f'(jsonb_populate_record(t, \'{{"tenant_id": "{scenes[1].tenant}"}}\')).*'
        refused = refusal(
            engine, scenes[0].tenant, f"INSERT INTO {table} SELECT {copied} FROM {table} t LIMIT 1"
        )
        # Of a halt a worker writes a part: not that it was lifted.
        may_not_at_all = table in (*PEOPLE, "halts") and engine.url.username == WORKER
        why = "permission denied" if may_not_at_all else "row-level security"
        assert why in refused, table


#: Triggers refuse UPDATE, whoever sends it.
WRITTEN_ONCE = ("decisions", "events", "halt_votes", "steerings", "principal_changes")


def test_an_update_without_a_filter_reaches_one_tenant_and_moves_no_row_to_another(
    scenes: tuple[Scene, Scene], engine: Engine
) -> None:
    ours, theirs = (scene.tenant for scene in scenes)
    for table in sorted({*TENANT_TABLES} - {*WRITTEN_ONCE}):
        if table in [*PEOPLE, *ADDED_TO] and engine.url.username == WORKER:
            refused = refusal(engine, ours, f"UPDATE {table} SET tenant_id = tenant_id")
            assert "permission denied" in refused, table
            continue
        with engine.connect() as connection:
            _be(connection, ours)
            rows = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            touched = connection.execute(text(f"UPDATE {table} SET tenant_id = tenant_id"))
            assert touched.rowcount == rows, table
            connection.rollback()
        moved = refusal(engine, ours, f"UPDATE {table} SET tenant_id = '{theirs}'")
        assert "row-level security" in moved, table


def test_connections_forget_tenants(scenes: tuple[Scene, Scene], worker_ledger: Ledger) -> None:
    for scene in scenes:
        assert _count_as(scene, "effects") == 2

    with worker_ledger.engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM effects"))
        assert found.scalar_one() == 0


def test_every_table_has_the_policy_and_forces_it_on_its_owner(engine: Engine) -> None:
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relrowsecurity"
                " AND relforcerowsecurity AND relnamespace = 'public'::regnamespace"
            )
        )
        assert sorted(rows.scalars()) == sorted(TENANT_TABLES)


def test_not_even_their_owner_changes_or_empties_what_is_append_only(
    scenes: tuple[Scene, Scene], postgres_database: Database
) -> None:
    before = scenes[0].events()
    owner = create_engine(postgres_database.owner_url)
    changes = {"events": "type", "decisions": "verdict", "principal_changes": "actor"}

    for table, column in changes.items():
        update = f"UPDATE {table} SET {column} = 'forged'"
        for sql in (f"TRUNCATE {table}", update, f"DELETE FROM {table}"):
            assert "append-only" in refusal(owner, scenes[0].tenant, sql), sql

    owner.dispose()
    assert scenes[0].events() == before


def test_workers_grant_and_register_nothing(
    scenes: tuple[Scene, Scene], worker_ledger: Ledger
) -> None:
    for table in PEOPLE:
        for sql in (f"INSERT INTO {table} DEFAULT VALUES", f"UPDATE {table} SET tenant_id = 'x'"):
            assert "permission denied" in refusal(worker_ledger.engine, scenes[0].tenant, sql), sql


def test_workers_delete_and_rewrite_nothing(
    scenes: tuple[Scene, Scene], worker_ledger: Ledger
) -> None:
    for sql in (
        *(f"DELETE FROM {table}" for table in TENANT_TABLES),
        "UPDATE events SET type = 'forged'",
    ):
        assert "permission denied" in refusal(worker_ledger.engine, scenes[0].tenant, sql), sql
