"""Two real PostgreSQL servers, of which one follows the other, and what a failover is made of."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import make_url

from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresServer

STANDBY: Final = "standby_1"


@dataclass(frozen=True)
class Replicated:
    """A primary and its standby."""

    primary: PostgresServer
    standby: PostgresServer
    database: str
    """A fresh ledger's."""

    @classmethod
    @contextmanager
    def running(cls, *, synchronous: bool) -> Iterator[Replicated]:
        """Start both; the primary waits for its standby at each commit, or does not."""
        primary = PostgresServer.start()
        try:
            database = str(make_url(PostgresLedgers(primary).create()).database)
            standby = PostgresServer.follow(primary, STANDBY)
            try:
                pair = cls(primary, standby, database)
                pair.wait("SELECT count(*) FROM pg_stat_replication WHERE state='streaming'", "1")
                if synchronous:
                    pair.make_synchronous()
                yield pair
            finally:
                standby.remove()
        finally:
            primary.remove()

    def wait(self, sql: str, wanted: str) -> None:
        """Wait until the primary answers so."""
        until = time.monotonic() + 30
        while (found := self.primary.execute(sql)) != wanted:
            assert time.monotonic() < until, f"{sql}: {found}"
            time.sleep(0.02)

    def wait_level(self) -> None:
        """Wait until the standby has all that the primary has."""
        self.wait("SELECT pg_current_wal_flush_lsn() <= replay_lsn FROM pg_stat_replication", "t")

    def make_synchronous(self) -> None:
        """Have each commit wait until the standby has it."""
        self.commit_on(STANDBY)
        self.wait("SELECT sync_state FROM pg_stat_replication", "sync")

    def commit_on(self, names: str) -> None:
        """Have each commit wait for standbys, as the setting of their names says."""
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.primary.execute("SELECT pg_reload_conf()")

    def url(self, user: str) -> str:
        """The ledger, on whichever of the two may be written to."""
        hosts = "&".join(f"host=127.0.0.1:{one.port}" for one in (self.primary, self.standby))
        return f"postgresql://{user}@/{self.database}?{hosts}&target_session_attrs=read-write"

    def cut_off(self) -> None:
        """Let nothing of the primary reach the standby any more."""
        sender = int(self.primary.execute("SELECT pid FROM pg_stat_replication"))
        os.kill(sender, signal.SIGSTOP)

    def fail_over(self) -> None:
        """Kill the primary, and have the standby take its place."""
        self.primary.kill()
        self.standby.promote()
