"""``python -m benchmarks.approvals_page``: how long the list takes where 10,000 approvals wait.

The page is asked for as a browser does, from the request to its last byte, in the server's own
process. Its statements are written down, and the database is asked how it finds what they want:
none of them may look at all that waits. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

import httpx
import structlog
from rich.console import Console
from sqlalchemy import Connection, Engine, event, text

from benchmarks.figures import table
from benchmarks.ledgers import DATABASES, makers
from benchmarks.program import Told, parser_of, run
from surehand.activities.ledger.approvals import requests
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.cli.approvals_server.links import Links, Server
from surehand.cli.approvals_server.server import ApprovalsServer
from surehand.client.client import Client
from surehand.drill.environment import Environment
from surehand.process.exits import NotReachable, SurehandError, leave
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.policy import Needs, Requirement
from tests.ledger.scene import Scene
from tests.ledger_databases import OWNER

WAITING: Final = 10_000
#: Milliseconds that a page may take on two cores where so many wait, the first one included.
LONGEST_MS: Final = 300
#: Pages that are asked for one after another once the first one was there.
WARM: Final = 50
#: Requests that are written in one transaction.
_AT_ONCE: Final = 500
_ORIGIN: Final = "http://127.0.0.1:8082"
_TOOLS: Final = ("payments.refund", "mail.send", "inventory.restock", "bank.transfer")
_ROLES: Final = ((), ("manager",), ("lawyer", "manager"))
#: The list of what waits for whoever looks, and of one tool.
PAGES: Final = {"mine": "/", "all": "/?of=all", "one tool": "/?of=all&tool=mail.send"}


@dataclass(frozen=True)
class Page:
    """What one page of the list costs."""

    database: str
    page: str
    waiting: int
    cold_ms: float
    """The first one that a server answers which has just started, its connections included."""
    p50_ms: float
    p95_ms: float
    statements: int
    rows: int
    """That its statements return."""
    whole: int
    """Of its statements, those that look at all requests."""


@dataclass(frozen=True)
class _Statement:
    sql: str
    values: Any


async def _no_temporal() -> Client:
    raise NotReachable("the list needs none")


def _fill(scene: Scene, waiting: int) -> None:
    """Write requests of several tools, for which different roles are asked."""
    # A line for each of them would take longer than they do.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for first in range(0, waiting, _AT_ONCE):
        with scene.tx() as tx:
            for number in range(first, min(first + _AT_ONCE, waiting)):
                call = scene.call(
                    step_id=f"s{number}", key=f"k{number}", tool=_TOOLS[number % len(_TOOLS)]
                )
                needs = Needs(
                    requirements=(Requirement(roles=_ROLES[number % len(_ROLES)]),),
                    expires_in=timedelta(hours=1, seconds=number * 7919 % waiting),
                )
                requests.request(
                    tx,
                    call,
                    number=1,
                    description=f"Refund 120.00 EUR for order-{number}",
                    needs=needs,
                )


def _analysed(url: str) -> None:
    """Have PostgreSQL count what its tables have, as its autovacuum does by itself."""
    engine = make_engine(url)
    if engine.dialect.name == "postgresql":
        engine.dispose()
        engine = make_engine(engine.url.set(username=OWNER).render_as_string(hide_password=False))
        with engine.begin() as connection:
            connection.execute(text("ANALYZE approvals"))
    engine.dispose()


@contextmanager
def _noted(engine: Engine) -> Iterator[list[_Statement]]:
    """Write down what is asked of a ledger's tables meanwhile."""
    found: list[_Statement] = []

    def note(conn: Any, cursor: Any, sql: str, values: Any, *more: Any) -> None:
        if sql.lstrip().startswith("SELECT") and "FROM" in sql:
            found.append(_Statement(sql, values))

    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def _looks_at_all(connection: Connection, one: _Statement) -> bool:
    """Return whether a statement is answered by looking at all requests."""
    if connection.dialect.name == "postgresql":
        plan = connection.exec_driver_sql(f"EXPLAIN {one.sql}", one.values).all()
        return any("Seq Scan on approvals" in row[0] for row in plan)
    plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {one.sql}", one.values).all()
    return any(row[-1].startswith("SCAN approvals") for row in plan)


async def _page(browser: httpx.AsyncClient, path: str) -> float:
    """Return the milliseconds that a page takes."""
    began = time.perf_counter()
    answer = await browser.get(path)
    took = (time.perf_counter() - began) * 1000
    if answer.status_code != 200 or 'class="waiting"' not in answer.text:
        raise SurehandError(f"{path}: {answer.status_code}")
    return took


@asynccontextmanager
async def _signed_in(ledger: Ledger) -> AsyncIterator[httpx.AsyncClient]:
    """Give the browser of somebody who is signed in at a server that has just started."""
    server = Server.new(_ORIGIN, DEFAULT_TENANT)
    made = ApprovalsServer(
        ledger=ledger,
        connect=_no_temporal,
        tenant=DEFAULT_TENANT,
        links=Links(server),
        schema_of=lambda tool, version: None,
    )
    transport = httpx.ASGITransport(app=made.app(_ORIGIN))
    async with httpx.AsyncClient(transport=transport, base_url=_ORIGIN) as browser:
        token = server.link("ana", time.time()).partition("#")[2]
        sent = {"origin": _ORIGIN, "sec-fetch-site": "same-origin"}
        await browser.post("/sign-in", json={"token": token}, headers=sent)
        yield browser


async def _measured(database: str, url: str, name: str, waiting: int) -> Page:
    async with open_ledger(url) as ledger, _signed_in(ledger) as browser:
        cold = await _page(browser, PAGES[name])
        warm = sorted([await _page(browser, PAGES[name]) for _ in range(WARM)])
        with _noted(ledger.engine) as asked:
            await _page(browser, PAGES[name])
        with ledger.transaction(DEFAULT_TENANT) as tx:
            returned = [
                len(tx.connection.exec_driver_sql(one.sql, one.values).all()) for one in asked
            ]
            whole = [one for one in asked if _looks_at_all(tx.connection, one)]
    return Page(
        database=database,
        page=name,
        waiting=waiting,
        cold_ms=cold,
        p50_ms=statistics.median(warm),
        p95_ms=warm[int(len(warm) * 0.95)],
        statements=len(asked),
        rows=sum(returned),
        whole=len(whole),
    )


async def measure(
    environment: Environment,
    databases: list[str],
    waiting: int,
    console: Console,
    measured: list[Page],
) -> None:
    """Measure the list on each ledger; ``measured`` keeps what there is when it is ended early."""
    with ExitStack() as servers:
        for database, make in makers(environment, databases, servers).items():
            url = await asyncio.to_thread(make, f"{database}-approvals-page")
            began = time.monotonic()
            async with open_ledger(url) as ledger:
                scene = Scene.begin(ledger, DEFAULT_TENANT)
                await asyncio.to_thread(_fill, scene, waiting)
            await asyncio.to_thread(_analysed, url)
            took = time.monotonic() - began
            console.print(f"{database}: {waiting} approvals wait after {took:.0f} s")
            for name in PAGES:
                measured.append(await _measured(database, url, name, waiting))


def tables(measured: Sequence[Page]) -> str:
    """Return the table of BENCHMARKS.md."""
    head = ["ledger", "list", "waiting", "first", "p50", "p95", "statements", "rows", "whole"]
    rows = [
        [
            one.database,
            one.page,
            str(one.waiting),
            *(f"{ms:.0f} ms" for ms in (one.cold_ms, one.p50_ms, one.p95_ms)),
            *(str(number) for number in (one.statements, one.rows, one.whole)),
        ]
        for one in measured
    ]
    return table(head, rows)


def _missed(measured: Sequence[Page]) -> list[str]:
    whole = [f"{one.database}: {one.page}: looks at all requests" for one in measured if one.whole]
    slow = [
        f"{one.database}: {one.page}: {took:.0f} ms, more than {LONGEST_MS}"
        for one in measured
        if one.waiting >= WAITING and (took := max(one.cold_ms, one.p95_ms)) > LONGEST_MS
    ]
    return whole + slow


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; exits with 3 where a target is missed."""
    parser = parser_of("approvals_page", "How long the list of approvals takes.")
    parser.add_argument(
        "--waiting", type=int, default=WAITING, metavar="N", help=f"default {WAITING}"
    )
    options = parser.parse_args(argv)
    if options.waiting < 1:
        parser.error("--waiting must be at least 1")
    databases = options.database or list(DATABASES)
    measured: list[Page] = []
    return run(
        "approvals_page",
        options.json,
        lambda environment, console: measure(
            environment, databases, options.waiting, console, measured
        ),
        lambda: Told([asdict(one) for one in measured], tables(measured), _missed(measured)),
    )


if __name__ == "__main__":
    leave(main())
