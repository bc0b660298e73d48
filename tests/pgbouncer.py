"""A real PgBouncer in transaction mode, before a PostgreSQL of the tests."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from sqlalchemy import make_url

from surehand.process.children import Child
from surehand.process.dev_server import free_ports
from tests.ledger_databases import OWNER, WORKER
from tests.postgres_server import SUPERUSER, PostgresServer, other_user

#: Debian's place for it, which is on root's PATH only.
_PLACES: Final = f"{os.environ['PATH']}:/usr/sbin"
#: Seconds.
_START_S: Final = 20.0


class PgBouncerMissing(Exception):
    """PgBouncer is not on this machine."""


class PgBouncer:
    """One PgBouncer. Use it in a ``with`` statement.

    Each transaction gets whichever of its few connections to the server is free.
    """

    def __init__(
        self,
        server: PostgresServer,
        connections: int,
        passwords: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start it.

        Args:
            server: What it is before.
            connections: How many it keeps to a database, for each role.
            passwords: Of roles that the server asks for one. The pooler asks nobody.

        Raises:
            PgBouncerMissing: It is not on this machine.
        """
        program = shutil.which("pgbouncer", path=_PLACES)
        if program is None:
            raise PgBouncerMissing("pgbouncer is not on this machine: apt-get install pgbouncer")
        self.folder = Path(tempfile.mkdtemp(prefix="surehand-pgbouncer-"))
        (self.port,) = free_ports(1)
        users = self.folder / "users.txt"
        known = {**dict.fromkeys((OWNER, WORKER, SUPERUSER), ""), **passwords}
        users.write_text("".join(f'"{name}" "{word}"\n' for name, word in known.items()))
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": users,
            "pool_mode": "transaction",
            "default_pool_size": connections,
            "max_client_conn": 500,
        }
        lines = ["[databases]", f"* = host=127.0.0.1 port={server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        file = self.folder / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        user = other_user()
        for path in (self.folder, users, file):
            if user:
                os.chown(path, user["user"], user["group"])
        self._process = Child(
            [program, str(file)], environment=os.environ, log=self.folder / "log", **user
        )

    def __enter__(self) -> Self:
        until = time.monotonic() + _START_S
        while True:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            said = self._process.output()
            assert self._process.running and time.monotonic() < until, said
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def before(self, url: str) -> str:
        """Return the URL of a database of the server, through it."""
        return make_url(url).set(port=self.port).render_as_string(hide_password=False)
