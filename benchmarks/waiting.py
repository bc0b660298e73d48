"""``python -m benchmarks.waiting``: what a thousand runs that wait for an approval cost one worker.

Measured of the worker's own process: memory and processor time while they wait, and the time from
a decision to the call that it approves, of single ones and of all of them at once. BENCHMARKS.md
shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from benchmarks import harness
from benchmarks.tools import calls
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import approvals
from surehand.client.client import launch_run
from surehand.client.connection import Connection
from surehand.drill.environment import READY, Environment, start_worker
from surehand.process.children import Child
from surehand.process.connect import connect
from surehand.process.exits import SurehandError, leave
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.plan import Plan

RUNS: Final = 1000
#: What a worker with a thousand parked runs may take, in MB, and how much of one core.
MEMORY_TARGET: Final = 300.0
CPU_TARGET: Final = 0.01
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
_PLAN: Final = {"name": "waiting", "steps": [{"id": "pay", "tool": "world.sign_off", "params": {}}]}


@dataclass(frozen=True)
class WaitingRuns:
    """Many runs on one worker, which all wait for an approval of the same tool."""

    server: Connection
    worker: Child
    world: Path
    ledger: Ledger

    async def start(self, runs: int) -> None:
        """Start runs, and return once all of them wait."""
        places, plan = asyncio.Semaphore(STARTS), Plan.model_validate(_PLAN)
        waiting: set[str] = set()

        async def start(number: int) -> None:
            run_id = f"{self.server.settings.task_queue}-{number}"
            request = StartRun(run_id=run_id, tenant=DEFAULT_TENANT, user="benchmark", plan=plan)
            async with places:
                await launch_run(self.server, request)
                while run_id not in waiting:
                    await asyncio.sleep(_LOOK)

        async def look() -> None:
            while len(waiting) < runs:
                harness.require_running(self.worker)
                waiting.update(one["run_id"] for one in self.requests())
                await asyncio.sleep(10 * _LOOK)

        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            for number in range(runs):
                group.create_task(start(number))

    def requests(self) -> list[dict[str, Any]]:
        columns = (approvals.c.run_id, approvals.c.approval_id, approvals.c.params_hash)
        query = select(*columns).where(approvals.c.state == "pending")
        with self.ledger.transaction(DEFAULT_TENANT) as tx:
            return [dict(row) for row in tx.all(query)]

    async def approve(self, asked: Sequence[dict[str, Any]]) -> tuple[list[float], float]:
        """Approve requests, as many at once as there are clients, and wait for their calls.

        They are decided by update, as the commands and the pages do.
        """
        target, sent = self.server.target, dict[str, float]()
        clients = [self.server.client]
        if len(asked) > 1:
            clients = [await connect(target, quiet=True) for _ in range(min(CLIENTS, len(asked)))]

        async def decide(mine: Sequence[dict[str, Any]], client: Any) -> None:
            for one in mine:
                decision = Decision(
                    approval_id=one["approval_id"],
                    params_hash=one["params_hash"],
                    outcome=DecisionOutcome.APPROVE,
                    approver="benchmark",
                )
                sent[one["run_id"]] = time.monotonic()
                handle = client.get_workflow_handle(one["run_id"])
                await handle.execute_update(Verb.DECIDE, decision)

        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(decide(asked[number :: len(clients)], client))
        arrived, newest = dict[str, float](), time.monotonic()
        while len(arrived) < len(sent):
            harness.require_running(self.worker)
            await asyncio.sleep(_LOOK)
            found = {c["run"]: c["at"] for c in calls(self.world) if c["run"] in sent}
            if len(found) > len(arrived):
                arrived, newest = found, time.monotonic()
            if time.monotonic() - newest > _LIMIT:
                raise SurehandError(f"{len(sent) - len(arrived)} approved calls do not arrive")
        took = [arrived[run_id] - at for run_id, at in sent.items()]
        return took, max(arrived.values()) - min(sent.values())


async def measure(
    environment: Environment, options: argparse.Namespace, found: harness.Found
) -> None:
    variables = environment.make_variables(
        {**harness.clean(), "SUREHAND_TOOL_MODULES": "benchmarks.tools"}
    )
    with ExitStack() as servers:
        for store, make in harness.makers(environment, options.database, servers).items():
            url = await asyncio.to_thread(make, f"{store}-waiting")
            folder, queue = environment.make_case_folder(f"{store}-worker"), f"waiting-{store}"
            server, world = (
                await harness.connection_for(environment, variables, queue),
                folder / "world",
            )
            own = {**variables, "BENCHMARK_WORLD": str(world)}
            with start_worker(own, folder, "worker", database_url=url, task_queue=queue) as one:
                await asyncio.to_thread(one.wait_said, READY)
                async with open_ledger(url) as ledger:
                    waiting = WaitingRuns(server, one, world, ledger)
                    found.rows += await _measure(store, waiting, options, found)


async def _measure(
    store: str, waiting: WaitingRuns, options: argparse.Namespace, found: harness.Found
) -> list[harness.Row]:
    """Start the runs, watch them wait, and approve them."""
    one, runs = waiting.worker, options.runs
    ready = await harness.memory_at_rest(one)
    began = time.monotonic()
    await waiting.start(runs)
    started = time.monotonic() - began
    await harness.memory_at_rest(one)
    cpu, began = harness.tree_cpu(one.pid), time.monotonic()
    await asyncio.sleep(options.parked)
    used = (harness.tree_cpu(one.pid) - cpu) / (time.monotonic() - began)
    parked = harness.memory(one)
    found.note(f"{store}: {runs} runs wait, {parked:.0f} MB")
    asked = waiting.requests()
    few = asked[: min(SINGLES, runs // 2)]
    single = [took for request in few for took in (await waiting.approve([request]))[0]]
    together, whole = await waiting.approve(asked[len(few) :])
    costs = {
        "database": store,
        "runs": runs,
        "ready_mb": round(ready),
        "parked_mb": round(parked),
        "done_mb": round(await harness.memory_at_rest(one)),
        "kb_per_run": round(1000 * (parked - ready) / runs),
        "cpu": round(used, 4),
        "started_s": round(started, 1),
    }
    times = [
        {"database": store, "approved": how, "n": len(took), **harness.percentiles("call", took)}
        for how, took in (("one by one", single), ("all at once", together))
    ]
    times[1] |= {"calls_per_s": round(len(together) / whole, 1)}
    return [costs, *times]


def missed(rows: Sequence[harness.Row]) -> Iterable[str]:
    for row in rows:
        if row.get("parked_mb", 0) > MEMORY_TARGET:
            yield f"{row['database']}: {row['parked_mb']} MB parked, not {MEMORY_TARGET:.0f} MB"
        if row.get("cpu", 0) > CPU_TARGET:
            yield f"{row['database']}: {row['cpu']:.1%} of a core idle, not {CPU_TARGET:.0%}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.parser_of("waiting", "What runs cost that wait for approval.")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"default {RUNS}")
    parked = f"default {PARKED:.0f}"
    parser.add_argument("--parked", type=float, default=PARKED, metavar="SECONDS", help=parked)
    options = parser.parse_args(argv)
    if options.runs < 2:
        parser.error("--runs must be at least 2")
    return harness.run("waiting", options, measure, missed)


if __name__ == "__main__":
    leave(main())
