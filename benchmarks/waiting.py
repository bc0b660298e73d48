"""``python -m benchmarks.waiting``: what a thousand runs that wait for an approval cost one worker.

Measured of the worker's own process: memory and processor time while they wait, and the time from
a decision to the call that it approves, of single ones and of all of them at once. BENCHMARKS.md
shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from sqlalchemy import func, select

from benchmarks.figures import Figures
from benchmarks.ledgers import DATABASES, makers
from benchmarks.program import Told, clean, parser_of, run
from benchmarks.tools import calls
from benchmarks.waiting_tables import Waited, tables
from benchmarks.worker_use import WorkerUse
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import approvals
from surehand.client.connection import Connection
from surehand.client.launch import launch
from surehand.drill.environment import READY, Environment, worker
from surehand.process.connect import connect, find_target
from surehand.process.exits import SurehandError, leave
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome
from surehand.workflows.contracts.starting import StartRun
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.plan import Plan

RUNS: Final = 1000
#: Runs that are on their way to their request at the same time.
STARTS: Final = 20
#: Those who approve everything at the same time, each with a connection of its own.
CLIENTS: Final = 20
#: Approved one by one, while all others wait.
SINGLES: Final = 20
#: Seconds that the waiting is watched for.
PARKED: Final = 60.0
_LOOK: Final = 0.02  # seconds between looks at what has arrived
#: Seconds without anything arriving until something is lost.
_LIMIT: Final = 120.0


@dataclass(frozen=True)
class Approval:
    """A request that waits."""

    run_id: str
    approval_id: str
    params_hash: str


class WaitingRuns:
    """Many runs on one worker, which all wait for an approval of the same tool."""

    def __init__(
        self,
        server: Connection,
        use: WorkerUse,
        world: Path,
        ledger: Ledger,
        console: Console,
        *,
        starts: int,
        decided: int,
        by_update: bool,
    ) -> None:
        self._server = server
        self._starts = starts
        self._decided = decided
        self._by_update = by_update
        self._use = use
        self._world = world
        self._ledger = ledger
        self._say = console.print

    async def measure(self, database: str, runs: int, parked_s: float) -> Waited:
        """Start the runs, watch them wait, and approve them.

        Raises:
            SurehandError: The worker died, or something does not arrive.
        """
        ready = await self._use.at_rest()
        began = time.monotonic()
        await self._start(runs)
        started = time.monotonic() - began
        await self._use.at_rest()
        cpu, began = self._use.cpu(), time.monotonic()
        await asyncio.sleep(parked_s)
        used = (self._use.cpu() - cpu) / (time.monotonic() - began)
        parked = self._use.memory()
        self._say(f"{database}: {runs} runs wait after {started:.0f} s, {parked:.0f} MB")
        waiting = self._waiting()
        few = waiting[: min(SINGLES, runs // 2)]
        single = [await self._approved([one]) for one in few]
        rest = await self._approved(waiting[len(few) : self._decided])
        done = await self._use.at_rest()
        return Waited(
            database=database,
            runs=runs,
            ready_mb=ready,
            parked_mb=parked,
            done_mb=done,
            cpu=used,
            started_s=started,
            single=Figures.of(took for one in single for took in one.took),
            together=Figures.of(rest.took),
            together_s=rest.whole,
        )

    async def _start(self, runs: int) -> None:
        places = asyncio.Semaphore(self._starts)
        plan = Plan.model_validate(
            {"name": "waiting", "steps": [{"id": "pay", "tool": "world.sign_off", "params": {}}]}
        )
        waiting: set[str] = set()
        begun = asyncio.Event()

        async def start(number: int) -> None:
            run_id = f"{self._server.settings.task_queue}-{number}"
            async with places:
                await launch(
                    self._server,
                    StartRun(run_id=run_id, tenant=DEFAULT_TENANT, user="benchmark", plan=plan),
                )
                begun.set()
                while run_id not in waiting:
                    await asyncio.sleep(_LOOK)

        async def look() -> None:
            await begun.wait()
            while len(waiting) < runs:
                self._use.check()
                if self._count() > len(waiting):
                    waiting.update(one.run_id for one in self._waiting())
                await asyncio.sleep(_LOOK)

        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            for number in range(runs):
                group.create_task(start(number))

    async def _approved(self, asked: Sequence[Approval]) -> Arrivals:
        """Approve requests, as many at once as there are clients; wait for their calls."""
        target = self._server.target
        clients = (
            [await connect(target, quiet=True) for _ in range(min(CLIENTS, len(asked)))]
            if len(asked) > 1
            else [self._server.client]
        )
        sent: dict[str, float] = {}

        async def decide(mine: Sequence[Approval], client: Any) -> None:
            for one in mine:
                decision = Decision(
                    approval_id=one.approval_id,
                    params_hash=one.params_hash,
                    outcome=DecisionOutcome.APPROVE,
                    approver="benchmark",
                )
                sent[one.run_id] = time.monotonic()
                run = client.get_workflow_handle(one.run_id)
                if self._by_update:
                    await run.execute_update(Verb.DECIDE, decision)
                else:
                    await run.signal(Verb.DECIDE, decision)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(decide(asked[number :: len(clients)], client))
        arrived: dict[str, float] = {}
        newest = time.monotonic()
        while len(arrived) < len(sent):
            self._use.check()
            await asyncio.sleep(_LOOK)
            found = {c["run"]: c["at"] for c in calls(self._world) if c["run"] in sent}
            if len(found) > len(arrived):
                arrived, newest = found, time.monotonic()
            if time.monotonic() - newest > _LIMIT:
                raise SurehandError(f"{len(sent) - len(arrived)} approved calls do not arrive")
        took = [arrived[run_id] - at for run_id, at in sent.items()]
        return Arrivals(took, max(arrived.values()) - began)

    def _waiting(self) -> list[Approval]:
        columns = (approvals.c.run_id, approvals.c.approval_id, approvals.c.params_hash)
        query = select(*columns).where(approvals.c.state == "pending")
        with self._ledger.transaction(DEFAULT_TENANT) as tx:
            return [Approval(**row) for row in tx.all(query)]

    def _count(self) -> int:
        query = select(func.count().label("n")).where(approvals.c.state == "pending")
        with self._ledger.transaction(DEFAULT_TENANT) as tx:
            row = tx.one(query)
        return int(row["n"]) if row else 0


@dataclass(frozen=True)
class Arrivals:
    """When approved calls arrived, in seconds from their own decisions, and from the first one."""

    took: list[float]
    whole: float


async def measure(
    environment: Environment,
    options: argparse.Namespace,
    console: Console,
    measured: list[Waited],
) -> None:
    """Measure on each ledger; ``measured`` keeps what there is when this is ended early."""
    settings = {"SUREHAND_TOOL_MODULES": "benchmarks.tools"}
    if options.cached is not None:
        settings["SUREHAND_MAX_CACHED_WORKFLOWS"] = str(options.cached)
    variables = environment.variables({**clean(), **settings})
    databases = options.database or list(DATABASES)
    target = find_target(variables)
    with ExitStack() as servers:
        for database, make in makers(environment, databases, servers).items():
            url = await asyncio.to_thread(make, f"{database}-waiting")
            folder = environment.case_folder(f"{database}-worker")
            queue = f"waiting-{database}"
            own = ClientSettings(
                tenant=DEFAULT_TENANT, user="benchmark", task_queue=queue, ui_url=environment.web_ui
            )
            server = Connection(await connect(target, quiet=True), target, own)
            world = folder / "world.jsonl"
            with worker(
                {**variables, "BENCHMARK_WORLD": str(world)},
                folder,
                "worker",
                database_url=url,
                task_queue=queue,
            ) as one:
                await asyncio.to_thread(one.wait_said, READY)
                async with open_ledger(url) as ledger:
                    waiting = WaitingRuns(
                        server,
                        WorkerUse(one),
                        world,
                        ledger,
                        console,
                        starts=options.starts,
                        decided=options.decided or options.runs,
                        by_update=options.update,
                    )
                    measured.append(await waiting.measure(database, options.runs, options.parked))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; exits with 3 if the target is missed."""
    parser = parser_of("waiting", "What runs cost that wait for approval.")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"default {RUNS}")
    parser.add_argument(
        "--parked", type=float, default=PARKED, metavar="SECONDS", help=f"default {PARKED:.0f}"
    )
    parser.add_argument(
        "--cached", type=int, metavar="N", help="SUREHAND_MAX_CACHED_WORKFLOWS; default its own"
    )
    parser.add_argument(
        "--starts", type=int, default=STARTS, metavar="N", help=f"at once; default {STARTS}"
    )
    parser.add_argument(
        "--decided", type=int, metavar="N", help="runs that are approved; default all"
    )
    parser.add_argument(
        "--update", action="store_true", help="decide by update, as the commands do; not by signal"
    )
    options = parser.parse_args(argv)
    if options.runs < 2 or options.starts < 1:
        parser.error("--runs must be at least 2, --starts at least 1")
    if options.decided is not None and options.decided <= SINGLES:
        parser.error(f"--decided must be more than {SINGLES}")
    measured: list[Waited] = []
    return run(
        "waiting",
        options.json,
        lambda environment, console: measure(environment, options, console, measured),
        lambda: Told(
            [one.document() for one in measured],
            tables(measured),
            [line for one in measured for line in one.missed()],
        ),
    )


if __name__ == "__main__":
    leave(main())
