"""One pair: two workers that stand by for each other, of which one is killed again and again."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from temporalio.api.enums.v1 import EventType

from benchmarks.tools import calls
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.worker.crash_points import DURING
from surehand.client.connection import Connection
from surehand.client.launch import launch
from surehand.client.outcome import run_result
from surehand.drill.environment import READY, Environment, worker
from surehand.process.children import Child
from surehand.process.exits import SurehandError
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.starting import StartRun
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.identity import run_id_for
from surehand.workflows.plan.plan import Plan

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
        """Return its name in progress and errors."""
        return f"{self.database} {self.kind} {self.point}"


@dataclass(frozen=True)
class Sample:
    """One kill, in seconds from the worker's death."""

    next_effect: float
    """To the next call that reached the world: the killed one's repetition, or the next step's."""
    next_step: float
    """To the next step's own call: the run has moved on."""


class Pair:
    """Measures one kill on a task queue, ledger and world of its own."""

    def __init__(
        self,
        kill: Kill,
        environment: Environment,
        connection: Connection,
        variables: Mapping[str, str],
        database_url: str,
        running: ExitStack,
    ) -> None:
        """Prepare a pair.

        Args:
            kill: What to measure.
            environment: Where its folder is made.
            connection: Where runs are started.
            variables: The workers'.
            database_url: Its migrated ledger, with the tools' own table.
            running: Stops the workers in the end.
        """
        self.kill = kill
        self.samples: list[Sample] = []
        name = kill.label.replace(" ", "-").replace(",", "")
        self._folder = environment.case_folder(name)
        settings = connection.settings.model_copy(update={"task_queue": name})
        self._connection = Connection(connection.client, connection.target, settings)
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
        """Start a run, let one worker be killed, and see when the run goes on.

        Raises:
            SurehandError: The run did not end as it must, or an effect is there twice.
        """
        self._once.unlink(missing_ok=True)
        run_id = run_id_for(self._connection.settings.tenant, f"run-{secrets.token_hex(6)}")
        await launch(self._connection, self._start(run_id))
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
        """See that each transactional effect is there once.

        Raises:
            SurehandError: It is not.
        """
        async with open_ledger(self._database_url) as ledger:
            tenant = self._connection.settings.tenant
            with ledger.transaction(tenant) as tx:
                rows = tx.all(text("SELECT run FROM bookings"))
        expected = len(self.samples) if self.kill.kind == "transactional" else 0
        if len(rows) != expected or len({row["run"] for row in rows}) != expected:
            raise SurehandError(f"{self.kill.label}: {len(rows)} bookings of {expected} runs")

    @property
    def _once(self) -> Path:
        return self._folder / "crashed"

    def _worker(self) -> Child:
        armed = {}
        if self.kill.point not in (WAITING, ANY_MOMENT):
            # Both: whichever makes the call dies, and the file keeps the other one alive.
            crash_at = f"{self.kill.tool}:{self.kill.point}@{KILLED}"
            armed = {"crash_at": crash_at, "crash_once": str(self._once)}
        return worker(
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
                    self._gone(one)
                    return died_at
            await asyncio.sleep(_DEATH_PAUSE)

    async def _killed_while_waiting(self, run_id: str) -> float:
        """Kill the worker that keeps the waiting run, decide at once; return when it was dead."""
        [request] = (await self._waiting(run_id)).pending
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
        self._gone(keeper)
        return died_at

    async def _killed_at_any_moment(self, run_id: str) -> float:
        """Kill the worker that makes the calls, some time after the first; return when."""
        while not self._arrived(run_id):
            await asyncio.sleep(_DEATH_PAUSE)
        await asyncio.sleep(random.uniform(0, _KILLED_WITHIN))
        [caller] = [one for one in self._workers if one.pid == self._arrived(run_id)[-1]["pid"]]
        caller.kill()
        died_at = time.monotonic()
        self._gone(caller)
        return died_at

    async def _waiting(self, run_id: str) -> RunView:
        while not (view := await self._connection.view(run_id)).pending:
            await asyncio.sleep(_VIEW_PAUSE)
        return view

    async def _keeper(self, run_id: str) -> Child:
        """Return the worker with the run in its memory: the one that last moved it."""
        identity = ""
        async for event in self._connection.handle(run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                identity = event.workflow_task_completed_event_attributes.identity
        [keeper] = [one for one in self._workers if identity.startswith(f"{one.pid}@")]
        return keeper

    def _gone(self, one: Child) -> None:
        self._workers.remove(one)

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
