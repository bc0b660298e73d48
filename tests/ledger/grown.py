"""A ledger as it is after years: the rows of one run, copied as often as there were runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import psycopg
from sqlalchemy import Column, Table, make_url

from surehand.activities.ledger.core.tables import metadata
from tests.postgres_server import SUPERUSER

#: What each run has of its own, and what nobody else has.
_IDS: Final = frozenset(
    (
        *("run_id", "first_execution", "execution", "batch", "workflow_run_id", "head"),
        *("entry_id", "key", "holder", "activity_key", "undoes", "consumed_entry"),
        *("approval_id", "decision_id", "steering_id", "intervention_id", "artifact_id"),
        *("notification_id", "subject", "resolution_id", "nonce", "hash", "previous"),
    )
)
#: Numbers in milliseconds that are no times.
_NO_TIMES: Final = frozenset(("timeout_ms", "settle_ms", "window_ms", "lease_ms"))
#: From one copy to the next, in milliseconds.
_APART: Final = 60_000
#: Copies that are made by one statement.
_AT_ONCE: Final = 5_000
_SQLITE_SERIES: Final = (
    "WITH RECURSIVE copies(n) AS"
    " (SELECT :first UNION ALL SELECT n + 1 FROM copies WHERE n < :last) "
)


def grow(database_url: str, tenant: str, run_id: str, copies: int) -> None:
    """Copy all rows of a run, each copy a minute older than the one before.

    Args:
        database_url: The ledger; nobody else may be at work on it.
        tenant: Whose run it is.
        run_id: The run.
        copies: How many there will be; each is a run of its own.
    """
    url = make_url(database_url)
    tables = [table for table in metadata.sorted_tables if "run_id" in table.c]
    of_run = {"tenant": tenant, "run": run_id}
    if url.get_backend_name() == "sqlite":
        assert url.database is not None
        with closing(sqlite3.connect(url.database, isolation_level=None)) as file:
            for setting in ("foreign_keys = OFF", "synchronous = OFF", "cache_size = -500000"):
                file.execute(f"PRAGMA {setting}")
            for table in tables:
                for stretch in _stretches(copies):
                    file.execute(_SQLITE_SERIES + _copy(table, "copies"), {**of_run, **stretch})
            file.execute("ANALYZE")
        return
    where = url.set(drivername="postgresql", username=SUPERUSER)
    with (
        psycopg.connect(where.render_as_string(hide_password=False), autocommit=True) as server,
        server.cursor() as cursor,
    ):
        cursor.execute("SET session_replication_role = replica")  # which looks at no foreign key
        for table in tables:
            for stretch in _stretches(copies):
                series = "generate_series({first}, {last}) AS copies(n)".format(**stretch)
                copy = _copy(table, series).replace(":tenant", "%(tenant)s")
                cursor.execute(copy.replace(":run", "%(run)s").encode(), of_run)
        cursor.execute("VACUUM ANALYZE")


def _stretches(copies: int) -> Iterator[dict[str, int]]:
    for first in range(1, copies + 1, _AT_ONCE):
        yield {"first": first, "last": min(first + _AT_ONCE - 1, copies)}


def _copy(table: Table, series: str) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    values = ", ".join(map(_value, table.columns))
    rows = f"{table.name}, {series} WHERE tenant_id = :tenant AND run_id = :run"
    return f"INSERT INTO {table.name} ({names}) SELECT {values} FROM {rows}"


def _value(column: Column[object]) -> str:
    name = f'"{column.name}"'
    if column.name == "sha256":
        return f"substr({name}, 1, 50) || '-' || copies.n"
    if column.name in _IDS:
        return f"{name} || '-' || copies.n"
    if column.name == "commit_no":
        return f"-copies.n * 1000 - {name}"  # new ones count up from the last of ours
    if column.name.endswith("_ms") and column.name not in _NO_TIMES:
        return f"{name} - CAST({_APART} AS BIGINT) * copies.n"
    return name
