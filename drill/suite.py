"""All cases of a drill, and how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from surehand.cli.printer import Printer, counted
from surehand.client.connection import Connection
from surehand.drill.case import Case
from surehand.drill.environment import Environment
from surehand.drill.people import APPROVER
from surehand.drill.played import Baseline, DrillState, Played, asked_again, judged, uncounted
from surehand.drill.report import (
    GOOD,
    CellOutcome,
    DrillCell,
    DrillReport,
    DrillTarget,
    FaultFree,
    Halt,
    Operation,
    PermissionDrift,
    Point,
    added_up,
    all_turns,
    consistency_of,
    recovery_of,
)
from surehand.drill.request import Disturbance, DrillRequest
from surehand.drill.world import differences
from surehand.process.connect import connect, find_target
from surehand.process.exits import ExitCode, PlanRefused, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.tools import Effect, ToolSpec
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import ASKING


class DrillProgress:
    """Tells how far a drill is: a line for each case."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._total = 0
        self._done = 0

    def note(self, text: str) -> None:
        """Say what goes on beside the cases."""
        self._printer.say(text)

    def begin(self, total: int, kept: Sequence[DrillCell]) -> None:
        """Say how many cells there are; some may be done."""
        self._total, self._done = total, len(kept)
        if kept:
            self._printer.say(f"Done before: {len(kept)} of {counted(total, 'case')}")

    def done(self, cell: DrillCell) -> None:
        """A case is done."""
        self._done += 1
        self._printer.say(f"{self._done}/{self._total}  {line_of(cell)}")


def line_of(cell: DrillCell) -> str:
    """Return one line about a cell that is done."""
    recovered = f", recovered in {cell.recovery_s:.1f} s" if cell.recovery_s is not None else ""
    why = next(iter(cell.reasons), "")
    told = f"{cell.outcome}, {counted(cell.effects, 'effect')}{recovered}"
    return f"{cell.label} {cell.point}: {told}{f' ({why})' if why else ''}"


T = TypeVar("T")


class Suite:
    """One drill."""

    def __init__(
        self,
        request: DrillRequest,
        environment: Environment,
        settings: ClientSettings,
        variables: Mapping[str, str],
        progress: DrillProgress,
        *,
        state: DrillState | None = None,
        resume: bool = False,
    ) -> None:
        """Prepare a drill."""
        self._request = request
        self._environment = environment
        self._settings = settings
        self._tools = variables.get("SUREHAND_TOOL_MODULES", "")
        self._variables = environment.variables(variables)
        self._progress = progress
        self._state = state
        self._resume = resume
        self._one_halts = asyncio.Lock()
        self._compared_halted: dict[tuple[str, Halt], Mapping[str, Any]] = {}

    async def run(self) -> DrillReport:
        """Play all cases and return what they show."""
        began, started_at = time.monotonic(), datetime.now(UTC)
        await self._environment.check()
        target = find_target(self._variables)
        connection = Connection(await connect(target, quiet=True), target, self._settings)
        fingerprint = self._request.fingerprint(self._tools)
        earlier = self._state.read(fingerprint) if self._state and self._resume else None
        if earlier and self._finished(*earlier):
            earlier = None
        baseline, done = earlier or (await self._baseline(connection, fingerprint), [])
        if self._state:
            self._state.begin(baseline, done)
        targets = self._request.chosen(baseline.targets)
        self._request.refuse_nothing(targets)
        wanted = list(self.wanted(targets))
        kept = [cell for cell in done if _key(cell) in {_key(cell) for cell in wanted}]
        keys = {_key(cell) for cell in kept}
        self._progress.begin(len(wanted), kept)
        made = await self._side_by_side(
            connection, baseline, [cell for cell in wanted if _key(cell) not in keys]
        )
        by_key = {_key(cell): cell for cell in [*kept, *made]}
        cells = [by_key[_key(cell)] for cell in wanted]
        tally = added_up([baseline.fault_free.tally, *(cell.tally for cell in cells)])
        good = all(cell.outcome in GOOD for cell in cells)
        return DrillReport(
            ok=bool(cells) and good and tally.holds and not baseline.fault_free.violations,
            plan=self._request.plan_name,
            modes=list(self._request.modes),
            server="embedded" if self._environment.embedded else target.address,
            world=self._request.world.name if self._request.world else "",
            fresh=self._request.fresh.name if self._request.fresh else "",
            approver=APPROVER,
            started_at=started_at,
            seconds=round(time.monotonic() - began, 1),
            fault_free=baseline.fault_free,
            points=[point.value for point in self._request.points],
            targets=targets,
            cells=cells,
            counts={
                outcome: sum(cell.outcome is outcome for cell in cells) for outcome in CellOutcome
            },
            recovery=recovery_of(self._request.points, cells),
            approval_consistency=consistency_of(tally),
            permission_drift=PermissionDrift(drifted=tally.drifted, losses=tally.losses),
            model_turns=all_turns([baseline.fault_free.turns, *(cell.turns for cell in cells)]),
        )

    def _finished(self, baseline: Baseline, done: Sequence[DrillCell]) -> bool:
        """Say whether nothing is left to go on with: then all is played anew."""
        targets = self._request.chosen(baseline.targets)
        return {_key(cell) for cell in self.wanted(targets)} <= {_key(cell) for cell in done}

    async def _baseline(self, connection: Connection, fingerprint: str) -> Baseline:
        """Play the fault-free run twice: two that differ are no measure for a third."""
        self._progress.note("Fault-free: two runs, which every other one is compared with")
        if self._request.parallel > 1:
            first, second = await _together(
                self._fault_free(connection), self._fault_free(connection)
            )
        else:
            first, second = await self._fault_free(connection), await self._fault_free(connection)
        found = list(differences(first.compared, second.compared))
        if found:
            raise WrongUse(
                f"two fault-free runs differ, so nothing can be compared with them: {found[0]};"
                " see that world returns only what --fresh has made, and nothing that changes"
                " from run to run"
            )
        assert first.result is not None
        return Baseline(
            fingerprint=fingerprint,
            targets=self._targets(first),
            fault_free=FaultFree(
                run_id=first.run_id,
                state=first.result.state,
                effects=sum(first.counted.values()),
                counted=first.counted,
                turns=first.turns_beside(0),
                seconds=round(first.seconds, 1),
                approvals=first.approvals,
                tally=first.tally.plus(second.tally),
                violations=[
                    violation
                    for run in (first, second)
                    for violation in (*run.violations, *uncounted(run), *asked_again(run))
                ],
            ),
            compared=first.compared,
            remaining=first.remaining,
        )

    async def _fault_free(self, connection: Connection) -> Played:
        case = self._case(connection)
        try:
            played = await case.play()
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

    def _targets(self, played: Played) -> list[DrillTarget]:
        """Return the calls of the plan, and those that undid some of them, in their order."""
        assert played.result is not None
        if self._request.plan.code is not None:
            made = (_made_by_code(view, played) for view in played.result.steps)
            # What only waits, or was refused, calls nothing.
            return [*(target for target in made if _called(target)), *_undone(played)]
        targets = []
        views = {view.id: view for view in played.result.steps}
        children = {view.id for view in views.values() if view.child}
        for step in self._request.plan.steps:
            if step.wait is not None:
                continue  # It calls nothing itself.
            # Of a list, the first item's call.
            first = f"{step.id}[0]"
            name = first if first in children | played.tools.keys() else step.id
            spec = played.tools.get(name)
            targets.append(
                DrillTarget(
                    step=name,
                    tool=step.does,
                    asks=step.ask is not None,
                    child=name in children,
                    succeeded=name in views and views[name].state is StepState.SUCCEEDED,
                    **_promised(spec),
                )
            )
        return [*targets, *_undone(played)]

    def wanted(self, targets: list[DrillTarget]) -> Iterator[DrillCell]:
        """Yield the cells of the matrix, with nothing found yet."""
        for mode in self._request.modes:
            for target in targets:
                for point in self._request.points_of(target):
                    yield DrillCell(
                        mode=mode,
                        step=target.step,
                        undo=target.undo,
                        tool=target.tool,
                        point=point,
                        outcome=CellOutcome.NOT_REACHED,
                        question=""
                        if _called(target)
                        else "the fault-free run never calls this step",
                    )

    def _disturbance(
        self, baseline: Baseline, target: DrillTarget, point: Point, mode: str
    ) -> Disturbance:
        """Return what is done to a run; one that goes back to a step has come as far as it can."""
        states, plan = baseline.compared["steps"], self._request.plan
        by_code = plan.code is not None
        ids = list(states) if by_code else [step.id for step in plan.steps]
        there = (one for one in ids if states[one] == StepState.SUCCEEDED)
        behind = tuple(there) if point is Operation.RESET_STEP else ()
        after = (b for a, b in pairwise(baseline.targets) if a == target and not b.undo)
        return Disturbance(target, point, Durability(mode), behind, by_code, next(after, None))

    def _case(
        self,
        connection: Connection,
        disturbance: Disturbance | None = None,
        permissions: Collection[str] = (),
    ) -> Case:
        own = (self._request, self._environment, connection, self._variables)
        return Case(*own, disturbance, permissions)

    async def _halted(
        self, connection: Connection, disturbance: Disturbance, permissions: Collection[str]
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
                    told = Disturbance(target, halt)
                    played = await self._case(connection, told, permissions).play()
                    self._compared_halted[target.step, halt] = played.compared
        return [self._compared_halted[target.step, halt] for halt in halts]

    async def _side_by_side(
        self, connection: Connection, baseline: Baseline, cells: list[DrillCell]
    ) -> list[DrillCell]:
        targets = {(target.step, target.undo): target for target in baseline.targets}
        allowed = {one.permission for one in baseline.targets if one.permission is not None}
        points = {point.value: point for point in self._request.points}
        left, made = iter(cells), []
        # Without fresh ones, the world is another run's by then.
        again = self._request.world is not None and self._request.fresh is not None
        killed: list[tuple[float, Case, Callable[[], DrillCell]]] = []

        def done(cell: DrillCell) -> None:
            if self._state:
                self._state.add(cell)
            self._progress.done(cell)
            made.append(cell)

        async def look_again(now: float) -> None:
            """Judge those whose dead workers have nothing on the wire any more."""
            while killed and killed[0][0] <= now:
                _, case, judge = killed.pop(0)
                await case.look_at_world()
                done(judge())

        async def one_after_another() -> None:
            for cell in left:
                target = targets[cell.step, cell.undo]
                if _called(target):
                    what = self._disturbance(baseline, target, points[cell.point], cell.mode)
                    case = self._case(connection, what, allowed)
                    played = await case.play()
                    doubtful = what.in_doubt
                    halted = (
                        await self._halted(connection, doubtful, allowed)
                        if played.question
                        else None
                    )
                    judge = partial(
                        judged,
                        *(cell, baseline, played),
                        world=self._request.world is not None,
                        halted=halted,
                        in_doubt=doubtful.target.step,
                    )
                    cell = judge()
                    if again and what.crash_at and cell.outcome in GOOD:
                        over = time.monotonic() + case.latest_effect.total_seconds()
                        killed.append((over, case, judge))
                        await look_again(time.monotonic())
                        continue
                done(cell)

        await _together(*(one_after_another() for _ in range(self._request.parallel)))
        if killed:
            last = max(over for over, _, _ in killed)
            wait = max(last - time.monotonic(), 0)
            self._progress.note(f"Waiting {wait:.0f} s for what dead workers have sent")
            await asyncio.sleep(wait)
            await look_again(last)
        return made


def _called(target: DrillTarget) -> bool:
    """Say whether the fault-free run has come to a step."""
    return target.effect is not None or target.asks or target.child


def _made_by_code(view: StepView, played: Played) -> DrillTarget:
    """Return a step that code or an agent has made."""
    return DrillTarget(
        step=view.id,
        tool=view.tool,
        asks=view.tool == ASKING,
        child=view.child is not None,
        succeeded=view.state is StepState.SUCCEEDED,
        **_promised(played.tools.get(view.id)),
    )


def _undone(played: Played) -> Iterator[DrillTarget]:
    """Yield the calls that have undone others."""
    for entry in played.entries:
        if entry["undoes"] is not None:
            step, tool = entry["step_id"], entry["tool"]
            how = _recovery(played.recorded.get(tool))
            yield DrillTarget(step=step, tool=tool, effect=Effect.WRITE, undo=True, **how)


def _promised(spec: ToolSpec | None) -> dict[str, Any]:
    """Return what of a step's tool decides which points it has; ``None``: it was never called."""
    policy = spec.approval if spec else None
    return {
        "effect": spec.effect if spec else None,
        "permission": spec.permission if spec else None,
        "may_ask_again": not policy or policy.on_expiry in (None, "ask_again"),
        **_recovery(spec),
    }


def _recovery(spec: ToolSpec | None) -> dict[str, Any]:
    """Return what a tool promises of an outcome that a crash leaves unknown."""
    if spec is None:
        return {}
    provable = spec.recovery.proves_absence(spec.settle)
    return {"recovery": spec.recovery, "absence_provable": provable}


async def _together(*parts: Coroutine[Any, Any, T]) -> list[T]:
    """Run all side by side; the first failure, or a cancellation, ends them all."""
    running = [asyncio.create_task(part) for part in parts]
    try:
        return await asyncio.gather(*running)
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _key(cell: DrillCell) -> tuple[str, str, bool, str]:
    return cell.mode, cell.step, cell.undo, cell.point
