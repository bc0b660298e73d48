"""Ledgers for the pairs: a fresh one each, with the table of the transactional tool."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

from sqlalchemy import make_url

from benchmarks.tools import TABLE
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.quotas.limits import change_limits
from surehand.drill.environment import Environment
from surehand.workflows.identity import DEFAULT_TENANT
from tests.ledger_databases import OWNER, WORKER, PostgresLedgers
from tests.postgres_server import PostgresServer

DATABASES: Final = ("sqlite", "postgresql")
#: All quotas of a tenant, far above what is used: it is counted, and nothing waits.
LIMITS: Final[dict[str, Any]] = {
    "open_runs": 1000,
    "effects_per_hour": 10**6,
    "pending_approvals": 1000,
    "tokens_per_day": 10**9,
    "money_per_day": "1000000",
}
#: Makes a ledger for the pair of this name, and returns its URL.
MakeLedger = Callable[[str], str]


def makers(
    environment: Environment, databases: list[str], running: ExitStack
) -> dict[str, MakeLedger]:
    """Return how a ledger is made, by database; starts a private PostgreSQL where it is asked for.

    Raises:
        PostgresMissing: PostgreSQL is asked for and not on this machine.
    """
    found: dict[str, MakeLedger] = {}
    if "sqlite" in databases:

        def in_a_file(name: str) -> str:
            file = environment.folder / f"{name}.db"
            shutil.copy(environment.template, file)
            with sqlite3.connect(file) as connection:
                connection.execute(TABLE)
            connection.close()
            return f"sqlite:///{file}"

        found["sqlite"] = in_a_file
    if "postgresql" in databases:
        server = PostgresServer.start()
        running.callback(server.remove)
        ledgers = PostgresLedgers(server)

        def on_the_server(_name: str) -> str:
            url = ledgers.create()
            server.execute(
                f"SET ROLE {OWNER}; {TABLE}; GRANT SELECT, INSERT ON bookings TO {WORKER}",
                url.rpartition("/")[2],
            )
            return url

        found["postgresql"] = on_the_server
    return found


@contextmanager
def administration(url: str) -> Iterator[Transaction]:
    """Open a transaction of the role that owns a ledger's tables."""
    owner = make_url(url)
    if owner.get_backend_name() == "postgresql":
        owner = owner.set(username=OWNER)
    text = owner.render_as_string(hide_password=False)
    with closing(Ledger(make_engine(text))) as ledger, ledger.transaction(DEFAULT_TENANT) as tx:
        yield tx


def limit(url: str) -> None:
    """Set all quotas of the tenant whose runs are measured."""
    with administration(url) as tx:
        change_limits(tx, "benchmark", **LIMITS)
