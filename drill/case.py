"""One case: a fresh run that is disturbed at one point, or not at all, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
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
from surehand.drill.consistency import tally, turns_of
from surehand.drill.disturbance import HELD, Disturbance, changed
from surehand.drill.environment import Environment
from surehand.drill.forced_waits import Forcing
from surehand.drill.observer import Observer
from surehand.drill.operating import Operating
from surehand.drill.people import ACTOR, People, Principals
from surehand.drill.played import Played, skipped
from surehand.drill.points import Halt, Operation
from surehand.drill.request import DrillRequest
from surehand.drill.run_tree import RunTree
from surehand.drill.workers import Workers
from surehand.drill.world import Context, comparable, own_count, without_turns
from surehand.process.exits import PlanRefused, SurehandError, WrongUse
from surehand.workflows.contracts.interrupts import InterruptKind
from surehand.workflows.contracts.starting import StartRun
from surehand.workflows.contracts.tools import Effect, Recovery
from surehand.workflows.identity import run_id_for
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import Plan


class Case:
    """Plays one case; its workers, ledger and task queue are its own."""

    def __init__(
        self,
        request: DrillRequest,
        environment: Environment,
        connection: Connection,
        variables: Mapping[str, str],
        disturbance: Disturbance | None = None,
        permissions: Collection[str] = (),
    ) -> None:
        """Prepare a case.

        Args:
            request: What is drilled.
            environment: Where.
            connection: Where runs are started.
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
        settings = connection.settings.model_copy(update={"task_queue": name})
        self._connection = Connection(connection.client, connection.target, settings)
        self.run_id = run_id_for(settings.tenant, name)
        self._observer = Observer(self._connection, self.run_id)
        self._played = Played(self.run_id, no_end=f"not ended after {request.limit}")

    async def play(self) -> Played:
        """Run the case to its end, or to where only a human can move it.

        Raises:
            WrongUse: A function of the user's failed, or the plan does not fit the tools.
            SurehandError: A worker ended that nobody had killed.
        """
        began = time.monotonic()
        database_url = await asyncio.to_thread(self._environment.ledger, self._folder)
        self._fresh = fresh = await self._make_fresh(database_url)
        plan = changed(self._request.plan, self._disturbance)
        plan = Plan.model_validate(
            {**plan.model_dump(mode="json"), "input": {**plan.input, **fresh}}
        )
        settings = self._connection.settings
        start = StartRun(
            run_id=self.run_id,
            tenant=settings.tenant,
            user=settings.user,
            plan=plan,
            durability=self._mode,
        )
        own = self._environment.database is None
        principals = Principals(database_url, settings.tenant, self._observer.whole, own=own)
        await principals.give(settings.user, "permission", self._permissions)
        people = People(self._connection, self.run_id, principals)
        self._context = Context(self.run_id, plan.input, database_url)
        await self._beforehand(self._context)
        with self._workers(database_url) as workers:
            # With a kill two, so that another one stands by; an operator sees to the next one.
            await workers.start(2 if self._kill and not self._operation else 1)
            await launch(self._connection, start)
            try:
                await self._until_settled(people, workers, principals)
                await workers.thaw()
            finally:
                if self._played.result is None or self._played.question:
                    with contextlib.suppress(RPCError):
                        await self._connection.handle(self.run_id).terminate("the drill is over")
        self._played.approvals = people.approvals
        self._note_kill(workers)
        await self._look()
        self._played.seconds = time.monotonic() - began
        return self._played

    @property
    def _mode(self) -> Durability:
        told = self._disturbance
        return told.mode if told and not told.forced_wait else Durability.SYNC

    async def _make_fresh(self, database_url: str) -> dict[str, Any]:
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
        told = self._disturbance
        if told and told.already_true and self._request.already:
            await self._request.already(replace(context, step=told.target.step))

    def _workers(self, database_url: str) -> Workers:
        once = self._folder / "crashed"
        # Open: the drill's people have no keys, and its ledger is nobody else's.
        settings = {
            "database_url": database_url,
            "task_queue": self._connection.settings.task_queue,
            "decisions": "open",
        }
        if self._kill:
            settings |= {"crash_at": self._kill.crash_at, "crash_once": str(once)}
        if self._operation is Operation.FREEZE:
            settings["crash_by"] = "SIGSTOP"
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
            self._played.result = await run_result(self._connection, self.run_id)
        except PlanRefused:
            raise
        except SurehandError as error:
            if self._operation is None:
                raise
            self._played.no_end = "ended without a result"
            self._played.violations.append(f"it ended without a result: {error}")

    async def _attend(self, people: People, workers: Workers, principals: Principals) -> None:
        """Interrupt the run, if that is what the case does, and deal with all that waits."""
        if self._disturbance and self._disturbance.forced_wait:
            forced = Forcing(self._disturbance, self.run_id, people, workers, principals)
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
                self._connection,
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
        elif self._disturbance and isinstance(self._disturbance.point, Halt):
            people.held = self._disturbance.target.step
            if self._disturbance.point is Halt.AFTER:
                people.held_at = frozenset({InterruptKind.AFTER})
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

    async def look_at_world(self) -> None:
        """Take down what the world shows now; no-op without a function that looks at it."""
        if self._request.world is None:
            return
        snapshot = await self._request.world(self._context)
        self._played.turns_asked, snapshot = without_turns(snapshot)
        self._played.compared["world"] = comparable(snapshot, self._context, self._fresh)
        by_world = own_count(snapshot)
        if by_world is not None:
            self._played.counted = by_world

    @property
    def latest_effect(self) -> timedelta:
        """Return how long after a call its effect may appear, by what the run's tools say."""
        return max(
            (
                spec.timeout + (spec.settle or timedelta(0))
                for spec in self._played.recorded.values()
                if spec.effect is Effect.WRITE and spec.recovery is not Recovery.TRANSACTIONAL
            ),
            default=timedelta(0),
        )

    async def _look(self) -> None:
        """Take down what the run, the ledger and the world say in the end."""
        played = self._played
        tree, audit = RunTree(self.run_id), "never opened"
        async with open_ledger(self._context.database_url) as ledger:
            with contextlib.suppress(RunNotFound):
                tenant = self._connection.settings.tenant
                played.entries = await ledger.transact(tenant, effects_of, self.run_id)
                audit = "holds"
                for run_id in await ledger.transact(tenant, runs_of, self.run_id):
                    evidence = await ledger.transact(tenant, evidence_of, run_id)
                    if run_id == self.run_id:
                        evidence = self._observer.whole(evidence)
                        played.recorded = evidence.tools
                        played.turns_recorded = turns_of(evidence)
                    found, stories = tally(evidence, ACTOR)
                    played.tally = played.tally.plus(found)
                    played.violations += stories
                    if broken := await _audited(ledger, tenant, run_id):
                        audit = "broken"
                        played.violations.append(f"audit of {run_id}: {broken}")
                    await tree.add(ledger, tenant, run_id)
                # Taken away once, however many child runs have the same user.
                losses = min(played.tally.losses, 1)
                played.tally = played.tally.model_copy(update={"losses": losses})
                self._look_at(tree)
        played.tools = self._observer.tools
        end = played.result
        played.compared = {
            "run": end.state.value if end else played.no_end,
            "steps": {s.id: s.state.value for s in end.steps if s.id != HELD} if end else {},
            "ledger": tree.described(),
            "audit": audit,
        }
        await self.look_at_world()

    def _look_at(self, tree: RunTree) -> None:
        """Take down what stands of the run and its child runs, and what is wrong with that."""
        played = self._played
        played.counted = tree.effects_by_tool()
        played.remaining, played.applied = tree.remaining(), sum(played.counted.values())
        played.violations += [*tree.out_of_order(), *tree.clock_jumps()]
        played.violations += skipped(tree.events, self._disturbance)
        if played.unwound is not None:
            played.violations += tree.not_unwound(played.unwound)
        elif played.result is not None and not played.question:
            played.violations += tree.unreported(played.result)


async def _audited(ledger: Ledger, tenant: str, run_id: str) -> Break | None:
    """Return what is broken in the story that the ledger tells of a run."""
    events, rows, head = await ledger.transact(tenant, chain_of, run_id)
    return verify_chain(events, [head]) or verify_story(events) or verify_entries(events, rows)
