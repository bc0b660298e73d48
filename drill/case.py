"""One case: a fresh run that is disturbed at one point, or not at all, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from temporalio.service import RPCError

from surehand.activities.ledger.core.store import Ledger, RunNotFound, open_ledger
from surehand.activities.ledger.history.audit import (
    Break,
    verify_chain,
    verify_entries,
    verify_story,
)
from surehand.activities.ledger.history.evidence import evidence_of, runs_of
from surehand.activities.ledger.history.reads import chain_of, effects_of
from surehand.client.connection import Connection
from surehand.client.launch import launch
from surehand.client.outcome import run_result
from surehand.drill import deploying
from surehand.drill.consistency import tally
from surehand.drill.disturbance import HELD, Disturbance, changed
from surehand.drill.environment import Environment
from surehand.drill.interrupting import Interrupting
from surehand.drill.observer import Observer
from surehand.drill.operating import Operating
from surehand.drill.people import ACTOR, People, Principals
from surehand.drill.played import Played, count_of, skipped
from surehand.drill.points import Beforehand, Operation
from surehand.drill.request import DrillRequest
from surehand.drill.run_tree import RunTree
from surehand.drill.workers import Workers
from surehand.drill.world import Context, comparable
from surehand.process.exits import PlanRefused, SurehandError, WrongUse
from surehand.workflows.contracts.starting import StartRun
from surehand.workflows.identity import run_id_for
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import Plan


class Case:
    """Plays one case; its workers, ledger and task queue are its own."""

    def __init__(
        self,
        request: DrillRequest,
        environment: Environment,
        server: Connection,
        variables: Mapping[str, str],
        disturbance: Disturbance | None = None,
        permissions: Collection[str] = (),
    ) -> None:
        """Prepare a case.

        Args:
            request: What is drilled.
            environment: Where.
            server: Where runs are started.
            variables: The workers'.
            disturbance: What is done to the run; ``None`` for a fault-free one.
            permissions: What the plan's tools ask of the acting user, as far as that is known.
        """
        label = f"{disturbance.target.step}-{disturbance.point}" if disturbance else "fault-free"
        name = f"drill-{request.plan.name[:20]}-{label}"[:100] + f"-{secrets.token_hex(4)}"
        self._request = request
        self._environment = environment
        self._disturbance = disturbance
        self._kill = disturbance if disturbance and disturbance.crash_at else None
        self._operation = disturbance.operation if disturbance else None
        self._permissions = permissions
        self._variables = variables
        self._folder = environment.case_folder(name)
        # The task queue is the case's own, so that only its workers take its run.
        settings = server.settings.model_copy(update={"task_queue": name})
        self._server = Connection(server.client, server.target, settings)
        self.run_id = run_id_for(settings.tenant, name)
        self._observer = Observer(self._server, self.run_id)
        self._played = Played(self.run_id, no_end=f"not ended after {request.limit}")

    async def play(self) -> Played:
        """Run the case to its end, or to where only a human can move it.

        Raises:
            WrongUse: A function of the user's failed, or the plan does not fit the tools.
            SurehandError: A worker ended that nobody had killed.
        """
        began = time.monotonic()
        database_url = await asyncio.to_thread(self._environment.ledger, self._folder)
        fresh = await self._fresh(database_url)
        plan = changed(self._request.plan, self._disturbance)
        plan = Plan.model_validate(
            {**plan.model_dump(mode="json"), "input": {**plan.input, **fresh}}
        )
        settings = self._server.settings
        start = StartRun(
            run_id=self.run_id,
            tenant=settings.tenant,
            user=settings.user,
            plan=plan,
            durability=self._mode,
        )
        principals = Principals(
            database_url, settings.tenant, own=self._environment.database is None
        )
        await principals.give(settings.user, "permission", self._permissions)
        people = People(self._server, self.run_id, principals)
        await self._beforehand(Context(self.run_id, plan.input, database_url))
        with self._workers(database_url) as workers:
            # With a kill two, so that another one stands by; an operator sees to the next one.
            await workers.start(2 if self._kill and not self._operation else 1)
            await launch(self._server, start)
            try:
                await self._until_settled(people, workers, principals)
            finally:
                if self._played.result is None or self._played.question:
                    with contextlib.suppress(RPCError):
                        await self._server.handle(self.run_id).terminate("the drill is over")
        self._played.approvals = people.approvals
        self._note_kill(workers)
        await self._look(Context(self.run_id, plan.input, database_url), fresh)
        self._played.seconds = time.monotonic() - began
        return self._played

    @property
    def _mode(self) -> Durability:
        told = self._disturbance
        return told.mode if told and not told.interruption else Durability.SYNC

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

    async def _beforehand(self, context: Context) -> None:
        """Leave the world as the step's call would, where that is what the case does."""
        if self._kill and isinstance(self._kill.point, Beforehand) and self._request.already:
            await self._request.already(replace(context, step=self._kill.target.step))

    def _workers(self, database_url: str) -> Workers:
        once = self._folder / "crashed"
        # Open: the drill's people have no keys, and its ledger is nobody else's.
        settings = {
            "database_url": database_url,
            "task_queue": self._server.settings.task_queue,
            "decisions": "open",
        }
        if self._kill:
            settings |= {"crash_at": self._kill.crash_at, "crash_once": str(once)}
        return Workers(self._variables, self._folder, settings, once)

    async def _until_settled(
        self, people: People, workers: Workers, principals: Principals
    ) -> None:
        """Return when the run has ended, needs a human, or is out of time."""
        observing = asyncio.create_task(self._observer.until_end())
        attending = asyncio.create_task(self._attend(people, workers, principals))
        watching = asyncio.create_task(workers.watch())
        parts = {observing, attending, watching}
        if self._operation is Operation.TERMINATE:
            parts.remove(observing)  # Its end is not the end of what is done to it.
        try:
            done, _ = await asyncio.wait(
                parts,
                timeout=self._request.limit.total_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for one in done:
                one.result()
            if observing in done:
                self._played.question = ""
                await self._note_end()
        finally:
            tasks = (observing, attending, watching)
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _note_end(self) -> None:
        try:
            self._played.result = await run_result(self._server, self.run_id)
        except PlanRefused:
            raise
        except SurehandError as error:
            if self._operation is None:
                raise
            self._played.no_end = "ended without a result"
            self._played.violations.append(f"it ended without a result: {error}")

    async def _attend(self, people: People, workers: Workers, principals: Principals) -> None:
        """Interrupt the run, if that is what the case does, and deal with all that waits."""
        if self._disturbance and self._disturbance.interruption:
            forced = Interrupting(self._disturbance, self.run_id, people, workers, principals)
            try:
                await forced.run()
            finally:
                self._played.reached = forced.reached
                self._played.violations += forced.violations
        elif self._disturbance and self._operation:
            release = self._variables.get("SUREHAND_TOOL_MODULES", "")
            operating = Operating(
                self._disturbance,
                self.run_id,
                self._server,
                people,
                workers,
                await asyncio.to_thread(deploying.release, self._folder, release),
            )
            try:
                await operating.run()
            finally:
                self._played.reached = operating.reached
                self._played.violations += operating.violations
                self._played.unwound = operating.unwound
            if self._operation is Operation.TERMINATE:
                return
        view, question = await people.stay()
        self._played.result, self._played.question = view.result, question

    def _note_kill(self, workers: Workers) -> None:
        played, kill = self._played, self._kill
        if kill is None or self._operation:
            return
        played.reached = workers.killed
        if workers.died_at is not None:
            place = (kill.target.step, kill.target.undo)
            recovered = self._observer.recovered_at(place, workers.died_at)
            played.recovery_s = None if recovered is None else recovered - workers.died_at

    async def _look(self, context: Context, fresh: dict[str, Any]) -> None:
        """Take down what the run, the ledger and the world say in the end."""
        played = self._played
        snapshot = await self._request.world(context) if self._request.world else None
        tree, audit = RunTree(self.run_id), "never opened"
        async with open_ledger(context.database_url) as ledger:
            with contextlib.suppress(RunNotFound):
                tenant = self._server.settings.tenant
                played.entries = await ledger.transact(tenant, effects_of, self.run_id)
                audit = "holds"
                for run_id in await ledger.transact(tenant, runs_of, self.run_id):
                    counted, stories = tally(
                        await ledger.transact(tenant, evidence_of, run_id), ACTOR
                    )
                    played.tally = played.tally.plus(counted)
                    played.violations += stories
                    if broken := await _audited(ledger, tenant, run_id):
                        audit = "broken"
                        played.violations.append(f"audit of {run_id}: {broken}")
                    await tree.add(ledger, tenant, run_id)
                # Taken away once, however many child runs have the same user.
                losses = min(played.tally.losses, 1)
                played.tally = played.tally.model_copy(update={"losses": losses})
                self._look_at(tree)
        played.counted = count_of(snapshot, tree.entries)
        played.tools = self._observer.tools
        end = played.result
        played.compared = {
            "run": end.state.value if end else played.no_end,
            "steps": {s.id: s.state.value for s in end.steps if s.id != HELD} if end else {},
            "ledger": tree.told(),
            "audit": audit,
        }
        if self._request.world:
            played.compared["world"] = comparable(snapshot, context, fresh)

    def _look_at(self, tree: RunTree) -> None:
        """Take down what stands of the run and its child runs, and what is wrong with that."""
        played = self._played
        played.remaining, played.applied = tree.remaining(), tree.applied
        played.violations += [*tree.out_of_order(), *tree.clock_jumps()]
        played.violations += skipped(tree.events, self._disturbance)
        if played.unwound is not None:
            played.violations += tree.not_unwound(played.unwound)
        elif played.result is not None and not played.question:
            played.violations += tree.untold(played.result)


async def _audited(ledger: Ledger, tenant: str, run_id: str) -> Break | None:
    """Return what is broken in the story that the ledger tells of a run."""
    events, rows, head = await ledger.transact(tenant, chain_of, run_id)
    return verify_chain(events, [head]) or verify_story(events) or verify_entries(events, rows)
