"""One case: a fresh run that is disturbed at one point, or not at all, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import RunNotFound, open_ledger
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.history.audit import verify_chain, verify_entries, verify_story
from surehand.client.client import launch_run
from surehand.client.connection import ENDS, Connection
from surehand.client.outcome import run_result
from surehand.drill import judge
from surehand.drill.consistency import RunTree, count_recorded_turns, tally_calls
from surehand.drill.disturb import Disturber, decode
from surehand.drill.environment import Environment, Workers
from surehand.drill.people import ACTOR, People, Principals
from surehand.drill.report import ForcedWait, LeftWaiting, Operation, add_counts
from surehand.drill.request import HELD, Context, Disturbance, DrillRequest, change_plan
from surehand.process.exits import PlanRefused, SurehandError, WrongUse
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.steering import InterruptKind
from surehand.workflows.contracts.tools import (
    Batch,
    Effect,
    Recovery,
    ToolCall,
    ToolsDescribed,
    ToolSpec,
)
from surehand.workflows.identity import run_id_for
from surehand.workflows.plan.plan import Durability, Plan
from surehand.workflows.ports import COMPENSATE, DESCRIBE_TOOLS, EXECUTE_TOOLS, TAKE_TURN

#: A step's own call, or its undo: step id and whether it is the undo.
Place = tuple[str, bool]


@dataclass
class RunObserver:
    """What has been seen of one run; all times are this process's monotonic clock."""

    connection: Connection
    run_id: str
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    """The tools of the steps that were called, by step id."""
    described: dict[str, ToolSpec] = field(default_factory=dict)
    """By name, those that the run was told of after its start, as code and agents ask."""
    _asked: set[int] = field(default_factory=set)
    _scheduled: dict[int, Place] = field(default_factory=dict)
    _outcomes: list[tuple[Place, float]] = field(default_factory=list)

    async def watch_until_end(self) -> None:
        """Read the history, which needs no worker, and return at the end of the run.

        A run that is reset goes on under the same id, in another execution.
        """
        newest = ""
        with self.connection.translated(self.run_id):
            while (found := await self.connection.handle(self.run_id).describe()).run_id != newest:
                newest = found.run_id
                handle = self.connection.client.get_workflow_handle(self.run_id, run_id=newest)
                async for event in handle.fetch_history_events(wait_new_event=True):
                    await self._note_event(event)
                    if event.event_type in ENDS:
                        break

    def find_recovery(self, place: Place, died_at: float) -> float | None:
        """Return when the first outcome of a call arrived after a death."""
        after = (at for where, at in self._outcomes if where == place and at > died_at)
        return next(after, None)

    def add_tools(self, evidence: reads.Evidence) -> reads.Evidence:
        """Return what the ledger holds of the run, and the tools that it was told of later."""
        return replace(evidence, tools={**self.described, **evidence.tools})

    def _note_call(self, event: HistoryEvent, call: ToolCall) -> None:
        self.tools[call.step_id] = call.tool
        self._scheduled[event.event_id] = (call.step_id, False)

    async def _note_event(self, event: HistoryEvent) -> None:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            client = self.connection.client
            scheduled = event.activity_task_scheduled_event_attributes
            name, payloads = scheduled.activity_type.name, scheduled.input.payloads
            if name == EXECUTE_TOOLS.name:
                batch = await decode(client, payloads, Batch)
                if not batch.following:
                    self._note_call(event, batch.first)
            elif name == TAKE_TURN.name:
                self._note_call(event, await decode(client, payloads, ToolCall))
            elif name == COMPENSATE.name:
                undo = await decode(client, payloads, Compensate)
                self._scheduled[event.event_id] = (undo.step_id, True)
            elif name == DESCRIBE_TOOLS.name:
                self._asked.add(event.event_id)
        else:
            # Only an end for good is written down as one; attempts in between are not.
            ended = event.activity_task_completed_event_attributes
            completed = ended.scheduled_event_id
            if completed in self._asked:
                payloads = ended.result.payloads
                told = await decode(self.connection.client, payloads, ToolsDescribed)
                self.described.update(told.tools)
            failed = event.activity_task_failed_event_attributes.scheduled_event_id
            place = self._scheduled.get(completed or failed)
            if place is not None:
                self._outcomes.append((place, time.monotonic()))


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
        label = f"{disturbance.target.step}-{disturbance.point}" if disturbance else "fault-free"
        name = f"drill-{request.plan.name[:20]}-{label}"[:100] + f"-{secrets.token_hex(4)}"
        self._request = request
        self._environment = environment
        self._disturbance = disturbance
        self._kill = disturbance if disturbance and disturbance.crash_at else None
        self._operation = disturbance.operation if disturbance else None
        self._permissions = permissions
        self._variables = variables
        self._folder = environment.make_case_folder(name)
        # The task queue is the case's own, so that only its workers take its run.
        settings = connection.settings.model_copy(update={"task_queue": name})
        self._connection = Connection(connection.client, connection.target, settings)
        self.run_id = run_id_for(settings.tenant, name)
        self._observer = RunObserver(self._connection, self.run_id)
        self._played = judge.Played(self.run_id, no_end=f"not ended after {request.limit}")

    async def play(self) -> judge.Played:
        """Run the case to its end, or to where only a human can move it."""
        began, told, request = time.monotonic(), self._disturbance, self._request
        played, settings = self._played, self._connection.settings
        database_url = await asyncio.to_thread(self._environment.make_ledger, self._folder)
        self._fresh = fresh = await self._make_fresh(database_url)
        plan = change_plan(request.plan, told)
        plan = Plan.model_validate(
            {**plan.model_dump(mode="json"), "input": {**plan.input, **fresh}}
        )
        waits = told is not None and isinstance(told.point, ForcedWait)
        start = StartRun(
            run_id=self.run_id,
            tenant=settings.tenant,
            user=settings.user,
            plan=plan,
            durability=told.mode if told and not waits else Durability.SYNC,
        )
        own = self._environment.database is None
        principals = Principals(database_url, settings.tenant, self._observer.add_tools, own=own)
        await principals.grant(settings.user, "permission", self._permissions)
        people = People(self._connection, self.run_id, principals)
        self._context = context = Context(self.run_id, plan.input, database_url)
        if told and told.already_true and request.already:
            await request.already(replace(context, step=told.target.step))
        kill, operation, once = self._kill, self._operation, self._folder / "crashed"
        # Open: the drill's people have no keys, and its ledger is nobody else's.
        of_workers = {"database_url": database_url, "decisions": "open"}
        of_workers["task_queue"] = settings.task_queue
        if kill:
            of_workers |= {"crash_at": kill.crash_at, "crash_once": str(once)}
        if operation is Operation.FREEZE:
            of_workers["crash_by"] = "SIGSTOP"
        with Workers(self._variables, self._folder, of_workers, once) as workers:
            # With a kill two, so that another one stands by; an operator sees to the next one.
            await workers.start(2 if kill and not operation else 1)
            await launch_run(self._connection, start)
            try:
                await self._wait_until_settled(people, workers, principals)
                await workers.thaw_frozen()
            finally:
                if played.result is None or played.question:
                    with contextlib.suppress(RPCError):
                        await self._connection.handle(self.run_id).terminate("the drill is over")
        played.approvals = people.approvals
        if kill and not operation:
            played.reached = workers.killed
            if (died_at := workers.died_at) is not None:
                place = (kill.target.step, kill.target.undo)
                recovered = self._observer.find_recovery(place, died_at)
                played.recovery_s = None if recovered is None else recovered - died_at
        await self._read_ledger()
        played.seconds = time.monotonic() - began
        return played

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

    async def _wait_until_settled(
        self, people: People, workers: Workers, principals: Principals
    ) -> None:
        """Return when the run has ended, needs a human, or is out of time."""
        observing = asyncio.create_task(self._observer.watch_until_end())
        attending = asyncio.create_task(self._attend_run(people, workers, principals))
        watching = asyncio.create_task(workers.watch_deaths())
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
                try:
                    self._played.result = await run_result(self._connection, self.run_id)
                except SurehandError as error:
                    if self._operation is None or isinstance(error, PlanRefused):
                        raise
                    self._played.no_end = "ended without a result"
                    self._played.violations.append(f"it ended without a result: {error}")
        finally:
            tasks = (observing, attending, watching)
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attend_run(self, people: People, workers: Workers, principals: Principals) -> None:
        """Interrupt the run, if that is what the case does, and deal with all that waits."""
        if told := self._disturbance:
            disturber = Disturber(told, self._played, self._connection, people, principals, workers)
            match told.point:
                case ForcedWait() as how:
                    await disturber.force_wait(how)
                case Operation() as how:
                    modules = self._variables.get("SUREHAND_TOOL_MODULES", "")
                    await disturber.operate_run(how, self._folder, modules)
                    if how is Operation.TERMINATE:
                        return
                case LeftWaiting() as how:
                    people.held = told.target.step
                    if how is LeftWaiting.AFTER:
                        people.held_at = frozenset({InterruptKind.AFTER})
        view, question = await people.attend_until_stuck()
        self._played.result, self._played.question = view.result, question

    async def look_at_world(self) -> None:
        """Take down what the world shows now; no-op without a function that looks at it."""
        if self._request.world is None:
            return
        snapshot = await self._request.world(self._context)
        self._played.turns_asked, snapshot = judge.split_turns(snapshot)
        self._played.compared["world"] = judge.name_fresh_values(
            snapshot, self._context, self._fresh
        )
        by_world = judge.read_own_count(snapshot)
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

    async def _read_ledger(self) -> None:
        """Take down what the run, the ledger and the world say in the end."""
        played = self._played
        tree, audit = RunTree(self.run_id), "never opened"
        async with open_ledger(self._context.database_url) as ledger:
            with contextlib.suppress(RunNotFound):
                tenant = self._connection.settings.tenant
                played.entries = await ledger.transact(tenant, reads.effects_of, self.run_id)
                audit = "holds"
                for run_id in await ledger.transact(tenant, reads.runs_of, self.run_id):
                    evidence = await ledger.transact(tenant, reads.read_evidence, run_id)
                    if run_id == self.run_id:
                        evidence = self._observer.add_tools(evidence)
                        played.recorded = evidence.tools
                        played.turns_recorded = count_recorded_turns(evidence)
                    found, stories = tally_calls(evidence, ACTOR)
                    played.tally = add_counts(played.tally, found)
                    played.violations += stories
                    events, rows, head = await ledger.transact(tenant, reads.chain_of, run_id)
                    broken = verify_chain(events, [head]) or verify_story(events)
                    if broken := broken or verify_entries(events, rows):
                        audit = "broken"
                        played.violations.append(f"audit of {run_id}: {broken}")
                    await tree.read_run(ledger, tenant, run_id)
                # Taken away once, however many child runs have the same user.
                losses = min(played.tally.losses, 1)
                played.tally = played.tally.model_copy(update={"losses": losses})
                self._judge_tree(tree)
        played.tools = self._observer.tools
        end = played.result
        played.compared = {
            "run": end.state.value if end else played.no_end,
            "steps": {s.id: s.state.value for s in end.steps if s.id != HELD} if end else {},
            "ledger": tree.describe_entries(),
            "audit": audit,
        }
        await self.look_at_world()

    def _judge_tree(self, tree: RunTree) -> None:
        """Take down what stands of the run and its child runs, and what is wrong with that."""
        played = self._played
        played.counted = tree.count_by_tool()
        played.remaining, played.applied = tree.describe_remaining(), sum(played.counted.values())
        played.violations += [*tree.list_out_of_order(), *tree.list_clock_jumps()]
        played.violations += judge.list_skipped_writes(tree.events, self._disturbance)
        if played.unwound is not None:
            played.violations += tree.list_not_unwound(played.unwound)
        elif played.result is not None and not played.question:
            played.violations += tree.list_unreported(played.result)
