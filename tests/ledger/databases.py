"""The two databases that the conformance suite runs over, prepared as a deployment would be.

On PostgreSQL the tables belong to a role of their own, and the ledger is used through another role
that owns nothing and is no superuser: row-level security holds for every test of the suite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.postgres_server import PostgresMissing, PostgresServer

OWNER: Final = "surehand_owner"
WORKER: Final = "surehand_worker"

#: More than the worker needs, so that what refuses a change is the ledger's own rules.
_GRANTS: Final = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {WORKER}"


@dataclass(frozen=True)
class Database:
    """One ledger database."""

    dialect: str
    url: str
    """What a worker gets."""
    owner_url: str
    """The role that made the tables."""


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL; without one a local test skips and a test in CI fails."""
    try:
        server = PostgresServer.start()
    except PostgresMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
    try:
        for role in (OWNER, WORKER):
            server.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS")
        yield server
    finally:
        server.remove()


def empty_postgres(server: PostgresServer, name: str) -> Database:
    """Create an empty database on a server."""
    owner_url = server.create_database(name, OWNER)
    return Database("postgresql", server.url(name, WORKER), owner_url)


def empty_sqlite(folder: Path, name: str) -> Database:
    """Name a SQLite database that does not exist yet."""
    url = f"sqlite+aiosqlite:///{folder / name}"
    return Database("sqlite", url, url)


def grant_worker(server: PostgresServer, name: str) -> None:
    """Let the worker's role use the tables of a migrated database."""
    server.execute(_GRANTS, name)
