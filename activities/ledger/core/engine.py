"""Engines for the two databases: how each is opened, its clock, its locks and its tenant.

Guarantees rest on advisory locks and on commits that outlast a power cut. A server that speaks
PostgreSQL's protocol may answer without doing either.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus, urlsplit

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    create_engine,
    event,
    exc,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError

from surehand.activities.ledger.core.statements import run_sql
from surehand.process import clock
from surehand.process.exits import NotReachable
from surehand.process.program import command
from surehand.workflows.identity import tenant_problem

#: How long a statement may take, and a SQLite writer waits for another process's transaction.
PATIENCE: Final = timedelta(seconds=10)
#: Connections a worker keeps to PostgreSQL; each activity holds one for a few milliseconds only,
#: but for transactional tools, which hold one while they work.
CONNECTIONS: Final = 14
#: Of these, for the renewals and outcomes of calls under way alone.
KEPT_BACK: Final = 4
#: And of these, for renewals alone: outcomes of one run wait for one another.
FOR_RENEWALS: Final = 2
#: Transactional tools that work at once: well below what is left. On SQLite it is one.
TRANSACTIONAL: Final = 5

#: How much longer than a statement may take, its server has to say that it took too long.
_ANSWERING: Final = timedelta(seconds=2)
#: Seconds. A host that loses its power says nothing: without a limit its clients wait for ever.
CONNECT_TIMEOUT: Final = 5
#: Seconds of silence after which a server is asked whether it is there.
_KEEPALIVE: Final = 30

#: Names of options in a database URL's query whose values nobody may read.
_SECRET_OPTION: Final = re.compile("pass|secret|token", re.IGNORECASE)

_POSTGRES_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
#: Commits that were told are kept, whatever the database, or the role, has as its default.
_POSTGRES_DURABLE: Final = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
)
#: Where all of the ledger lies. It is said in each transaction, because a session keeps what a tool
#: has set, and looks for a table among its temporary ones first if these are not named last.
SCHEMA: Final = "public"
#: What is read after waiting for a lock must be what was committed meanwhile: under any other
#: level, which a database may have as its default, it is not.
_ISOLATION: Final = "READ COMMITTED"
_POSTGRES_ENTER: Final = (
    f"BEGIN ISOLATION LEVEL {_ISOLATION}; SELECT {_POSTGRES_NOW}, {_POSTGRES_DURABLE},"
    " set_config('surehand.tenant', '{tenant}', true),"
    f" set_config('search_path', '{SCHEMA}, pg_temp', true),"
    " set_config('statement_timeout', '{limit}', true),"
    # Of a worker that is stopped, or whose host is gone, the server learns nothing.
    " set_config('idle_in_transaction_session_timeout', '{idle}', true)"
)
_POSTGRES_CLOCK: Final = f"SELECT {_POSTGRES_NOW}"
_POSTGRES_LOCK: Final = "pg_advisory_xact_lock{}(hashtextextended(%s, 0))"
_POSTGRES_TRY: Final = "pg_try_advisory_xact_lock{}(hashtextextended(%s, 0))"


class LedgerUnavailable(NotReachable):
    """The database cannot be reached or did not answer; whether it committed is unknown."""


#: A server that may not write: a standby, or one that is becoming one.
_READ_ONLY: Final = "25006"
#: SQLSTATEs of a server that is away or has given up: 08 connection, 25P03 and 25P04 a transaction
#: that took too long, 40 serialization, 53 lack of resources, 55P03 a lock that is not free, 57
#: operator intervention: shutdown, crash, a statement that took too long; 58 its system, XX itself.
_GIVEN_UP: Final = ("08", _READ_ONLY, "25P03", "25P04", "40", "53", "55P03", "57", "58", "XX")


def unreachable(error: BaseException) -> bool:
    """Return whether an error says that the database is away, rather than that we are wrong."""
    if not isinstance(error, exc.DBAPIError):
        return isinstance(error, (exc.TimeoutError, OSError))
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_GIVEN_UP)
    gone = isinstance(error, (exc.OperationalError, exc.InterfaceError))
    return (gone or error.connection_invalidated) and not _is_wrong_sql(error)


def may_pass(error: BaseException) -> bool:
    """Return whether the same transaction may succeed later: its database refuses nothing in it."""
    if isinstance(error, (exc.IntegrityError, exc.DataError, exc.ProgrammingError)):
        return False
    return isinstance(error, (LedgerUnavailable, exc.DBAPIError)) and not _is_wrong_sql(error)


def first_line(error: Exception) -> str:
    """Return what the driver says of an error, in one line; its type where it says nothing."""
    said = getattr(error, "orig", None) or error
    line = (str(said).splitlines() or [type(said).__name__])[0]
    if isinstance(said, sqlite3.OperationalError) and line == "database is locked":
        return f"{line} by another process, which `{command('doctor')}` names"
    return line


def _is_wrong_sql(error: BaseException) -> bool:
    original = getattr(error, "orig", None)
    return isinstance(original, sqlite3.OperationalError) and "no such" in str(original)


class _OneTrip(psycopg.Pipeline):
    """A pipeline whose last message is its Sync.

    The driver's own may have a Flush follow it. PostgreSQL waits for what follows that, and ends no
    transaction that idles meanwhile.
    """

    def _exit_gen(self) -> Any:
        self._enqueue_sync()
        try:
            yield from self._communicate_gen()
        finally:
            yield from self._fetch_gen(flush=False)


class _Patient(psycopg.Connection[Any]):
    """A connection that gives up a server which says nothing, and is closed then."""

    limit: float
    """Seconds that an answer may take."""

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Open a pipeline; none is open."""
        self._pipeline = _OneTrip(self)
        try:
            with self._pipeline as opened:
                yield opened
        finally:
            self._pipeline = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, self.limit if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # what it would answer now, nobody waits for
            raise


def as_url(database_url: str) -> URL:
    """Return where a ledger is, with the driver that is used there."""
    url = make_url(database_url)
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def without_passwords(url: URL) -> str:
    """Return a ledger's URL as people may read it."""
    hidden = dict.fromkeys(filter(_SECRET_OPTION.search, url.query), "hidden")
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def passwords_of(database_url: str) -> set[str]:
    """Return the passwords of a ledger's URL: as they are, and as URLs have them."""
    try:
        url, as_given = make_url(database_url), urlsplit(database_url).password or ""
    except (ArgumentError, ValueError):
        return set()  # which is said elsewhere
    given = [url.password or ""]
    for name, values in url.normalized_query.items():
        given += values if _SECRET_OPTION.search(name) else ()
    return {as_given, *given, *map(quote, given), *map(quote_plus, given)}


def make_engine(database_url: str, patience: timedelta = PATIENCE) -> Engine:
    """Return an engine for a ledger URL, prepared for short write transactions.

    What takes longer than ``patience`` is given up as ``LedgerUnavailable``.

    It never creates a SQLite file: whoever is in the wrong folder would get an empty ledger there,
    which knows of no effect. Connecting then raises ``LedgerUnavailable``.
    """
    url = as_url(database_url)
    if url.get_backend_name() == "sqlite":
        # One connection: a process has one writer, and others queue for it in order.
        engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=60)
        event.listen(engine, "do_connect", _only_existing)
        event.listen(engine, "connect", partial(_prepare_sqlite, patience))
        event.listen(engine, "begin", _begin_immediate)
        return engine
    engine = create_engine(
        url,
        isolation_level=_ISOLATION,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=30,
        use_native_hstore=False,  # nothing to ask the server for
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT,
            "keepalives_idle": _KEEPALIVE,
            "tcp_user_timeout": (patience + _ANSWERING) // timedelta(milliseconds=1),
        },
    )
    event.listen(engine, "do_connect", partial(_connect_patiently, patience))
    event.listen(engine, "handle_error", _leave_standby)
    return engine


def _leave_standby(context: ExceptionContext) -> None:
    # The ledger is elsewhere by now, or will be: only a new connection can find out.
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _connect_patiently(
    patience: timedelta, _dialect: Any, _record: Any, where: list[Any], options: dict[str, Any]
) -> _Patient:
    connection = _Patient.connect(*where, **options)
    connection.limit = (patience + _ANSWERING).total_seconds()
    (backend,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (None,)
    connection.rollback()
    if backend != connection.info.backend_pid:
        # A pooler answers in the server's place. In transaction mode another connection of its own
        # may serve the next transaction, and that knows of no statement that was prepared.
        connection.prepare_threshold = None
    return connection


def _only_existing(dialect: Any, _record: Any, where: list[Any], options: dict[str, Any]) -> Any:
    if where[0] == ":memory:" or where[0].startswith("file:"):
        return None  # not a file, or a URI that says by itself how it is opened
    file = Path(where[0])
    if not file.exists():
        raise LedgerUnavailable(
            f"no ledger at {file} (SUREHAND_DATABASE_URL): run"
            f" `{command('migrate')}` to make one there; if it is elsewhere, start"
            " in its folder or name it with its absolute path, sqlite:////folder/file"
        )
    uri = f"{file.as_uri()}?mode=rw"  # should it go away in between
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
        # What is deleted, or written over, is not left in the file.
        "secure_delete=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    # A deferred transaction that turns into a writer fails at once when another writer is there.
    run_sql(connection, "BEGIN IMMEDIATE")


def forget_log(engine: Engine) -> None:
    """Have SQLite empty its write-ahead log, which has what was deleted, unless others read it."""
    if engine.dialect.name != "sqlite":
        return
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


@contextmanager
def enter_transaction(
    engine: Engine, tenant: str, limit: timedelta, idle: timedelta
) -> Iterator[tuple[Connection, int, float]]:
    """Open a transaction of a tenant; it commits at the end of the block, or rolls back.

    Yields its connection, the database's clock in milliseconds (SQLite's is this machine's), and
    this process's own clock before that was read, after all waiting: for a connection, and on
    SQLite for another writer. ``limit`` is for a statement, ``idle`` for the time between two:
    after that PostgreSQL ends the transaction, and frees its locks.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            with connection.begin():
                began = clock.now()
                yield connection, time.time_ns() // 1_000_000, began
            return
        # The driver sends no BEGIN of its own then: it goes with the settings.
        connection.execution_options(isolation_level="AUTOCOMMIT")
        began = clock.now()
        with connection.begin():
            cursor = run_sql(connection, _enter_sql(tenant, limit, idle))
            cursor.nextset()  # behind what BEGIN says
            yield connection, int(cursor.fetchone()[0]), began


@lru_cache(maxsize=1000)
def _enter_sql(tenant: str, limit: timedelta, idle: timedelta) -> str:
    # Said in the text: several statements in one trip take no parameters.
    problem = tenant_problem(tenant)
    assert problem is None, problem
    ms = timedelta(milliseconds=1)
    return _POSTGRES_ENTER.format(tenant=tenant, limit=limit // ms, idle=idle // ms)


def read_clock(connection: Connection) -> int:
    """Return the database's clock in milliseconds, inside a transaction that has waited.

    On SQLite a transaction waits before it begins, so its first reading stays good.
    """
    if connection.dialect.name == "sqlite":
        return 0
    return int(run_sql(connection, _POSTGRES_CLOCK).fetchone()[0])


def lock_name(connection: Connection, *names: str, shared: tuple[str, ...] = ()) -> int:
    """Hold locks of these names, taken in this order, until the transaction ends.

    Those that are ``shared`` are taken first. It returns the database's clock in milliseconds, read
    once they are held. On SQLite every transaction is the only writer, so there is nothing to take,
    and the first reading stays good.
    """
    if connection.dialect.name == "sqlite":
        return 0
    return int(run_sql(connection, *lock_statement(*names, shared=shared)).fetchone()[-1])


def lock_statement(*names: str, shared: tuple[str, ...] = ()) -> tuple[str, tuple[str, ...]]:
    """Return what ``lock_name`` runs on PostgreSQL, and its parameters; the clock comes last."""
    locks, names = _locks(_POSTGRES_LOCK, names, shared)
    # What is selected is worked out from left to right.
    return f"SELECT {', '.join([*locks, _POSTGRES_NOW])}", names


def try_lock_names(connection: Connection, *names: str, shared: tuple[str, ...] = ()) -> bool:
    """Hold locks of these names until the transaction ends, if all of them are free now."""
    if connection.dialect.name == "sqlite":
        return True
    locks, names = _locks(_POSTGRES_TRY, names, shared)
    return bool(run_sql(connection, f"SELECT {' AND '.join(locks)}", names).fetchone()[0])


def _locks(
    lock: str, names: tuple[str, ...], shared: tuple[str, ...]
) -> tuple[list[str], tuple[str, ...]]:
    """Return what takes locks, in order, and the names that go with it."""
    locks = [lock.format("_shared")] * len(shared) + [lock.format("")] * len(names)
    return locks, (*shared, *names)


_OPEN: Final = text(
    "SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
    " WHERE l.locktype = 'virtualxid' AND a.datname = current_database()"
    " AND a.usename IS NOT NULL AND a.pid <> pg_backend_pid()"
)


def find_open_transactions(connection: Connection) -> frozenset[str]:
    """Return the other transactions that are open in this database; SQLite has one at a time."""
    if connection.dialect.name == "sqlite":
        return frozenset()
    return frozenset(connection.execute(_OPEN).scalars())


#: What others that speak the protocol say of themselves beside PostgreSQL's own words.
_OTHERS = ("cockroach", "yugabyte", "-yb-", "redshift", "materialize", "cratedb", "questdb")


class LedgerUnfit(LedgerUnavailable):
    """The server answers, but a ledger on it would promise what it does not keep."""


def require_fit(engine: Engine, *, fsync_off: bool = False) -> None:
    """Check that the ledger's server can keep what the ledger promises; SQLite can.

    ``fsync_off`` allows a server that does not wait for its disk: for tests.
    """
    if engine.dialect.name == "sqlite":
        return
    try:
        with explain_database_error(engine.url), engine.connect() as one, engine.connect() as other:
            wrong = _find_unfit(one, other, fsync_off=fsync_off)
    except AssertionError as error:
        # The driver has not found PostgreSQL's version in what the server says of itself.
        wrong = f"it says: {error}"
    if wrong is not None:
        where = without_passwords(engine.url)
        raise LedgerUnfit(f"the ledger cannot lie at {where} (SUREHAND_DATABASE_URL): {wrong}")


@contextmanager
def explain_database_error(url: URL) -> Iterator[None]:
    """Say of which database an error is: it cannot be reached, or a statement has failed."""
    try:
        yield
    except (DBAPIError, OSError, sqlite3.Error) as error:
        refused = isinstance(error, DBAPIError) and not unreachable(error)
        what = "has failed" if refused else "cannot be reached"
        raise LedgerUnavailable(
            f"the ledger database {what} at {without_passwords(url)}"
            f" (SUREHAND_DATABASE_URL): {first_line(error)}"
        ) from error


#: Standbys that no commit waits for. A potential one takes the place of a synchronous one that has
#: gone, and follows asynchronously until then. Of a role that may not read statistics, a sender's
#: state is hidden; that it is there is not. A backup under way is no standby.
_ASYNCHRONOUS: Final = text(
    "SELECT coalesce(application_name, '') FROM pg_stat_replication"
    " WHERE (state IS NULL OR state <> 'backup') AND (sync_state IN ('async', 'potential')"
    " OR current_setting('synchronous_standby_names') = '') ORDER BY 1"
)


def find_asynchronous_standbys(engine: Engine) -> str | None:
    """Return in one line what a failover may lose, or ``None``: nothing that was acknowledged.

    Each transaction of ours waits for a synchronous standby, if the server has one. How far
    standbys are behind, and which are missing, PostgreSQL's own exporters measure.
    """
    if engine.dialect.name == "sqlite":
        return None
    with explain_database_error(engine.url), engine.connect() as connection:
        found = list(connection.execute(_ASYNCHRONOUS).scalars())
    if not found:
        return None
    names = ", ".join(sorted({*found} - {""}))
    return (
        f"standbys of the ledger's PostgreSQL that follow asynchronously: {len(found)}"
        f"{f' ({names})' if names else ''}: a failover to it can lose entries that were"
        " acknowledged, and their effects would be made again; have commits wait for it"
        " (synchronous_standby_names), or say `ledger restored` after each failover to it"
    )


def _find_unfit(one: Connection, other: Connection, *, fsync_off: bool) -> str | None:
    version = str(one.execute(text("SELECT version()")).scalar_one())
    lowered = version.lower()
    if not lowered.startswith("postgresql") or any(name in lowered for name in _OTHERS):
        return f"it is no PostgreSQL, it says: {version.splitlines()[0]}. Use PostgreSQL"
    # Nobody else has this name, so it is free unless `one` holds it.
    name = secrets.token_hex(16)
    lock_name(one, name)
    if try_lock_names(other, name):
        return (
            "its advisory locks do not lock: a second connection has got one that the first"
            " holds, so an effect could be made twice. Use PostgreSQL itself"
        )
    fsync = one.execute(text("SELECT current_setting('fsync')")).scalar_one()
    if fsync != "on" and not fsync_off:
        return (
            "it runs with fsync=off: a power cut would lose effects that were recorded, and they"
            " would be made again. Set fsync = on (ALTER SYSTEM SET fsync = on, then"
            " pg_reload_conf()); for tests alone, SUREHAND_FSYNC_OFF=allow"
        )
    return None
