"""All cases of a drill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from surehand.client.connection import Connection
from surehand.drill import judge, report
from surehand.drill.case import Case
from surehand.drill.environment import Environment
from surehand.drill.people import APPROVER
from surehand.drill.request import Disturbance, DrillRequest
from surehand.process.connect import connect, find_target
from surehand.process.exits import ExitCode, PlanRefused, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.tools import Effect, ToolSpec
from surehand.workflows.plan.plan import ASKING, Durability

T = TypeVar("T")


class Suite:
    """One drill."""

    def __init__(
        self,
        request: DrillRequest,
        environment: Environment,
        settings: ClientSettings,
        variables: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """Prepare a drill; ``say`` is told how far it is."""
        self._request = request
        self._environment = environment
        self._settings = settings
        self._variables = environment.make_variables(variables)
        self._say = say
        self._one_halts = asyncio.Lock()
        self._compared_halted: dict[tuple[str, report.LeftWaiting], Mapping[str, Any]] = {}

    async def run(self) -> report.DrillReport:
        """Play all cases and return what they show."""
        began, started_at, request = time.monotonic(), datetime.now(UTC), self._request
        await self._environment.require_ledger()
        server = find_target(self._variables)
        self._connection = Connection(await connect(server, quiet=True), server, self._settings)
        baseline = await self._play_baseline()
        targets = request.choose_targets(baseline.targets)
        request.refuse_nothing(targets)
        cells = await self._play_cells(baseline, list(self.plan_cells(targets)))
        fault_free = baseline.fault_free
        tally = report.add_counts(fault_free.tally, *(cell.tally for cell in cells))
        turns = [one for one in (fault_free.turns, *(cell.turns for cell in cells)) if one]
        good = all(cell.outcome in report.GOOD for cell in cells)
        return report.DrillReport(
            ok=bool(cells) and good and tally.holds and not fault_free.violations,
            plan=request.plan_name,
            modes=list(request.modes),
            server="embedded" if self._environment.embedded else server.address,
            world=request.world.name if request.world else "",
            fresh=request.fresh.name if request.fresh else "",
            approver=APPROVER,
            started_at=started_at,
            seconds=round(time.monotonic() - began, 1),
            fault_free=fault_free,
            points=[point.value for point in request.points],
            targets=targets,
            cells=cells,
            counts={
                outcome: sum(cell.outcome is outcome for cell in cells)
                for outcome in report.CellOutcome
            },
            recovery=report.measure_recovery(request.points, cells),
            tally=tally,
            model_turns=report.add_counts(*turns) if turns else None,
        )

    async def _play_baseline(self) -> judge.Baseline:
        """Play the fault-free run twice: two that differ are no measure for a third."""
        self._say("Fault-free: two runs, which every other one is compared with")
        if self._request.parallel > 1:
            first, second = await _run_together(self._play_undisturbed(), self._play_undisturbed())
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
        return judge.Baseline(
            targets=self._find_targets(first),
            fault_free=report.FaultFree(
                run_id=first.run_id,
                state=first.result.state,
                effects=sum(first.counted.values()),
                counted=first.counted,
                turns=first.count_turns(0),
                seconds=round(first.seconds, 1),
                approvals=first.approvals,
                tally=report.add_counts(first.tally, second.tally),
                violations=[
                    violation
                    for run in (first, second)
                    for violation in (
                        *run.violations,
                        *judge.compare_counts(run),
                        *judge.list_repeated_turns(run),
                    )
                ],
            ),
            compared=first.compared,
            remaining=first.remaining,
        )

    async def _play_undisturbed(self) -> judge.Played:
        try:
            played = await self._make_case().play()
        except PlanRefused as error:
            raise PlanRefused(self._request.plan_name, error.problems) from error
        if played.question:
            raise SurehandError(
                f"the fault-free run needs a human: {played.question}", code=ExitCode.HUMAN_NEEDED
            )
        if played.result is None:
            raise SurehandError(
                f"the fault-free run has not ended within {self._request.limit}: give it more"
                " time with --timeout",
                code=ExitCode.OUT_OF_TIME,
            )
        return played

    def _find_targets(self, played: judge.Played) -> list[report.DrillTarget]:
        """Return the calls of the plan, and those that undid some of them, in their order."""
        assert played.result is not None
        targets = []
        views = {view.id: view for view in played.result.steps}
        children = {view.id for view in views.values() if view.child}
        if self._request.plan.code is not None:
            steps = [(view.id, view.tool, view.tool == ASKING) for view in played.result.steps]
        else:
            steps = []
            for step in self._request.plan.steps:
                if step.wait is None:  # One that waits calls nothing itself.
                    # Of a list, the first item's call.
                    first = f"{step.id}[0]"
                    name = first if first in children | played.tools.keys() else step.id
                    steps.append((name, step.does, step.ask is not None))
        for name, tool, asks in steps:
            spec = played.tools.get(name)
            policy = spec.approval if spec else None
            target = report.DrillTarget(
                step=name,
                tool=tool,
                asks=asks,
                child=name in children,
                succeeded=name in views and views[name].state is StepState.SUCCEEDED,
                effect=spec.effect if spec else None,
                permission=spec.permission if spec else None,
                may_ask_again=not policy or policy.on_expiry in (None, "ask_again"),
                **_describe_recovery(spec),
            )
            # What code has made and what only waits, or was refused, calls nothing.
            if target.called or self._request.plan.code is None:
                targets.append(target)
        for entry in played.entries:
            if entry["undoes"] is not None:
                step_id, tool = entry["step_id"], entry["tool"]
                how = _describe_recovery(played.recorded.get(tool))
                undo = report.DrillTarget(
                    step=step_id, tool=tool, effect=Effect.WRITE, undo=True, **how
                )
                targets.append(undo)
        return targets

    def plan_cells(self, targets: list[report.DrillTarget]) -> Iterator[report.DrillCell]:
        """Yield the cells of the matrix, with nothing found yet."""
        for mode in self._request.modes:
            for target in targets:
                for point in self._request.points_of(target):
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

    def _disturb(
        self, baseline: judge.Baseline, target: report.DrillTarget, point: report.Point, mode: str
    ) -> Disturbance:
        """Return what is done to a run; one that goes back to a step has come as far as it can."""
        states, plan = baseline.compared["steps"], self._request.plan
        by_code = plan.code is not None
        ids = list(states) if by_code else [step.id for step in plan.steps]
        there = (one for one in ids if states[one] == StepState.SUCCEEDED)
        behind = tuple(there) if point is report.Operation.RESET_STEP else ()
        after = (b for a, b in pairwise(baseline.targets) if a == target and not b.undo)
        return Disturbance(target, point, Durability(mode), behind, by_code, next(after, None))

    def _make_case(
        self, disturbance: Disturbance | None = None, permissions: Collection[str] = ()
    ) -> Case:
        own = (self._request, self._environment, self._connection, self._variables)
        return Case(*own, disturbance, permissions)

    async def _play_halted(
        self, disturbance: Disturbance, permissions: Collection[str]
    ) -> list[Mapping[str, Any]] | None:
        """Return what runs leave that are halted at a call; ``None``: nobody may be asked."""
        target = disturbance.target
        if not disturbance.doubt:
            return None
        # Nothing can be halted at what undoes.
        halts = () if target.undo else disturbance.doubt
        async with self._one_halts:
            for halt in halts:
                if (target.step, halt) not in self._compared_halted:
                    played = await self._make_case(Disturbance(target, halt), permissions).play()
                    self._compared_halted[target.step, halt] = played.compared
        return [self._compared_halted[target.step, halt] for halt in halts]

    async def _play_cells(
        self, baseline: judge.Baseline, wanted: list[report.DrillCell]
    ) -> list[report.DrillCell]:
        targets = {(target.step, target.undo): target for target in baseline.targets}
        allowed = {one.permission for one in baseline.targets if one.permission is not None}
        points = {point.value: point for point in self._request.points}
        left, done = iter(enumerate(wanted)), dict[int, report.DrillCell]()
        with_world = self._request.world is not None
        # Without fresh ones, the world is another run's by then.
        again = with_world and self._request.fresh is not None
        killed: list[tuple[float, int, Case, Callable[[], report.DrillCell]]] = []

        def end(number: int, cell: report.DrillCell) -> None:
            done[number] = cell
            self._say(f"{len(done)}/{len(wanted)}  {report.describe_cell(cell)}")

        async def look_again(now: float) -> None:
            """Judge those whose dead workers have nothing on the wire any more."""
            while killed and killed[0][0] <= now:
                _, number, case, decide = killed.pop(0)
                await case.look_at_world()
                end(number, decide())

        async def play_one_after_another() -> None:
            for number, cell in left:
                target = targets[cell.step, cell.undo]
                if not target.called:
                    end(number, cell)
                    continue
                what = self._disturb(baseline, target, points[cell.point], cell.mode)
                case = self._make_case(what, allowed)
                played = await case.play()
                doubtful = what.in_doubt
                halted = await self._play_halted(doubtful, allowed) if played.question else None
                decide = partial(
                    judge.judge_cell,
                    *(cell, baseline, played),
                    world=with_world,
                    halted=halted,
                    in_doubt=doubtful.target.step,
                )
                judged = decide()
                if again and what.crash_at and judged.outcome in report.GOOD:
                    over = time.monotonic() + case.latest_effect.total_seconds()
                    killed.append((over, number, case, decide))
                    await look_again(time.monotonic())
                else:
                    end(number, judged)

        await _run_together(*(play_one_after_another() for _ in range(self._request.parallel)))
        if killed:
            last = max(over for over, *_ in killed)
            wait = max(last - time.monotonic(), 0)
            self._say(f"Waiting {wait:.0f} s for what dead workers have sent")
            await asyncio.sleep(wait)
            await look_again(last)
        return [done[number] for number in range(len(wanted))]


def _describe_recovery(spec: ToolSpec | None) -> dict[str, Any]:
    """Return what a tool promises of an outcome that a crash leaves unknown."""
    if spec is None:
        return {}
    provable = spec.recovery.proves_absence(spec.settle)
    return {"recovery": spec.recovery, "absence_provable": provable}


async def _run_together(*parts: Coroutine[Any, Any, T]) -> list[T]:
    """Run all side by side; the first failure, or a cancellation, ends them all."""
    running = [asyncio.create_task(part) for part in parts]
    try:
        return await asyncio.gather(*running)
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
