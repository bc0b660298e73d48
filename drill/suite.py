"""All cases of a drill: each a fresh run that is disturbed at one point, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import RunNotFound, open_ledger
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.history.audit import verify_run
from surehand.client.client import launch_run
from surehand.client.connection import ENDS, Connection
from surehand.client.outcome import run_result
from surehand.drill import judge, people, report
from surehand.drill.environment import Environment, Workers
from surehand.drill.request import HELD, Context, Disturbance, DrillRequest, change_plan
from surehand.process.connect import connect, find_target
from surehand.process.exits import ExitCode, PlanRefused, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.tools import MODEL, Effect, Recovery, ToolsDescribed, ToolSpec
from surehand.workflows.identity import run_id_for
from surehand.workflows.plan.plan import ASKING, Durability, Plan
from surehand.workflows.ports import DESCRIBE_TOOLS

T = TypeVar("T")


@dataclass
class Suite:
    """One drill."""

    request: DrillRequest
    environment: Environment
    settings: ClientSettings
    own: InitVar[Mapping[str, str]]
    """The user's variables."""
    say: Callable[[str], None]
    """It is told how far the drill is."""

    def __post_init__(self, own: Mapping[str, str]) -> None:
        self.variables = self.environment.make_variables(own)

    async def run(self) -> report.DrillReport:
        """Play all cases and return what they show."""
        began, request, environment = time.monotonic(), self.request, self.environment
        await environment.require_ledger()
        server = find_target(self.variables)
        self.connection = Connection(await connect(server, quiet=True), server, self.settings)
        baseline = await self._play_baseline()
        targets = request.choose_targets(baseline.targets)
        cells = await self._play_cells(baseline, list(self.plan_cells(targets)))
        fault_free = baseline.fault_free
        tally = report.add_tallies(fault_free.tally, *(cell.tally for cell in cells))
        good = all(cell.outcome in report.GOOD for cell in cells)
        ok = bool(cells) and good and tally.holds and not fault_free.violations
        if not ok:
            environment.kept = True
            self.say(f"Ledgers and logs of all cases are kept in {environment.folder}")
        return report.DrillReport(
            ok=ok,
            plan=request.plan_name,
            modes=request.modes,
            server="embedded" if environment.embedded else server.address,
            world=request.world.name if request.world else "",
            seconds=round(time.monotonic() - began, 1),
            fault_free=fault_free,
            points=[point.value for point in request.points],
            targets=targets,
            cells=cells,
            tally=tally,
        )

    async def _play_baseline(self) -> judge.Baseline:
        """Play the fault-free run twice: two that differ are no measure for a third."""
        self.say("Fault-free: two runs, which every other one is compared with")
        if self.request.parallel > 1:
            first, second = await run_together(self._play_undisturbed(), self._play_undisturbed())
        else:
            first, second = await self._play_undisturbed(), await self._play_undisturbed()
        found = list(judge.list_differences(first.compared, second.compared))
        if found:
            raise WrongUse(
                f"two fault-free runs differ, so nothing can be compared with them: {found[0]};"
                " see that world returns only what --fresh has made, and nothing that changes"
                " from run to run"
            )
        assert first.result is not None
        violations = [
            violation
            for run in (first, second)
            for violation in (
                *run.violations,
                *judge.compare_counts(run),
                *judge.list_repeated_turns(run),
            )
        ]
        fault_free = report.FaultFree(
            run_id=first.run_id,
            state=first.result.state,
            effects=sum(first.counted.values()),
            counted=first.counted,
            tally=report.add_tallies(first.tally, second.tally),
            violations=violations,
        )
        targets = self._find_targets(first)
        return judge.Baseline(targets, fault_free, first.compared, first.remaining)

    async def _play_undisturbed(self) -> judge.Played:
        try:
            played = await Case(self).play()
        except PlanRefused as error:
            raise PlanRefused(self.request.plan_name, error.problems) from error
        if played.question:
            raise SurehandError(
                f"the fault-free run needs a human: {played.question}", code=ExitCode.HUMAN_NEEDED
            )
        if played.result is None:
            raise SurehandError(
                f"the fault-free run has not ended within {self.request.limit}: give it more"
                " time with --timeout",
                code=ExitCode.OUT_OF_TIME,
            )
        return played

    def _find_targets(self, played: judge.Played) -> list[report.DrillTarget]:
        """Return the calls of the plan, and those that undid some of them, in their order."""
        assert played.result is not None
        views = {view.id: view for view in played.result.steps}
        children = {view.id for view in views.values() if view.child}
        by_code = self.request.plan.code is not None
        if by_code:
            steps = [(view.id, view.tool, view.tool == ASKING) for view in played.result.steps]
        else:
            steps = []
            for step in self.request.plan.steps:
                if step.wait is None:  # One that waits calls nothing itself.
                    # Of a list, the first item's call.
                    first = f"{step.id}[0]"
                    name = first if first in children | played.called.keys() else step.id
                    steps.append((name, step.does, step.ask is not None))
        targets = [
            report.DrillTarget(
                step=name,
                tool=tool,
                asks=asks,
                child=name in children,
                succeeded=name in views and views[name].state is StepState.SUCCEEDED,
                **_describe_tool(played.called.get(name, ""), played.tools),
            )
            for name, tool, asks in steps
        ]
        for entry in played.entries:
            if entry["undoes"] is not None:
                step, tool = entry["step_id"], entry["tool"]
                own = {**_describe_tool(tool, played.tools), "effect": Effect.WRITE}
                targets.append(report.DrillTarget(step=step, tool=tool, undo=True, **own))
        # What code has made and what only waits, or was refused, calls nothing.
        return [target for target in targets if target.called or not by_code]

    def plan_cells(self, targets: list[report.DrillTarget]) -> Iterator[report.DrillCell]:
        """Yield the cells of the matrix, with nothing found yet."""
        for mode in self.request.modes:
            for target in targets:
                for point in self.request.points_of(target):
                    yield report.DrillCell(
                        mode=mode,
                        step=target.step,
                        undo=target.undo,
                        tool=target.tool,
                        point=point,
                        outcome=report.CellOutcome.NOT_REACHED,
                        question=""
                        if target.called
                        else "the fault-free run never calls this step",
                    )

    def _plan_disturbance(
        self, baseline: judge.Baseline, target: report.DrillTarget, cell: report.DrillCell
    ) -> Disturbance:
        """Return what is done to a run; one that goes back to a step has come as far as it can."""
        states, plan = baseline.compared["steps"], self.request.plan
        by_code = plan.code is not None
        point = next(one for one in self.request.points if one == cell.point)
        ids = list(states) if by_code else [step.id for step in plan.steps]
        there = (one for one in ids if states[one] == StepState.SUCCEEDED)
        behind = tuple(there) if point is report.Operation.RESET_STEP else ()
        after = (b for a, b in pairwise(baseline.targets) if a == target and not b.undo)
        return Disturbance(target, point, Durability(cell.mode), behind, by_code, next(after, None))

    async def _play_cells(
        self, baseline: judge.Baseline, wanted: list[report.DrillCell]
    ) -> list[report.DrillCell]:
        targets = {(target.step, target.undo): target for target in baseline.targets}
        allowed = {one.permission for one in baseline.targets if one.permission is not None}
        left, done = iter(enumerate(wanted)), dict[int, report.DrillCell]()
        # Without fresh ones, the world is another run's by then.
        again = self.request.world is not None and self.request.fresh is not None
        killed: dict[int, Case] = {}
        arrived_at = 0.0

        async def play_one_after_another() -> None:
            nonlocal arrived_at
            for number, cell in left:
                target = targets[cell.step, cell.undo]
                if target.called:
                    what = self._plan_disturbance(baseline, target, cell)
                    case = Case(self, what, allowed)
                    await case.play()
                    cell = case.judge_cell(cell, baseline)
                    if again and what.killed_at and cell.outcome in report.GOOD:
                        killed[number] = case
                        latest = time.monotonic() + case.latest_effect.total_seconds()
                        arrived_at = max(arrived_at, latest)
                done[number] = cell
                self.say(f"{len(done)}/{len(wanted)}  {report.describe_cell(cell)}")

        await run_together(*(play_one_after_another() for _ in range(self.request.parallel)))
        if killed:
            wait = max(arrived_at - time.monotonic(), 0)
            self.say(f"Waiting {wait:.0f} s for what dead workers have sent")
            await asyncio.sleep(wait)
        for number, case in killed.items():
            await case.look_at_world()
            done[number] = case.judge_cell(wanted[number], baseline)
            if done[number].outcome not in report.GOOD:
                self.say(f"Now it differs: {report.describe_cell(done[number])}")
        return [done[number] for number in range(len(wanted))]


def _describe_tool(name: str, tools: Mapping[str, ToolSpec]) -> dict[str, Any]:
    """Return what a target says of its tool, as it was recorded."""
    spec = tools.get(name)
    if spec is None:
        return {"effect": Effect.READ if name == MODEL else None}
    return {
        "effect": spec.effect,
        "recovery": spec.recovery,
        "absence_provable": spec.recovery.proves_absence(spec.settle),
        "permission": spec.permission,
        "may_ask_again": not spec.approval or spec.approval.on_expiry in (None, "ask_again"),
    }


async def run_together(*parts: Coroutine[Any, Any, T]) -> list[T]:
    """Run all side by side; the first failure, or a cancellation, ends them all."""
    running = [asyncio.create_task(part) for part in parts]
    try:
        return await asyncio.gather(*running)
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Case:
    """Plays one case; its workers, ledger and task queue are its own."""

    def __init__(
        self,
        suite: Suite,
        disturbance: Disturbance | None = None,
        permissions: Collection[str] = (),
    ) -> None:
        self._suite = suite
        self._request = request = suite.request
        self._disturbance = disturbance
        self._operation = disturbance.operation if disturbance else None
        self._permissions = permissions
        label = f"{disturbance.target.step}-{disturbance.point}" if disturbance else "fault-free"
        name = f"drill-{request.plan.name[:20]}-{label}"[:100] + f"-{secrets.token_hex(4)}"
        self._folder = suite.environment.make_case_folder(name)
        # The task queue is the case's own, so that only its workers take its run.
        settings = suite.settings.model_copy(update={"task_queue": name})
        self._connection = Connection(suite.connection.client, suite.connection.target, settings)
        self._run_id = run_id_for(settings.tenant, name)
        self._observer = RunObserver(self._connection, self._run_id)
        self.played = judge.Played(self._run_id, no_end=f"not ended after {request.limit}")

    async def play(self) -> judge.Played:
        """Run the case to its end, or to where only a human can move it."""
        began, told, played = time.monotonic(), self._disturbance, self.played
        settings, environment = self._connection.settings, self._suite.environment
        database_url = await asyncio.to_thread(environment.make_ledger, self._folder)
        self._fresh = await self._make_fresh(database_url)
        changed = change_plan(self._request.plan, told).model_dump(mode="json")
        given = {**changed["input"], **self._fresh}
        plan = Plan.model_validate({**changed, "input": given})
        waits = told is not None and isinstance(told.point, report.ForcedWait)
        start = StartRun(
            run_id=self._run_id,
            tenant=settings.tenant,
            user=settings.user,
            plan=plan,
            durability=told.mode if told and not waits else Durability.SYNC,
        )
        is_own, described = environment.database is None, self._observer.described
        self._ledger = people.CaseLedger(database_url, settings.tenant, is_own, described)
        await self._ledger.grant(settings.user, "permission", self._permissions)
        self._context = Context(self._run_id, plan.input, database_url)
        killed = told is not None and told.killed_at is not None and not self._operation
        # Open: the drill's people have no keys, and its ledger is nobody else's.
        of_workers = {"database_url": database_url, "decisions": "open"}
        of_workers["task_queue"] = settings.task_queue
        of_workers["crash_once"] = str(self._folder / "crashed")
        if told and told.killed_at:
            of_workers["crash_at"] = told.crash_at
        if self._operation is report.Operation.FREEZE:
            of_workers["crash_by"] = "SIGSTOP"
        variables, loaded = self._suite.variables, environment.loaded
        with Workers(variables, self._folder, loaded, of_workers) as workers:
            # With a kill two, so that another one stands by; an operator sees to the next one.
            await workers.start(2 if killed else 1)
            await launch_run(self._connection, start)
            attendants = people.People(self._connection, self._run_id, self._ledger)
            if told:
                own = (self._connection, self._run_id, self._ledger)
                attendants = people.Disturber(
                    *own, disturbance=told, played=played, workers=workers
                )
            try:
                await self._wait_until_settled(attendants, workers)
                await workers.thaw_frozen()
            finally:
                if played.result is None or played.question:
                    with contextlib.suppress(RPCError):
                        await self._connection.handle(self._run_id).terminate("the drill is over")
        if told and killed:
            played.reached = workers.killed
            if (died_at := workers.died_at) is not None:
                place = (told.target.step, told.target.undo)
                recovered = self._observer.find_recovery(place, died_at)
                played.recovery_s = None if recovered is None else recovered - died_at
        await self._read_ledger()
        await self.look_at_world()
        played.seconds = time.monotonic() - began
        return played

    def judge_cell(self, cell: report.DrillCell, baseline: judge.Baseline) -> report.DrillCell:
        """Return the cell of the matrix with what came of the case."""
        doubtful = self._disturbance.in_doubt if self._disturbance else None
        with_world = self._request.world is not None
        return judge.judge_cell(cell, baseline, self.played, world=with_world, doubtful=doubtful)

    async def _make_fresh(self, database_url: str) -> dict[str, Any]:
        function, given = self._request.fresh, self._request.plan.input
        if function is None:
            return {}
        fresh = await function(Context(self._run_id, given, database_url))
        if not isinstance(fresh, dict) or not fresh.keys() <= given.keys():
            raise WrongUse(
                f"{function.name} returned {fresh!r}: it must be a mapping of inputs of the plan,"
                f" which has {', '.join(given) or 'none'}"
            )
        return fresh

    async def _wait_until_settled(self, attendants: people.People, workers: Workers) -> None:
        """Return when the run has ended, needs a human, or is out of time."""
        observing = asyncio.create_task(self._observer.watch_until_end())
        attending = asyncio.create_task(self._attend_run(attendants))
        watching = asyncio.create_task(workers.watch_deaths())
        parts = {observing, attending, watching}
        if self._operation is report.Operation.TERMINATE:
            parts.remove(observing)  # Its end is not the end of what is done to it.
        limit = self._request.limit.total_seconds()
        try:
            done, _ = await asyncio.wait(parts, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
            if observing in done:
                self.played.question = ""
                try:
                    self.played.result = await run_result(self._connection, self._run_id)
                except SurehandError as error:
                    if self._operation is None or isinstance(error, PlanRefused):
                        raise
                    self.played.no_end = "ended without a result"
                    self.played.violations.append(f"it ended without a result: {error}")
        finally:
            tasks = (observing, attending, watching)
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attend_run(self, attendants: people.People) -> None:
        """Disturb the run, if that is what the case does, and deal with all that waits."""
        await attendants.disturb_run()
        if self._operation is not report.Operation.TERMINATE:
            view, question = await attendants.attend_until_stuck()
            self.played.result, self.played.question = view.result, question

    async def look_at_world(self) -> None:
        """Take down what the world shows now; no-op without a function that looks at it."""
        if self._request.world is None:
            return
        snapshot = await self._request.world(self._context)
        self.played.turns_asked, snapshot = judge.split_turns(snapshot)
        self.played.compared["world"] = judge.name_fresh_values(
            snapshot, self._context, self._fresh
        )
        by_world = judge.read_own_count(snapshot)
        if by_world is not None:
            self.played.counted = by_world

    @property
    def latest_effect(self) -> timedelta:
        """Return how long after a call its effect may appear, by what the run's tools say."""
        return max(
            (
                spec.timeout + (spec.settle or timedelta(0))
                for spec in self.played.tools.values()
                if spec.effect is Effect.WRITE and spec.recovery is not Recovery.TRANSACTIONAL
            ),
            default=timedelta(0),
        )

    async def _read_ledger(self) -> None:
        """Take down what the ledger says in the end of the run and its child runs."""
        played, tenant = self.played, self._connection.settings.tenant
        tree, audit = judge.RunTree(self._run_id), "never opened"
        async with open_ledger(self._context.database_url, patience=people.PATIENCE) as ledger:
            with contextlib.suppress(RunNotFound):
                played.entries = await ledger.transact(tenant, reads.effects_of, self._run_id)
                audit = "holds"
                for run_id in await ledger.transact(tenant, reads.runs_of, self._run_id):
                    evidence = await ledger.transact(tenant, reads.read_evidence, run_id)
                    if run_id == self._run_id:
                        evidence = self._ledger.add_tools(evidence)
                        played.tools = evidence.tools
                        calls = [row for row in evidence.steps if row["attempt"] > 0]
                        played.called = {row["step_id"]: row["tool"] for row in calls}
                        played.turns_recorded = judge.count_recorded_turns(evidence)
                    found, stories = judge.tally_calls(evidence, people.ACTOR)
                    played.tally = report.add_tallies(played.tally, found)
                    played.violations += stories
                    events, rows, head = await ledger.transact(tenant, reads.chain_of, run_id)
                    if broken := verify_run(events, rows, [head]):
                        audit = "broken"
                        played.violations.append(f"audit of {run_id}: {broken}")
                    await tree.read_run(ledger, tenant, run_id)
                # Taken away once, however many child runs have the same user.
                losses = min(played.tally.losses, 1)
                played.tally = played.tally.model_copy(update={"losses": losses})
                played.counted = tree.count_by_tool()
                played.remaining = tree.describe_entries(tree.list_remaining())
                played.applied = sum(played.counted.values())
                played.in_doubt = tree.count_in_doubt()
                played.violations += [*tree.list_out_of_order(), *tree.list_clock_jumps()]
                if played.unwound is not None:
                    played.violations += tree.list_not_unwound(played.unwound)
                elif played.result is not None and not played.question:
                    played.violations += tree.list_unreported(played.result)
        end = played.result
        played.compared = {
            "run": end.state.value if end else played.no_end,
            "steps": {s.id: s.state.value for s in end.steps if s.id != HELD} if end else {},
            "ledger": tree.describe_entries(tree.entries),
            "audit": audit,
        }


@dataclass
class RunObserver:
    """What has been seen of one run; all times are this process's monotonic clock."""

    connection: Connection
    run_id: str
    described: dict[str, ToolSpec] = field(default_factory=dict)
    """By name, those that the run was told of after its start, as code and agents ask."""
    _scheduled: dict[int, HistoryEvent] = field(default_factory=dict)
    _outcomes: list[tuple[list[people.Place], float]] = field(default_factory=list)

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

    def find_recovery(self, place: people.Place, died_at: float) -> float | None:
        """Return when the first outcome of a call arrived after a death."""
        # What a batch returns is not the outcome of one call.
        after = (at for where, at in self._outcomes if where == [place] and at > died_at)
        return next(after, None)

    async def _note_event(self, event: HistoryEvent) -> None:
        seen_at, client = time.monotonic(), self.connection.client
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            self._scheduled[event.event_id] = event
            return
        # Only a final end is written down as one; attempts in between are not.
        ended = event.activity_task_completed_event_attributes
        failed = event.activity_task_failed_event_attributes.scheduled_event_id
        scheduled = self._scheduled.get(ended.scheduled_event_id or failed)
        if scheduled is None:
            return
        called = scheduled.activity_task_scheduled_event_attributes.activity_type.name
        if called == DESCRIBE_TOOLS.name and not failed:
            told = await people.decode(client, ended.result.payloads, ToolsDescribed)
            self.described.update(told.tools)
        self._outcomes.append((await people.read_calls(client, scheduled), seen_at))
