"""Migrations make exactly the tables that the code works with, and nobody works on others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, make_url, text

from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.migrate import (
    DatabaseBehind,
    migrate,
    newest_revision,
    require_head,
)
from surehand.activities.ledger.core.store import LedgerUnavailable, open_ledger
from surehand.activities.ledger.core.tables import metadata
from tests.cli.starter import Ended, Starter
from tests.ledger.databases import Database
from tests.ledger_databases import TENANT_TABLES

REPOSITORY = Path(__file__).parents[2]


def _with(database: Database, look: Callable[[Connection], Any]) -> Any:
    engine = create_engine(database.owner_url)
    try:
        with engine.begin() as connection:
            return look(connection)
    finally:
        engine.dispose()


def _execute(database: Database, sql: str) -> None:
    _with(database, lambda connection: connection.execute(text(sql)))


def _shape(connection: Connection) -> dict[str, Any]:
    """Return all that the database says of its tables: columns, keys, CHECKs and indexes."""
    found = inspect(connection)
    shape: dict[str, Any] = {}
    for table in TENANT_TABLES:
        shape[table] = {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in found.get_columns(table)
            ],
            "key": found.get_pk_constraint(table),
            "unique": sorted(map(_plain, found.get_unique_constraints(table))),
            "checks": sorted(map(_plain, found.get_check_constraints(table))),
            "foreign": sorted(map(_plain, found.get_foreign_keys(table))),
            "indexes": sorted(map(_plain, found.get_indexes(table))),
        }
    return shape


def _plain(found: Any) -> str:
    return json.dumps(found, sort_keys=True, default=str)


def test_a_migration_is_called_what_alembic_calls_its_file() -> None:
    scripts = ScriptDirectory(str(REPOSITORY / "activities/ledger/migrations"))

    assert scripts.get_current_head() == newest_revision()
    for script in scripts.walk_revisions():
        assert script.revision == Path(script.path).stem


async def test_migrating_makes_exactly_the_tables_of_the_code(empty_database: Database) -> None:
    assert migrate(empty_database.owner_url) == (None, newest_revision())

    def compare(connection: Connection) -> Any:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        return compare_metadata(context, metadata)

    assert _with(empty_database, compare) == []
    # Alembic does not compare CHECKs and the conditions of partial indexes; the databases do.
    migrated = _with(empty_database, _shape)
    _with(empty_database, metadata.drop_all)
    _with(empty_database, metadata.create_all)
    assert migrated == _with(empty_database, _shape)
    assert all(
        migrated[table]["key"]["constrained_columns"][0] == "tenant_id" for table in TENANT_TABLES
    )


@pytest.mark.slow
async def test_a_worker_refuses_a_database_that_is_not_at_the_newest_migration_in_one_line(
    empty_database: Database, tmp_path: Path
) -> None:
    migrate(empty_database.owner_url)
    _execute(empty_database, "DELETE FROM alembic_version")

    done = check_worker(empty_database.owner_url, tmp_path)

    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith("surehand: the ledger database ")
    assert "at migration none" in line
    assert newest_revision() in line
    assert "starter.py migrate" in line


@pytest.mark.slow
async def test_only_migrating_makes_a_file(tmp_path: Path) -> None:
    url = "sqlite:///ledger.sqlite"
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    made = run_migrate(url, home)

    done = check_worker(url, elsewhere)

    assert made.code == 0, made.err
    assert (home / "ledger.sqlite").exists()
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"surehand: no ledger at {elsewhere / 'ledger.sqlite'} ")
    assert "starter.py migrate" in line
    assert list(elsewhere.iterdir()) == []


async def test_a_ledger_that_is_taken_away_is_not_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    migrate(f"sqlite:///{file}")
    async with open_ledger(f"sqlite:///{file}") as ledger:
        with ledger.transaction("default"):
            pass
        ledger.engine.dispose()  # as after a lost connection
        file.unlink()

        refused = pytest.raises(LedgerUnavailable, match="no ledger at")
        with refused, ledger.transaction("default"):
            pass

    assert list(tmp_path.iterdir()) == []


def run_migrate(url: str, folder: Path) -> Ended:
    """Run ``migrate``, with no settings but the database."""
    return Starter({"SUREHAND_DATABASE_URL": url}, folder)("migrate")


def check_worker(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a worker's check in a process of its own, with no settings but the database."""
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "worker.py"), "--check"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "SUREHAND_DATABASE_URL": url,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
async def test_migrating_says_what_it_did(empty_database: Database, tmp_path: Path) -> None:
    def run() -> str:
        done = run_migrate(empty_database.owner_url, tmp_path)
        assert done.code == 0, done.err
        return done.out

    where, told = run().split(": empty -> ")
    url = make_url(empty_database.owner_url)
    assert where.endswith(str(url.database))
    assert where.startswith("sqlite file /" if "sqlite" in url.drivername else "ledger database ")
    assert told == f"{newest_revision()}\n"
    assert run() == f"{where}: already at {newest_revision()}\n"


@pytest.mark.slow
def test_a_ledger_is_not_made_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "typo" / ".surehand" / "ledger.sqlite"

    done = run_migrate(f"sqlite:///{file}", tmp_path)

    assert done.code == 2
    line = done.line()
    assert line.startswith(f"surehand: there is no folder {file.parent} (SUREHAND_DATABASE_URL)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_first_start_makes_the_folder_that_is_surehands_own(tmp_path: Path) -> None:
    url = "sqlite:///.surehand/ledger.sqlite"

    done = run_migrate(url, tmp_path)

    assert done.code == 0, done.err
    assert done.out.startswith(f"sqlite file {tmp_path}/.surehand/ledger.sqlite: empty -> ")
    assert (tmp_path / ".surehand" / "ledger.sqlite").is_file()


@pytest.mark.slow
async def test_a_newer_database_is_left_alone(empty_database: Database, tmp_path: Path) -> None:
    migrate(empty_database.owner_url)
    _execute(empty_database, "UPDATE alembic_version SET version_num = '9999_after'")
    shape = _with(empty_database, _shape)
    engine = create_engine(empty_database.owner_url)

    with pytest.raises(DatabaseBehind, match="9999_after"):
        require_head(engine)
    engine.dispose()
    done = run_migrate(empty_database.owner_url, tmp_path)

    assert done.code == 4
    assert "9999_after" in done.line()
    assert _with(empty_database, _shape) == shape


UNREACHABLE = ["postgresql://nobody:secret@127.0.0.1:1/ledger", "sqlite:////proc/ledger.db"]


@pytest.mark.parametrize("url", UNREACHABLE, ids=["postgresql", "sqlite"])
def test_a_database_that_cannot_be_reached_is_named_without_its_password(url: str) -> None:
    engine = make_engine(url)

    with pytest.raises(LedgerUnavailable) as refused:
        require_head(engine)

    assert "SUREHAND_DATABASE_URL" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    engine.dispose()
