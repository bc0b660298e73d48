"""Engines for the two databases: how each is opened, its clock, its locks and its tenant."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

#: How long a statement may take, and a SQLite writer waits for another process's transaction.
PATIENCE: Final = timedelta(seconds=10)
#: Connections a worker keeps to PostgreSQL; each activity holds one for a few milliseconds only,
#: but for transactional tools, which hold one while they work.
CONNECTIONS: Final = 14
#: Of these, for the renewals and outcomes of calls under way alone.
KEPT_BACK: Final = 4
#: Transactional tools that work at once: well below what is left. On SQLite it is one.
TRANSACTIONAL: Final = 5

#: Seconds. A host that loses its power says nothing: without a limit its clients wait for ever.
CONNECT_TIMEOUT: Final = 5

_SQLITE_CLOCK: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRES_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
#: Commits that were told are kept, whatever the database, or the role, has as its default.
_POSTGRES_DURABLE: Final = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
)
_POSTGRES_BEGIN: Final = (
    f"SELECT {_POSTGRES_NOW}, set_config('surehand.tenant', $1, true), {_POSTGRES_DURABLE}"
)
_POSTGRES_CLOCK: Final = f"SELECT {_POSTGRES_NOW}"
_POSTGRES_LOCK: Final = "pg_advisory_xact_lock{}(hashtextextended(${}, 0))"
_POSTGRES_TRY: Final = "pg_try_advisory_xact_lock{}(hashtextextended(${}, 0))"


class LedgerUnavailable(Exception):
    """The database cannot be reached or did not answer; whether it committed is unknown."""


#: What drivers raise when a database is away, restarting or cut off.
_UNREACHABLE: Final = (
    exc.OperationalError,
    exc.InterfaceError,
    exc.TimeoutError,
    ConnectionError,
    OSError,
    asyncio.TimeoutError,
)


def unreachable(error: BaseException) -> bool:
    """Return whether an error says that the database is away, rather than that we are wrong."""
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, exc.DBAPIError) and _restarting(error.orig):
        return True
    return isinstance(error, _UNREACHABLE) and not _is_wrong_sql(error)


def first_line(error: Exception) -> str:
    """Return what the driver says of an error, in one line; its type where it says nothing."""
    said = getattr(error, "orig", None) or error
    line = (str(said).splitlines() or [type(said).__name__])[0]
    if isinstance(said, sqlite3.OperationalError) and line == "database is locked":
        return f"{line} by another process, which `python starter.py doctor` names"
    return line


def _restarting(error: BaseException | None) -> bool:
    # Class 57: operator intervention (shutdown, crash, cannot connect now); 40: serialization.
    state = str(getattr(error, "sqlstate", "") or "")
    return state.startswith(("57P", "08", "40", "53"))


def _is_wrong_sql(error: BaseException) -> bool:
    original = getattr(error, "orig", None)
    return isinstance(original, sqlite3.OperationalError) and "no such" in str(original)


def make_engine(url: str, patience: timedelta = PATIENCE) -> AsyncEngine:
    """Return an engine for a ledger URL, prepared for short write transactions.

    What takes longer than ``patience`` is given up as ``LedgerUnavailable``.

    It never creates a SQLite file: whoever is in the wrong folder would get an empty ledger there,
    which knows of no effect. Connecting then raises ``LedgerUnavailable``.
    """
    if url.startswith("sqlite"):
        # One connection: a process has one writer, and others queue for it in order.
        engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=60)
        event.listen(engine.sync_engine, "do_connect", _only_existing)
        event.listen(engine.sync_engine, "connect", partial(_prepare_sqlite, patience))
        event.listen(engine.sync_engine, "begin", _begin_immediate)
        return engine
    return create_async_engine(
        url,
        # Said at each BEGIN. What is read after waiting for a lock must be what was committed
        # meanwhile: under any other level, which a database may have as its default, it is not.
        isolation_level="READ COMMITTED",
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=30,
        connect_args={"timeout": CONNECT_TIMEOUT, "command_timeout": patience.total_seconds()},
    )


def _only_existing(dialect: Any, _record: Any, where: list[Any], options: dict[str, Any]) -> Any:
    if where[0] == ":memory:" or where[0].startswith("file:"):
        return None  # not a file, or a URI that says by itself how it is opened
    file = Path(where[0])
    if not file.exists():
        raise LedgerUnavailable(
            f"no ledger at {file} (SUREHAND_DATABASE_URL): run"
            " `python -m activities.ledger.migrate` to make one there; if it is elsewhere, start"
            " in its folder or name it with its absolute path, sqlite+aiosqlite:////folder/file"
        )
    uri = f"{file.as_uri()}?mode=rw"  # should it go away in between
    # Tried here first: where opening fails in aiosqlite, its thread may outlive the event loop
    # and end with a traceback.
    sqlite3.connect(uri, uri=True).close()
    return dialect.connect(uri, **{**options, "uri": True})


def _prepare_sqlite(patience: timedelta, connection: Any, _record: Any) -> None:
    # None: the driver starts no transaction of its own; `_begin_immediate` does.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={patience // timedelta(milliseconds=1)}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    # A deferred transaction that turns into a writer fails at once when another writer is there.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


async def enter_transaction(connection: AsyncConnection, tenant: str) -> int:
    """Bind the transaction to a tenant and return the database's clock in milliseconds."""
    if connection.dialect.name == "sqlite":
        row = await connection.exec_driver_sql(f"SELECT {_SQLITE_CLOCK}")
    else:
        row = await connection.exec_driver_sql(_POSTGRES_BEGIN, (tenant,))
    return int(row.scalar_one())


async def read_clock(connection: AsyncConnection) -> int:
    """Return the database's clock in milliseconds, inside a transaction that has waited.

    On SQLite a transaction waits before it begins, so its first reading stays good.
    """
    if connection.dialect.name == "sqlite":
        return 0
    return int((await connection.exec_driver_sql(_POSTGRES_CLOCK)).scalar_one())


async def lock_name(connection: AsyncConnection, *names: str, shared: str | None = None) -> int:
    """Hold locks of these names, taken in this order, until the transaction ends.

    Returns the database's clock in milliseconds, read once they are held. On SQLite every
    transaction is the only writer, so there is nothing to take, and the first reading stays good.

    Args:
        connection: Of the transaction.
        names: Of the locks.
        shared: One more, taken first, that others may share.
    """
    if connection.dialect.name == "sqlite":
        return 0
    locks, names = _locks(_POSTGRES_LOCK, names, shared)
    # What is selected is worked out from left to right: the clock comes last.
    selected = ", ".join([*locks, _POSTGRES_NOW])
    row = await connection.exec_driver_sql(f"SELECT {selected}", names)
    return int(row.one()[-1])


async def try_lock_names(
    connection: AsyncConnection, *names: str, shared: str | None = None
) -> bool:
    """Hold locks of these names until the transaction ends, if all of them are free now."""
    if connection.dialect.name == "sqlite":
        return True
    locks, names = _locks(_POSTGRES_TRY, names, shared)
    row = await connection.exec_driver_sql(f"SELECT {' AND '.join(locks)}", names)
    return bool(row.scalar_one())


def _locks(
    lock: str, names: tuple[str, ...], shared: str | None
) -> tuple[list[str], tuple[str, ...]]:
    """Return what takes locks, in order, and the names that go with it."""
    locks = [lock.format("", place) for place in range(1, len(names) + 1)]
    if shared is None:
        return locks, names
    return [lock.format("_shared", len(names) + 1), *locks], (*names, shared)
