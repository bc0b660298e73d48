"""``python -m benchmarks.recovery``: how long a run stands still when its worker is killed.

A worker is killed with SIGKILL at crash points of a call, and while its run waits for an approval.
Another one stands by, both with default settings. The time counts from the death to the next call
that reaches the outside world. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from temporalio.api.enums.v1 import EventType

from benchmarks import harness
from benchmarks.tools import calls
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.worker.crash_points import DURING, CrashPoint
from surehand.client.client import launch_run
from surehand.client.connection import Connection
from surehand.client.outcome import run_result
from surehand.drill.environment import READY, Environment, start_worker
from surehand.process.children import Child
from surehand.process.exits import SurehandError, leave
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.identity import run_id_for
from surehand.workflows.plan.plan import Plan

#: With two databases twenty kills of one kind at one point.
ROUNDS: Final = 10
#: Seconds between the kills of one round: recoveries shall not wait for each other.
STAGGER: Final = 0.4
#: What is promised: seconds from a kill to the next effect, and to the next step's call, 95th
#: percentile. In a call, another worker notices the death. Elsewhere time-outs may have to.
TARGETS: Final = {
    **dict.fromkeys(("read", "dedupes", "transactional"), (0.5, 0.8)),
    **dict.fromkeys(("any moment", "approval"), (5.0, 5.0)),
}

#: Steps of every run: the one whose worker dies, and the one that follows.
KILLED: Final = "killed"
NEXT: Final = "next"
#: Where a worker is killed whose run waits for an approval; all others are crash points.
WAITING: Final = "waiting"
#: Anywhere in a run of short steps: in a call, between calls, while the run is moved on.
ANY_MOMENT: Final = "any moment"
#: The run of short steps is under way for about twice as long as it may take until its kill.
_SHORT_STEPS: Final = 60
_KILLED_WITHIN: Final = 1.0  # seconds

_WORKERS: Final = 2
#: Seconds between looks at whether a worker has died: the error of what is measured.
_DEATH_PAUSE: Final = 0.005
_VIEW_PAUSE: Final = 0.05
#: A run takes seconds; one that takes as long as this has lost something.
_RUN_LIMIT: Final = timedelta(seconds=60)

_CALLED: Final = (CrashPoint.DURING_CALL, CrashPoint.AFTER_CALL, CrashPoint.BEFORE_REPORT)
#: Kind, tool, points. A read claims nothing. A lookup that finds nothing has to wait for the first
#: call's deadline and settle time, so it is a kind of its own.
_KILLS: Final[Sequence[tuple[str, str, Sequence[str]]]] = (
    ("read", "world.read", _CALLED),
    ("dedupes", "world.put", (CrashPoint.AFTER_CLAIM, *_CALLED)),
    ("transactional", "world.book", (CrashPoint.AFTER_CLAIM, *_CALLED)),
    ("any moment", "world.put", (ANY_MOMENT,)),
    ("approval", "world.put_approved", (WAITING,)),
    ("lookup, found", "world.order", _CALLED),
    ("lookup, not found", "world.order", (CrashPoint.AFTER_CLAIM,)),
)


@dataclass(frozen=True)
class Kill:
    """What a pair measures."""

    database: str
    kind: str
    """How the tool recovers."""
    tool: str
    point: str

    @property
    def label(self) -> str:
        return f"{self.database} {self.kind} {self.point}"


@dataclass(frozen=True)
class Sample:
    """One kill, in seconds from the worker's death."""

    next_effect: float
    """To the next call that reached the world: the killed one's repetition, or the next step's."""
    next_step: float
    """To the next step's own call: the run has moved on."""


class Pair:
    """Two workers that stand by for each other, of which one is killed again and again.

    A pair has its own task queue, ledger and world.
    """

    def __init__(
        self,
        kill: Kill,
        environment: Environment,
        connection: Connection,
        variables: Mapping[str, str],
        database_url: str,
        running: ExitStack,
    ) -> None:
        self.kill = kill
        self.samples: list[Sample] = []
        name = kill.label.replace(" ", "-").replace(",", "")
        self._folder = environment.make_case_folder(name)
        self._connection = harness.on_queue(connection, name)
        self._world = self._folder / "world.jsonl"
        self._variables = {**variables, "BENCHMARK_WORLD": str(self._world)}
        self._database_url = database_url
        self._running = running
        self._workers: list[Child] = []
        self._started = 0

    async def prepare(self) -> None:
        """Start workers until there are two, and wait until all are ready."""
        while len(self._workers) < _WORKERS:
            self._started += 1
            self._workers.append(self._running.enter_context(self._worker()))
        for one in self._workers:
            await asyncio.to_thread(one.wait_said, READY)

    async def measure(self) -> None:
        """Start a run, let one worker be killed, and see when the run goes on."""
        self._once.unlink(missing_ok=True)
        run_id = run_id_for(self._connection.settings.tenant, f"run-{secrets.token_hex(6)}")
        await launch_run(self._connection, self._start(run_id))
        try:
            async with asyncio.timeout(_RUN_LIMIT.total_seconds()):
                if self.kill.point == WAITING:
                    died_at = await self._killed_while_waiting(run_id)
                elif self.kill.point == ANY_MOMENT:
                    died_at = await self._killed_at_any_moment(run_id)
                else:
                    died_at = await self._killed_itself()
                result = await run_result(self._connection, run_id)
        except TimeoutError:
            raise SurehandError(f"{self.kill.label}: {run_id} did not end") from None
        if result.state is not RunState.COMPLETED:
            raise SurehandError(f"{self.kill.label}: {run_id} is {result.state.value}")
        self.samples.append(self._sample(run_id, died_at))

    async def check(self) -> None:
        """See that each transactional effect is there once."""
        async with open_ledger(self._database_url) as ledger:
            tenant = self._connection.settings.tenant
            with ledger.transaction(tenant) as tx:
                rows = tx.all(text("SELECT run FROM bookings"))
        expected = len(self.samples) if self.kill.kind == "transactional" else 0
        if len(rows) != expected or len({row["run"] for row in rows}) != expected:
            raise SurehandError(f"{self.kill.label}: {len(rows)} bookings of {expected} runs")

    def row(self) -> harness.Row:
        return {
            "database": self.kill.database,
            "kind": self.kill.kind,
            "point": str(self.kill.point),
            "n": len(self.samples),
            **harness.percentiles("next_effect", (one.next_effect for one in self.samples)),
            **harness.percentiles("next_step", (one.next_step for one in self.samples)),
        }

    @property
    def _once(self) -> Path:
        return self._folder / "crashed"

    def _worker(self) -> Child:
        armed = {}
        if self.kill.point not in (WAITING, ANY_MOMENT):
            # Both: whichever makes the call dies, and the file keeps the other one alive.
            crash_at = f"{self.kill.tool}:{self.kill.point}@{KILLED}"
            armed = {"crash_at": crash_at, "crash_once": str(self._once)}
        return start_worker(
            self._variables,
            self._folder,
            f"worker-{self._started}",
            database_url=self._database_url,
            task_queue=self._connection.settings.task_queue,
            **armed,
        )

    def _start(self, run_id: str) -> StartRun:
        # Long enough to be killed in; another call does not wait.
        params = {"first_takes": 2 * DURING} if self.kill.point == "during_call" else {}
        steps = [
            {"id": KILLED, "tool": self.kill.tool, "params": params},
            {"id": NEXT, "tool": "world.put", "params": {}},
        ]
        if self.kill.point == ANY_MOMENT:
            steps = [{"tool": self.kill.tool, "params": {}} for _ in range(_SHORT_STEPS)]
        plan = Plan.model_validate({"name": "recovery", "steps": steps})
        settings = self._connection.settings
        return StartRun(run_id=run_id, tenant=settings.tenant, user=settings.user, plan=plan)

    async def _killed_itself(self) -> float:
        """Return when the worker that made the call was seen dead."""
        while True:
            for one in self._workers:
                if one.returncode is not None:
                    died_at = time.monotonic()
                    if one.returncode != -signal.SIGKILL:
                        raise SurehandError(f"{self.kill.label}: {one.last_line()}")
                    self._workers.remove(one)
                    return died_at
            await asyncio.sleep(_DEATH_PAUSE)

    async def _killed_while_waiting(self, run_id: str) -> float:
        """Kill the worker that keeps the waiting run, decide at once; return when it was dead."""
        while not (view := await self._connection.view(run_id)).pending:
            await asyncio.sleep(_VIEW_PAUSE)
        [request] = view.pending
        keeper = await self._keeper(run_id)
        keeper.kill()
        died_at = time.monotonic()
        decision = Decision(
            approval_id=request.approval_id,
            params_hash=request.params_hash,
            outcome=DecisionOutcome.APPROVE,
            approver="benchmark",
        )
        await self._connection.handle(run_id).signal(Verb.DECIDE, decision)
        self._workers.remove(keeper)
        return died_at

    async def _killed_at_any_moment(self, run_id: str) -> float:
        """Kill the worker that makes the calls, some time after the first; return when."""
        while not self._arrived(run_id):
            await asyncio.sleep(_DEATH_PAUSE)
        await asyncio.sleep(random.uniform(0, _KILLED_WITHIN))
        [caller] = [one for one in self._workers if one.pid == self._arrived(run_id)[-1]["pid"]]
        caller.kill()
        died_at = time.monotonic()
        self._workers.remove(caller)
        return died_at

    async def _keeper(self, run_id: str) -> Child:
        """Return the worker with the run in its memory: the one that last moved it."""
        identity = ""
        async for event in self._connection.handle(run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                identity = event.workflow_task_completed_event_attributes.identity
        [keeper] = [one for one in self._workers if identity.startswith(f"{one.pid}@")]
        return keeper

    def _arrived(self, run_id: str) -> list[dict[str, Any]]:
        return [call for call in calls(self._world) if call["run"] == run_id]

    def _sample(self, run_id: str, died_at: float) -> Sample:
        arrived = self._arrived(run_id)
        applied = Counter(call["step"] for call in arrived if call["applied"])
        steps = {call["step"] for call in arrived}
        if self.kill.kind != "transactional" and applied != Counter(steps):
            raise SurehandError(f"{self.kill.label}: {run_id} has left {dict(applied)}")
        before = [call["step"] for call in arrived if call["at"] <= died_at]
        after = [call for call in arrived if call["at"] > died_at]
        killed = before[-1] if before else KILLED
        return Sample(
            next_effect=after[0]["at"] - died_at,
            next_step=next(call["at"] for call in after if call["step"] != killed) - died_at,
        )


async def measure(
    environment: Environment, options: argparse.Namespace, found: harness.Found
) -> None:
    """Kill workers in all pairs, as often as asked in each."""
    variables = environment.make_variables(
        {**harness.clean(), "SUREHAND_TOOL_MODULES": "benchmarks.tools"}
    )
    server = await harness.connection_for(environment, variables, "")
    wanted = options.kind or [kind for kind, _, _ in _KILLS]
    kills = [one for one in _KILLS if one[0] in wanted]
    with ExitStack() as servers:
        for database, make in harness.makers(environment, options.database, servers).items():
            # Workers of one database at a time: all of them would crowd a small machine.
            with ExitStack() as workers:
                pairs: list[Pair] = []
                for kind, tool, points in kills:
                    for point in points:
                        url = await asyncio.to_thread(make, f"{database}-{len(pairs)}")
                        kill = Kill(database, kind, tool, point)
                        pairs.append(Pair(kill, environment, server, variables, url, workers))
                try:
                    for number in range(1, options.rounds + 1):
                        await _kill_each(pairs)
                        found.note(f"{database}: round {number} of {options.rounds}")
                    for pair in pairs:
                        await pair.check()
                finally:
                    found.rows += [pair.row() for pair in pairs if pair.samples]


async def _kill_each(pairs: Sequence[Pair]) -> None:
    """Kill one worker in each pair, once all workers are ready: starting them costs most."""
    await asyncio.gather(*(pair.prepare() for pair in pairs))

    async def one(number: int, pair: Pair) -> None:
        await asyncio.sleep(number * STAGGER)
        await pair.measure()

    # The kinds that take longest come last in the list, and so first here.
    await asyncio.gather(*(one(number, pair) for number, pair in enumerate(reversed(pairs))))


def missed(rows: Sequence[harness.Row]) -> Iterable[str]:
    for row in rows:
        effect, step = TARGETS.get(row["kind"], (None, None))
        # A call that was over is not made again: what is next is the next step.
        if row["point"] == CrashPoint.BEFORE_REPORT:
            effect = None
        for what, target in (("effect", effect), ("step", step)):
            p95 = row[f"next_{what}_p95_s"]
            if target is not None and p95 >= target:
                where = f"{row['kind']}, {row['database']}, {row['point']}"
                yield f"{where}: next {what} p95 {p95:.2f} s, not under {target:g} s"


def main(argv: Sequence[str] | None = None) -> int:
    parser = harness.parser_of("recovery", "From a worker's death to what is next.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 10")
    kinds = [kind for kind, _, _ in _KILLS]
    parser.add_argument(
        "--kind", choices=kinds, action="append", help="may be repeated; default all"
    )
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return harness.run("recovery", options, measure, missed)


if __name__ == "__main__":
    leave(main())
