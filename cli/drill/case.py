"""One case: a fresh run, one worker that is killed at one point, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Final

from temporalio.service import RPCError

from activities.ledger.audit import verify_chain, verify_entries, verify_story
from activities.ledger.reads import chain_of, effects_of
from activities.ledger.store import RunNotFound, open_ledger
from cli.children import Child
from cli.drill.ground import Ground, is_ready, worker
from cli.drill.observer import Observer
from cli.drill.played import Kill, Played, count_of
from cli.drill.report import DrilledApproval
from cli.drill.request import DrillRequest
from cli.drill.world import Context, comparable
from cli.exits import NoWorker, StarterError, WrongUse
from cli.launch import launch
from cli.outcome import run_result
from cli.tenant_client import TenantClient
from workflows.contracts import (
    Decision,
    DecisionOutcome,
    StartRun,
    StepState,
)
from workflows.identity import run_id_for
from workflows.names import DECIDE
from workflows.plan import Plan

APPROVER: Final = "drill-approver"
#: Seconds between looks at whether a worker has died: the error of a recovery time.
_DEATH_PAUSE: Final = 0.02
#: Seconds between looks at whether the run waits for somebody.
_LOOK_PAUSE: Final = 0.2
_LOOK_LIMIT: Final = timedelta(seconds=2)


class Case:
    """Plays one case; its workers, ledger and task queue are its own."""

    def __init__(
        self,
        request: DrillRequest,
        ground: Ground,
        server: TenantClient,
        environment: Mapping[str, str],
        kill: Kill | None = None,
    ) -> None:
        """Prepare a case.

        Args:
            request: What is drilled.
            ground: Where.
            server: Where runs are started.
            environment: The workers'.
            kill: Where a worker dies; ``None`` for the fault-free run.
        """
        label = f"{kill.target.step}-{kill.point}" if kill else "fault-free"
        name = f"drill-{request.plan.name[:20]}-{label}"[:100] + f"-{secrets.token_hex(4)}"
        self._request = request
        self._ground = ground
        self._kill = kill
        self._environment = environment
        self._folder = ground.case_folder(name)
        # The task queue is the case's own, so that only its workers take its run.
        settings = server.settings.model_copy(update={"task_queue": name})
        self._server = TenantClient(server.client, server.target, settings)
        self.run_id = run_id_for(settings.tenant, name)
        self._once = self._folder / "crashed"
        self._died_at: float | None = None
        self._observer = Observer(self._server, self.run_id)
        self._played = Played(self.run_id)

    async def play(self) -> Played:
        """Run the case to its end, or to where only a human can move it.

        Raises:
            WrongUse: A function of the user's failed, or the plan does not fit the tools.
            StarterError: A worker ended that nobody had killed.
        """
        began = time.monotonic()
        database_url = await asyncio.to_thread(self._ground.ledger, self._folder)
        fresh = await self._fresh(database_url)
        plan = self._request.plan
        plan = Plan.model_validate(
            {**plan.model_dump(mode="json"), "input": {**plan.input, **fresh}}
        )
        settings = self._server.settings
        start = StartRun(run_id=self.run_id, tenant=settings.tenant, user=settings.user, plan=plan)
        with ExitStack() as running:
            workers = self._workers(running, database_url)
            for one in workers:
                await asyncio.to_thread(one.wait_for, partial(is_ready, one))
            await launch(self._server, start)
            try:
                await self._until_settled(workers)
            finally:
                if self._played.result is None or self._played.question:
                    with contextlib.suppress(RPCError):
                        await self._server.handle(self.run_id).terminate("the drill is over")
        await self._look(Context(self.run_id, plan.input, database_url), fresh)
        self._played.seconds = time.monotonic() - began
        return self._played

    async def _fresh(self, database_url: str) -> dict[str, Any]:
        function, given = self._request.fresh, self._request.plan.input
        if function is None:
            return {}
        fresh = await function(Context(self.run_id, given, database_url))
        if not isinstance(fresh, dict) or not fresh.keys() <= given.keys():
            raise WrongUse(
                f"{function.name} returned {fresh!r}: it must be a mapping of inputs of the plan,"
                f" which has {', '.join(given) or 'none'}"
            )
        return fresh

    def _workers(self, running: ExitStack, database_url: str) -> list[Child]:
        """Start the workers: with a kill two, so that another one stands by."""
        # Open: the drill's approver has no key, and its ledger is nobody else's.
        settings = {
            "database_url": database_url,
            "task_queue": self._server.settings.task_queue,
            "decisions": "open",
        }
        if self._kill:
            settings |= {"crash_at": self._kill.crash_at, "crash_once": str(self._once)}
        workers = []
        for number in range(1, 3 if self._kill else 2):
            one = worker(self._environment, self._folder, f"worker-{number}", **settings)
            running.callback(one.kill)
            workers.append(one)
        return workers

    async def _until_settled(self, workers: list[Child]) -> None:
        """Return when the run has ended, needs a human, or is out of time."""
        observing = asyncio.create_task(self._observer.until_end())
        asking = asyncio.create_task(self._answer())
        watching = asyncio.create_task(self._watch(workers))
        jobs = {observing, asking, watching}
        try:
            done, _ = await asyncio.wait(
                jobs,
                timeout=self._request.limit.total_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for one in done:
                one.result()
            if observing in done:
                self._played.result = await run_result(self._server, self.run_id)
                self._played.question = ""
        finally:
            for one in jobs:
                one.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _watch(self, workers: list[Child]) -> None:
        """See the one death that is meant to be; any other is an error."""
        alive = list(workers)
        while True:
            for one in list(alive):
                if one.returncode is None:
                    continue
                meant = one.returncode == -signal.SIGKILL and self._once.exists()
                if not meant or self._died_at is not None:
                    raise StarterError(
                        f"{one.log.stem} of {self.run_id} ended by itself with"
                        f" {one.returncode}: {one.last_line()}"
                    )
                self._died_at = time.monotonic()
                alive.remove(one)
            await asyncio.sleep(_DEATH_PAUSE)

    async def _answer(self) -> None:
        """Approve what waits for an approval; return when only a human can move the run."""
        approved: set[str] = set()
        asked_before: list[str] = []
        while True:
            await asyncio.sleep(_LOOK_PAUSE)
            with contextlib.suppress(NoWorker):
                view = await self._server.view(self.run_id, _LOOK_LIMIT)
                for request in view.pending:
                    if request.approval_id in approved:
                        continue
                    decision = Decision(
                        approval_id=request.approval_id,
                        params_hash=request.params_hash,
                        outcome=DecisionOutcome.APPROVE,
                        approver=APPROVER,
                        reason="a drill",
                    )
                    with self._server.translated(self.run_id):
                        await self._server.handle(self.run_id).signal(DECIDE, decision)
                    approved.add(request.approval_id)
                    self._played.approvals.append(
                        DrilledApproval(
                            approval_id=request.approval_id,
                            tool=request.tool,
                            description=request.description,
                            params_hash=request.params_hash,
                        )
                    )
                questions = [w for w in view.result.waiting_for if w.kind == "intervention"]
                asked = [w.id for w in questions]
                moving = any(step.state is StepState.RUNNING for step in view.result.steps)
                # Seen twice: what runs beside it has come to its end, too.
                if asked and asked == asked_before and not moving and not view.pending:
                    self._played.result = view.result
                    self._played.question = questions[0].question
                    return
                asked_before = asked

    async def _look(self, context: Context, fresh: dict[str, Any]) -> None:
        """Take down what the run, the ledger and the world say in the end."""
        played = self._played
        snapshot = await self._request.world(context) if self._request.world else None
        audit = "never opened"
        async with open_ledger(context.database_url) as ledger:
            with contextlib.suppress(RunNotFound):
                tenant = self._server.settings.tenant
                played.entries = await effects_of(ledger, tenant, self.run_id)
                events, rows, head = await chain_of(ledger, tenant, self.run_id)
                broken = (
                    verify_chain(events, [head])
                    or verify_story(events)
                    or verify_entries(events, rows)
                )
                audit = str(broken) if broken else "holds"
        played.counted = count_of(snapshot, played.entries)
        played.tools = self._observer.tools
        played.killed = self._once.exists()
        if self._kill and self._died_at is not None:
            place = (self._kill.target.step, self._kill.target.undo)
            recovered = self._observer.recovered_at(place, self._died_at)
            played.recovery_s = None if recovered is None else recovered - self._died_at
        end = played.result
        played.compared = {
            "run": end.state.value if end else f"not ended after {self._request.limit}",
            "steps": {step.id: step.state.value for step in end.steps} if end else {},
            "ledger": sorted(f"{e['step_id']}: {e['tool']} {e['state']}" for e in played.entries),
            "audit": audit,
        }
        if self._request.world:
            played.compared["world"] = comparable(snapshot, context, fresh)
