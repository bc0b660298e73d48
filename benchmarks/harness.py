"""What all benchmarks share: options, ledgers, workers, connections, memory, tables, exit codes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from sqlalchemy import make_url

from benchmarks.plain import READY as PLAIN_READY
from benchmarks.tools import TABLE
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.client.client import launch_run
from surehand.client.connection import Connection
from surehand.client.outcome import run_result
from surehand.drill.environment import READY, Environment, prepare_drill, start_worker
from surehand.drill.report import nearest_rank
from surehand.process.children import Child, python
from surehand.process.connect import connect, find_target
from surehand.process.exits import ExitCode, SurehandError, end_by_signal_in_order
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunResult, StartRun
from surehand.workflows.identity import DEFAULT_TENANT, run_id_for
from surehand.workflows.plan.plan import Durability, Plan
from tests.ledger_databases import OWNER, WORKER, PostgresLedgers
from tests.postgres_server import PostgresMissing, PostgresServer

#: A line of a table, and an element of ``--json``.
Row = dict[str, Any]
MODES = tuple(mode.value for mode in Durability)


@dataclass
class Found:
    """What was measured so far. It is printed even if a benchmark is ended early."""

    say: Callable[[str], object]
    rows: list[Row] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        self.say(f"{text} ({time.monotonic() - self.began:.0f} s so far)")


def percentiles(of: str, seconds: Iterable[float]) -> Row:
    """Return the figures of at least one measurement; percentiles by nearest rank."""
    times = sorted(seconds)
    figures = {"p50": nearest_rank(times, 50), "p95": nearest_rank(times, 95), "max": times[-1]}
    return {f"{of}_{name}_s": round(value, 3) for name, value in figures.items()}


def tables(rows: Sequence[Row]) -> str:
    by_columns: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_columns.setdefault(tuple(row), []).append(row)
    return "\n\n".join(
        "\n".join(
            f"| {' | '.join(map(str, line))} |"
            for line in (columns, ["---"] * len(columns), *(row.values() for row in group))
        )
        for columns, group in by_columns.items()
    )


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument(
        "--database", choices=DATABASES, action="append", help="may be repeated; default both"
    )
    return parser


def clean() -> dict[str, str]:
    """Return the environment without settings: the figures are those of the defaults."""
    ours = ("SUREHAND_", "TEMPORAL_", "BENCHMARK_")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}


def run(
    name: str,
    options: argparse.Namespace,
    play: Callable[[Environment, argparse.Namespace, Found], Coroutine[Any, Any, None]],
    missed: Callable[[Sequence[Row]], Iterable[str]] = lambda rows: (),
) -> int:
    console = Console(markup=False, highlight=False, soft_wrap=True)
    end_by_signal_in_order()
    options.database = options.database or list(DATABASES)
    found, before, code = Found(console.print), os.getloadavg()[0], ExitCode.DONE
    try:
        with prepare_drill(clean(), database=None, say=console.print) as environment:
            try:
                asyncio.run(play(environment, options, found))
            except KeyboardInterrupt:
                code = ExitCode.INTERRUPTED
                print(f"benchmarks.{name}: ended early", file=sys.stderr)
            except BaseException:
                environment.kept = True
                console.print(f"Ledgers and logs are kept in {environment.folder}")
                raise
    except (SurehandError, PostgresMissing) as error:
        code = error.code if isinstance(error, SurehandError) else ExitCode.NOT_REACHABLE
        print(f"benchmarks.{name}: {error}", file=sys.stderr)
    after = os.getloadavg()[0]
    if not found.rows:
        return code
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(f"{json.dumps(found.rows, indent=1)}\n", encoding="utf-8")
    console.print(tables(found.rows))
    console.print(f"\nLoad average before {before:.1f}, after {after:.1f} (its own included)")
    lines = list(missed(found.rows))
    for line in lines:
        console.print(f"MISSED: {line}")
    return ExitCode.BROKEN if lines and code is ExitCode.DONE else code


DATABASES: Final = ("sqlite", "postgresql")
_MB: Final = 1_000_000
#: A worker that has not used this much of a core for a second has come to rest.
_AT_REST: Final = 0.05
#: Seconds until it has to be at rest.
_LIMIT: Final = 120.0
#: Makes a ledger of this name, and returns its URL.
MakeLedger = Callable[[str], str]


def makers(
    environment: Environment, databases: Sequence[str], running: ExitStack
) -> dict[str, MakeLedger]:
    """Return how to make a ledger, by database; starts a private PostgreSQL if it is asked for."""
    found: dict[str, MakeLedger] = {}
    if "sqlite" in databases:

        def make_file(name: str) -> str:
            file = environment.folder / f"{name}.db"
            shutil.copy(environment.template, file)
            with closing(sqlite3.connect(file)) as connection, connection:
                connection.execute(TABLE)
            return f"sqlite:///{file}"

        found["sqlite"] = make_file
    if "postgresql" in databases:
        server = PostgresServer.start()
        running.callback(server.remove)
        ledgers = PostgresLedgers(server)

        def make_database(_name: str) -> str:
            url = ledgers.create()
            server.execute(
                f"SET ROLE {OWNER}; {TABLE}; GRANT SELECT, INSERT ON bookings TO {WORKER}",
                url.rpartition("/")[2],
            )
            return url

        found["postgresql"] = make_database
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


async def connection_for(
    environment: Environment, variables: Mapping[str, str], queue: str
) -> Connection:
    """Return a connection that starts runs on a task queue."""
    target = find_target(variables)
    settings = ClientSettings(
        tenant=DEFAULT_TENANT, user="benchmark", task_queue=queue, ui_url=environment.web_ui
    )
    return Connection(await connect(target, quiet=True), target, settings)


def on_queue(connection: Connection, queue: str) -> Connection:
    settings = connection.settings.model_copy(update={"task_queue": queue})
    return Connection(connection.client, connection.target, settings)


async def played(connection: Connection, name: str, plan: Plan, mode: str) -> RunResult:
    """Start a run of a plan, and return its result; its id begins with `name`."""
    settings = connection.settings
    run_id = run_id_for(settings.tenant, f"{name}-{secrets.token_hex(6)}")
    request = StartRun(
        run_id=run_id,
        tenant=settings.tenant,
        user=settings.user,
        plan=plan,
        durability=Durability(mode),
    )
    await launch_run(connection, request)
    result = await run_result(connection, run_id)
    if result.state is not RunState.COMPLETED:
        raise SurehandError(f"{run_id} is {result.state.value}: {result.error}")
    return result


@dataclass(frozen=True)
class Place:
    """Where runs are measured."""

    server: Connection
    store: str
    """The kind of its ledger."""
    url: str
    worker: Child
    """Ours."""
    plain: Child
    """That of Temporal alone."""


async def at_each(
    environment: Environment,
    variables: Mapping[str, str],
    databases: Sequence[str],
    play: Callable[[Place], Awaitable[None]],
    processes: int = 1,
) -> None:
    """Play on each ledger, with workers of ours and one of Temporal alone."""
    server = await connection_for(environment, variables, "")
    log = environment.folder / "plain.log"
    with ExitStack() as running:
        plain = Child(python("benchmarks.plain"), environment=variables, log=log)
        running.enter_context(plain)
        await asyncio.to_thread(plain.wait_said, PLAIN_READY)
        for store, make in makers(environment, databases, running).items():
            url = await asyncio.to_thread(make, "steps")
            ours = {"database_url": url, "task_queue": store}
            folder = environment.make_case_folder(store)
            with ExitStack() as workers:
                started = [
                    workers.enter_context(
                        start_worker(variables, folder, f"worker-{number}", **ours)
                    )
                    for number in range(1, processes + 1)
                ]
                for one in started:
                    await asyncio.to_thread(one.wait_said, READY)
                place = Place(on_queue(server, store), store, url, started[0], plain)
                await play(place)


async def memory_at_rest(worker: Child) -> float:
    """Wait until a worker does nothing, and return its memory in MB."""
    deadline, used = time.monotonic() + _LIMIT, 1.0
    while used > _AT_REST:
        require_running(worker)
        if time.monotonic() > deadline:
            raise SurehandError(f"the worker does not come to rest: {used:.0%} of a core")
        before = tree_cpu(worker.pid)
        await asyncio.sleep(1)
        used = tree_cpu(worker.pid) - before
    return memory(worker)


def memory(worker: Child) -> float:
    pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MB


def require_running(worker: Child) -> None:
    if worker.returncode is not None:
        raise SurehandError(f"the worker has ended: {worker.last_line()}")


def tree_cpu(pid: int) -> float:
    """Return the processor time of a process and all that it has started, in seconds.

    Those that have ended count at their parent.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            with suppress(OSError):  # ended this moment
                used += tree_cpu(int(child))
    return used


def process_with(*words: str) -> int:
    """Return the id of the process whose command has these words one after another."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if any(tuple(command[at : at + len(words)]) == words for at in range(len(command))):
            return int(folder.name)
    raise SurehandError(f"there is no process with {' '.join(words)!r}")
