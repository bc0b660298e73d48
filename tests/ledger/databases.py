"""The two databases that the conformance suite runs over.

On PostgreSQL the ledger is used as in production, through a role that owns nothing: row-level
security holds for every test of the suite.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url, text

from surehand.activities.ledger.core.store import Transaction
from tests.ledger_databases import OWNER
from tests.postgres_server import PostgresServer


@dataclass(frozen=True)
class Database:
    """One ledger database."""

    dialect: str
    url: str
    """What a worker gets."""
    owner_url: str
    """The role that makes the tables."""


def sqlite(file: Path) -> Database:
    """Name a SQLite database, which has no roles."""
    url = f"sqlite:///{file}"
    return Database("sqlite", url, url)


def postgresql(server: PostgresServer, url: str) -> Database:
    name = make_url(url).database
    assert name is not None
    return Database("postgresql", url, server.url(name, OWNER))


async def until_one_waits(tx: Transaction) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with asyncio.timeout(30):
        while not tx.connection.execute(waiting).scalar_one():
            await asyncio.sleep(0)
