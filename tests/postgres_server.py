"""A real PostgreSQL for the tests: private, on a free port of this machine, durable as in life."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from surehand.process.children import Child
from surehand.process.dev_server import free_ports

#: Seconds for a start, which after an immediate stop includes the recovery from its log.
START_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 30.0
SUPERUSER: Final = "postgres"


class PostgresMissing(Exception):
    """PostgreSQL's server programs are not on this machine; the message says where was looked."""


def find_binaries() -> Path:
    """The folder with ``initdb`` and ``postgres``: on PATH, else Debian's with the newest version.

    Raises:
        PostgresMissing: There is none.
    """
    if on_path := shutil.which("initdb"):
        # The link's target: Debian's `postgres` is not on PATH, only beside the real initdb.
        return Path(on_path).resolve().parent
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    versions = sorted((path.parent for path in debian), key=lambda p: float(p.parent.name))
    if not versions:
        raise PostgresMissing(
            "initdb is neither on PATH nor in /usr/lib/postgresql/*/bin: apt-get install postgresql"
        )
    return versions[-1]


def other_user() -> dict[str, Any]:
    """As which user to run: PostgreSQL and PgBouncer refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in (SUPERUSER, "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise PostgresMissing("this is root and there is neither a user postgres nor nobody to run as")


class PostgresServer:
    """One private server. Connections from this machine need no password.

    Attributes:
        port: Its port on 127.0.0.1; the same one after a restart.
        folder: Its data, socket and log.
    """

    def __init__(self, binaries: Path, folder: Path, port: int) -> None:
        self._binaries = binaries
        self._user = other_user()
        self._process: Child | None = None
        self.folder = folder
        self.port = port

    @classmethod
    def start(cls) -> PostgresServer:
        """Create an empty server and start it.

        Raises:
            PostgresMissing: The programs are not on this machine.
        """
        binaries = find_binaries()
        # Not below pytest's own folders: those are closed to the user that root runs it as.
        folder = Path(tempfile.mkdtemp(prefix="surehand-postgres-"))
        server = cls(binaries, folder, *free_ports(1))
        if server._user:
            os.chown(folder, server._user["user"], server._user["group"])
        server._run(
            "initdb", "-D", "data", "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "-A", "trust"
        )
        server.restart()
        return server

    @classmethod
    def follow(cls, primary: PostgresServer, name: str) -> PostgresServer:
        """Create a standby of another server and start it: what that one commits is streamed."""
        folder = Path(tempfile.mkdtemp(prefix="surehand-standby-"))
        server = cls(find_binaries(), folder, *free_ports(1))
        if server._user:
            os.chown(folder, server._user["user"], server._user["group"])
        source = f"host=127.0.0.1 port={primary.port} user={SUPERUSER} application_name={name}"
        # -R: it is to go on from there as a standby.
        server._run("pg_basebackup", "-D", "data", "-R", "-X", "stream", "-c", "fast", "-d", source)
        server.restart()
        return server

    def promote(self) -> None:
        """Have a standby take its primary's place, and wait until it may write."""
        self.execute("SELECT pg_promote(true, 60)")

    def restart(self) -> None:
        """Start it again on the same data and port; one that runs is stopped before."""
        self.stop()
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
        }
        command = [str(self._binaries / "postgres"), "-D", "data", "-p", str(self.port)]
        command += [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        # QUIT is PostgreSQL's immediate shutdown, which takes its child processes along.
        self._process = Child(
            command, environment=os.environ, log=self.folder / "log", guard="QUIT", **self._user
        )
        began = time.monotonic()
        ask = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ask).returncode != 0:
            if not self._process.running or time.monotonic() - began > START_TIMEOUT:
                words = (self.folder / "log").read_text().splitlines()[-5:]
                self._end(signal.SIGQUIT)
                raise RuntimeError("PostgreSQL did not start: " + " / ".join(words))
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order: open transactions are rolled back; no-op when it has ended."""
        self._end(signal.SIGINT)

    def kill_immediate(self) -> None:
        """End it as a power cut would: no checkpoint, the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """End it and all its processes by SIGKILL, as when its machine is gone."""
        assert self._process is not None
        pid = self._process.pid
        # Its children have sessions of their own; with it stopped, none is added, or told to end.
        os.kill(pid, signal.SIGSTOP)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self._process.kill()
        self._process = None

    def remove(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_database(self, name: str, owner: str = SUPERUSER) -> str:
        self.execute(f'CREATE DATABASE "{name}" OWNER "{owner}"')
        return self.url(name, owner)

    def url(self, database: str, user: str = SUPERUSER) -> str:
        """The SQLAlchemy URL of a database for a role."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def dump(self, database: str, name: str) -> None:
        """Write a database into a file of the server's folder, as its backup."""
        self._run("pg_dump", *self._where(database), "--format=custom", f"--file={name}")

    def restore(self, database: str, name: str) -> None:
        """Put what was dumped in the database's place; whoever works on it is cut off."""
        self.execute(f'DROP DATABASE "{database}" WITH (FORCE)')
        self.execute(f'CREATE DATABASE "{database}"')
        self._run("pg_restore", *self._where(database), "--exit-on-error", name)

    def execute(self, sql: str, database: str = "postgres") -> str:
        where = self._where(database)
        return self._run("psql", *where, "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql)

    def _where(self, database: str) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", SUPERUSER, "-d", database]

    def _run(self, program: str, *arguments: str) -> str:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self._binaries / program, *arguments],
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, **self._user,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.stop(how, STOP_TIMEOUT)
            self._process = None
