"""Which workers live, and which runs each has in hand, so that its death is noticed at once.

Each worker holds a lock that its death frees: on PostgreSQL the advisory lock of a session of its
own, on SQLite a locked file beside the ledger. What it has in hand lies where others find it: in
the table ``in_hand``, or in that file. A stopped process holds its lock.

A free lock proves a death only where the kernel keeps it, which is SQLite's case. A session of
PostgreSQL also ends when its server restarts, so a live worker may lose its lock. It takes the lock
again at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from surehand.activities.ledger.core.engine import (
    SCHEMA,
    LedgerUnavailable,
    first_line,
    make_engine,
)

#: Between two looks at a file: the kernel has no wait for a lock that ends after a time.
_FILE_PAUSE: Final = 0.03  # seconds
#: Bytes after which a file is written anew.
_LARGEST_FILE: Final = 1_000_000
_KEY: Final = "hashtextextended('surehand.worker:' || %s, 0)"
_PREPARE: Final = (
    f"SELECT set_config('search_path', '{SCHEMA}, pg_temp', false),"
    # The rows are lost with the power only, and with them all workers.
    " set_config('synchronous_commit', 'off', false)",
    # It has no such limit before PostgreSQL 14.
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'",
)


class Pooled(Exception):
    """A pooler stands before the server: no session is a worker's own."""


def presence_of(engine: Engine, namespace: str, worker: str) -> Presence | None:
    """Return the presence of a worker at its ledger; ``None``: the ledger is no file.

    Who sees no other Temporal namespace's runs cannot take them over.
    """
    if engine.dialect.name == "postgresql":
        return _OnPostgres(engine, namespace, worker)
    file = engine.url.database or ":memory:"
    if file == ":memory:" or file.startswith("file:"):
        return None
    return _InFolder(Path(f"{file}.workers"), namespace, worker)


class _OnPostgres:
    """The workers of one ledger and one Temporal namespace, as one of them sees the others.

    Methods block, and are called from threads: ``enter``, ``write`` and ``leave`` one at a time,
    and the others one at a time.
    """

    certain: Final = False
    """Whether a free lock proves that its worker is dead."""

    def __init__(self, engine: Engine, namespace: str, worker: str) -> None:
        # Its connections are none of those that transactions wait for.
        self._engine = make_engine(engine.url.render_as_string(hide_password=False))
        self._namespace, self._worker = namespace, worker
        self._own: psycopg.Connection[Any] | None = None
        self._watching: psycopg.Connection[Any] | None = None

    def enter(self, runs: Collection[str]) -> int | None:
        """Hold the own lock, and note what is in hand.

        It returns what becomes readable when the lock is lost; ``None``: it cannot be. It raises
        ``LedgerUnavailable``, or ``Pooled`` where it can never be had.
        """
        with _unavailable():
            if self._own is not None:
                self._own.close()
            self._own = self._connected()
            self._own.execute(f"SELECT pg_advisory_lock({_KEY})", (self._worker,))
            self.write(runs, ())
            return self._own.fileno()

    def write(self, added: Collection[str], dropped: Collection[str]) -> None:
        """Note what has changed of what is in hand; nothing: see whether the lock is still held."""
        with _unavailable():
            assert self._own is not None
            if added:
                self._own.execute(
                    "INSERT INTO in_hand (worker, namespace, workflow_id)"
                    " SELECT %s, %s, unnest(%s::text[]) ON CONFLICT DO NOTHING",
                    (self._worker, self._namespace, list(added)),
                )
            if dropped:
                self._own.execute(
                    "DELETE FROM in_hand WHERE worker = %s AND workflow_id = ANY(%s)",
                    (self._worker, list(dropped)),
                )
            if not added and not dropped:
                self._own.execute("SELECT")

    def leave(self) -> None:
        """Forget what is in hand, and free the own lock."""
        with suppress(LedgerUnavailable), _unavailable():
            if self._own is not None and not self._own.closed:
                self._forget(self._own, self._worker)
                self._own.close()

    def others(self) -> list[str]:
        """Return the other workers that have something in hand."""
        with _unavailable():
            if self._watching is None or self._watching.closed:
                self._watching = self._connected()
            rows = self._watching.execute(
                "SELECT DISTINCT worker FROM in_hand WHERE namespace = %s AND worker <> %s",
                (self._namespace, self._worker),
            )
            return [worker for (worker,) in rows]

    def wait_free(self, worker: str, limit: timedelta) -> bool:
        """Wait for a worker's lock to be free, and return whether it was in time."""
        with _unavailable():
            watching = self._watched()
            milliseconds = str(limit // timedelta(milliseconds=1))
            watching.execute("SELECT set_config('lock_timeout', %s, false)", (milliseconds,))
            try:
                watching.execute(f"SELECT pg_advisory_lock({_KEY})", (worker,))
            except psycopg.errors.LockNotAvailable:
                return False
            self._unlock(worker)
            return True

    @contextmanager
    def taken(self, worker: str) -> Iterator[list[str] | None]:
        """Hold a worker's lock if it is free: its runs, which are forgotten after the block.

        ``None``: its lock is not free.
        """
        with _unavailable():
            tried = self._watched().execute(f"SELECT pg_try_advisory_lock({_KEY})", (worker,))
            free = bool((tried.fetchone() or (False,))[0])
        if not free:
            yield None
            return
        try:
            with _unavailable():
                rows = self._watched().execute(
                    "SELECT workflow_id FROM in_hand WHERE worker = %s", (worker,)
                )
                found = [workflow_id for (workflow_id,) in rows]
            yield found
            with _unavailable():
                self._forget(self._watched(), worker)
        finally:
            with suppress(LedgerUnavailable), _unavailable():
                self._unlock(worker)

    def _connected(self) -> psycopg.Connection[Any]:
        made = self._engine.raw_connection()
        connection = made.driver_connection
        made.detach()
        assert isinstance(connection, psycopg.Connection)
        if connection.prepare_threshold is None:  # As `_connect_patiently` has found out.
            connection.close()
            raise Pooled
        connection.autocommit = True
        for statement in _PREPARE:
            connection.execute(statement)
        return connection

    def _watched(self) -> psycopg.Connection[Any]:
        assert self._watching is not None, "others() comes first"
        return self._watching

    def _forget(self, connection: psycopg.Connection[Any], worker: str) -> None:
        connection.execute("DELETE FROM in_hand WHERE worker = %s", (worker,))

    def _unlock(self, worker: str) -> None:
        self._watched().execute(f"SELECT pg_advisory_unlock({_KEY})", (worker,))


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, SQLAlchemyError, OSError) as error:
        raise LedgerUnavailable(first_line(error)) from error


class _InFolder:
    """The same beside a SQLite file."""

    certain: Final = True

    def __init__(self, folder: Path, namespace: str, worker: str) -> None:
        self._folder = folder
        self._namespace = quote(namespace, safe="")
        self._file = self._file_of(worker)
        self._own: int | None = None
        self._runs: dict[str, None] = {}

    def _file_of(self, worker: str) -> Path:
        return self._folder / f"{self._namespace} {quote(worker, safe='@')}"

    def enter(self, runs: Collection[str]) -> int | None:
        with _unavailable():
            self._folder.mkdir(exist_ok=True)
            # Nobody finds it before it is locked.
            made, before = self._file.with_name(f".{self._file.name}"), self._own
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            self._own = os.open(made, flags, 0o600)
            fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.write(runs, ())
            made.rename(self._file)
            if before is not None:
                os.close(before)
        return None

    def write(self, added: Collection[str], dropped: Collection[str]) -> None:
        assert self._own is not None
        lines = [*((run, True) for run in added), *((run, False) for run in dropped)]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        self._runs = _in_hand(text.splitlines(), self._runs)
        with _unavailable():
            # In the kernel's memory at once, which outlives the process.
            os.write(self._own, text.encode())
            if os.fstat(self._own).st_size > _LARGEST_FILE > sum(map(len, self._runs)):
                self.enter(self._runs)

    def leave(self) -> None:
        if self._own is not None:
            with suppress(OSError):
                self._file.unlink()
            os.close(self._own)
            self._own = None

    def others(self) -> list[str]:
        if not self._folder.exists():
            return []
        found = [one.name.partition(" ") for one in self._folder.iterdir() if one != self._file]
        return [unquote(name) for namespace, _, name in found if namespace == self._namespace]

    def wait_free(self, worker: str, limit: timedelta) -> bool:
        until = time.monotonic() + limit.total_seconds()
        while time.monotonic() < until:
            with self._locked(worker) as file:
                if file is not None:
                    return True
            time.sleep(_FILE_PAUSE)
        return False

    @contextmanager
    def taken(self, worker: str) -> Iterator[list[str] | None]:
        with self._locked(worker) as file:
            if file is None:
                yield None
                return
            with os.fdopen(os.dup(file), encoding="utf-8") as lines:
                found = _in_hand(lines)
            yield list(found)
            with suppress(OSError):
                self._file_of(worker).unlink()

    @contextmanager
    def _locked(self, worker: str) -> Iterator[int | None]:
        """Lock a worker's file if it is there and free: its descriptor, or ``None``."""
        try:
            file = os.open(self._file_of(worker), os.O_RDONLY)
        except OSError:
            yield None
            return
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
                return
            # Whoever has opened it before may lock it once more after it was removed.
            yield file if os.fstat(file).st_nlink else None
        finally:
            os.close(file)


Presence = _OnPostgres | _InFolder


def _in_hand(lines: Iterable[str], before: Iterable[str] = ()) -> dict[str, None]:
    found = dict.fromkeys(before)
    for line in lines:
        with suppress(ValueError):  # Cut off: its worker died while it wrote.
            run, there = json.loads(line)
            found.pop(run, None)
            if there:
                found[run] = None
    return found
