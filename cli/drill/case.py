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

from activities.ledger.audit import verify_chain, verify_entries, verify_story
from activities.ledger.evidence import evidence_of, runs_of
from activities.ledger.reads import chain_of, effects_of
from activities.ledger.store import RunNotFound, open_ledger
from cli.drill.changed_plan import changed
from cli.drill.crew import Crew
from cli.drill.ground import Ground
from cli.drill.interrupting import Interrupting
from cli.drill.observer import Observer
from cli.drill.people import People
from cli.drill.played import Disturbance, Played, count_of, skipped
from cli.drill.points import Beforehand
from cli.drill.principals import ACTOR, Office
from cli.drill.proven import tally
from cli.drill.request import DrillRequest
from cli.drill.world import Context, comparable
from cli.exits import WrongUse
from cli.launch import launch
from cli.outcome import run_result
from cli.tenant_client import TenantClient
from workflows.contracts import StartRun
from workflows.durability import Durability
from workflows.identity import run_id_for
from workflows.plan import Plan


class Case:
    """Plays one case; its workers, ledger and task queue are its own."""

    def __init__(
        self,
        request: DrillRequest,
        ground: Ground,
        server: TenantClient,
        environment: Mapping[str, str],
        disturbance: Disturbance | None = None,
        permissions: Collection[str] = (),
    ) -> None:
        """Prepare a case.

        Args:
            request: What is drilled.
            ground: Where.
            server: Where runs are started.
            environment: The workers'.
            disturbance: What is done to the run; ``None`` for a fault-free one.
            permissions: What the plan's tools ask of the acting user, as far as that is known.
        """
        label = f"{disturbance.target.step}-{disturbance.point}" if disturbance else "fault-free"
        name = f"drill-{request.plan.name[:20]}-{label}"[:100] + f"-{secrets.token_hex(4)}"
        self._request = request
        self._ground = ground
        self._disturbance = disturbance
        self._kill = disturbance if disturbance and not disturbance.interruption else None
        self._permissions = permissions
        self._environment = environment
        self._folder = ground.case_folder(name)
        # The task queue is the case's own, so that only its workers take its run.
        settings = server.settings.model_copy(update={"task_queue": name})
        self._server = TenantClient(server.client, server.target, settings)
        self.run_id = run_id_for(settings.tenant, name)
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
            durability=self._kill.mode if self._kill else Durability.SYNC,
        )
        office = Office(database_url, settings.tenant, own=self._ground.database is None)
        await office.give(settings.user, "permission", self._permissions)
        people = People(self._server, self.run_id, office)
        await self._beforehand(Context(self.run_id, plan.input, database_url))
        with self._crew(database_url) as crew:
            # With a kill two, so that another one stands by.
            await crew.start(2 if self._kill else 1)
            await launch(self._server, start)
            try:
                await self._until_settled(people, crew, office)
            finally:
                if self._played.result is None or self._played.question:
                    with contextlib.suppress(RPCError):
                        await self._server.handle(self.run_id).terminate("the drill is over")
        self._played.approvals = people.approvals
        self._note_kill(crew)
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

    async def _beforehand(self, context: Context) -> None:
        """Leave the world as the step's call would, where that is what the case does."""
        if self._kill and isinstance(self._kill.point, Beforehand) and self._request.already:
            await self._request.already(replace(context, step=self._kill.target.step))

    def _crew(self, database_url: str) -> Crew:
        once = self._folder / "crashed"
        # Open: the drill's people have no keys, and its ledger is nobody else's.
        settings = {
            "database_url": database_url,
            "task_queue": self._server.settings.task_queue,
            "decisions": "open",
        }
        if self._kill:
            settings |= {"crash_at": self._kill.crash_at, "crash_once": str(once)}
        return Crew(self._environment, self._folder, settings, once)

    async def _until_settled(self, people: People, crew: Crew, office: Office) -> None:
        """Return when the run has ended, needs a human, or is out of time."""
        observing = asyncio.create_task(self._observer.until_end())
        attending = asyncio.create_task(self._attend(people, crew, office))
        watching = asyncio.create_task(crew.watch())
        parts = {observing, attending, watching}
        try:
            done, _ = await asyncio.wait(
                parts,
                timeout=self._request.limit.total_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for one in done:
                one.result()
            if observing in done:
                self._played.result = await run_result(self._server, self.run_id)
                self._played.question = ""
        finally:
            for one in parts:
                one.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _attend(self, people: People, crew: Crew, office: Office) -> None:
        """Interrupt the run, if that is what the case does, and deal with all that waits."""
        if self._disturbance and self._disturbance.interruption:
            forced = Interrupting(self._disturbance, self.run_id, people, crew, office)
            try:
                await forced.run()
            finally:
                self._played.reached = forced.reached
                self._played.violations = forced.violations
        view, question = await people.stay()
        self._played.result, self._played.question = view.result, question

    def _note_kill(self, crew: Crew) -> None:
        played, kill = self._played, self._kill
        if kill is None:
            return
        played.reached = crew.killed
        if crew.died_at is not None:
            place = (kill.target.step, kill.target.undo)
            recovered = self._observer.recovered_at(place, crew.died_at)
            played.recovery_s = None if recovered is None else recovered - crew.died_at

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
                audit = "broken" if broken else "holds"
                for run_id in await runs_of(ledger, tenant, self.run_id):
                    counted, stories = tally(await evidence_of(ledger, tenant, run_id), ACTOR)
                    played.tally = played.tally.plus(counted)
                    played.violations += stories
                # Taken away once, however many child runs have the same user.
                losses = min(played.tally.losses, 1)
                played.tally = played.tally.model_copy(update={"losses": losses})
                played.violations += [f"audit: {broken}"] if broken else []
                played.violations += list(skipped(events, self._disturbance))
        played.counted = count_of(snapshot, played.entries)
        played.tools = self._observer.tools
        end = played.result
        played.compared = {
            "run": end.state.value if end else f"not ended after {self._request.limit}",
            "steps": {step.id: step.state.value for step in end.steps} if end else {},
            "ledger": sorted(f"{e['step_id']}: {e['tool']} {e['state']}" for e in played.entries),
            "audit": audit,
        }
        if self._request.world:
            played.compared["world"] = comparable(snapshot, context, fresh)
