"""``try``: an agent as it is, and with Surehand, killed at each of its calls and counted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.printer import Lines, Shape, Styled, Table, compact, counted
from surehand.drill import report
from surehand.drill.bare_agent import (
    AFTER,
    BEFORE,
    CALLS,
    DURING,
    END,
    POINTS,
    WORLD,
    Agent,
    BareEnd,
    BareRun,
    CountedCall,
    read_calls,
)
from surehand.drill.environment import Environment
from surehand.drill.request import Context, DrillRequest
from surehand.drill.suite import Suite
from surehand.process import ROOT
from surehand.process.children import python
from surehand.process.exits import WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.tools import MODEL, Effect

#: Seconds that an agent may take by itself, for one attempt.
LIMIT_S: Final = 120.0
#: How often an agent is started again after a kill, until it ends.
_MOST_RESUMES: Final = 3
#: Agents that run at once.
_AT_ONCE: Final = 2


class ComparedOutcome(StrEnum):
    """What a killed agent has done in the end, beside one that nothing happened to."""

    RIGHT = "right"
    DOUBLED = "doubled"
    """An effect is there more often."""
    LOST = "lost"
    """An effect is missing."""
    ASKS = "asks"
    """A human has to say whether an effect has happened."""
    STUCK = "stuck"
    """The effects are right, and the agent has not come to its end."""


class ComparedCell(Shape):
    """An agent that was killed at one point of one of its calls."""

    with_surehand: bool
    call: int
    """Counted from 1."""
    tool: str
    point: str
    outcome: ComparedOutcome
    effects: int
    reason: str = ""


class ComparisonReport(Shape):
    """``try``."""

    ok: bool
    """With Surehand each cell is right."""
    agent: str
    framework: str
    resumes: str
    """How the agent goes on after a crash, as it is."""
    calls: list[CountedCall]
    """Of the agent that nothing happened to."""
    cells: list[ComparedCell]
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """One agent that is tried."""

    agent: Agent
    environment: Environment
    settings: ClientSettings
    variables: Mapping[str, str]
    say: Callable[[str], None]

    async def run(self) -> ComparisonReport:
        """Run the agent in both ways, at all points. Raises ``WrongUse``."""
        began = time.monotonic()
        self.say("As it is: two runs that nothing happens to")
        agent, end = await asyncio.to_thread(self._play_reference)
        effects = [call for call in agent.calls if not call.reads]
        self.say(f"It makes {counted(len(agent.calls), 'call')}, {len(effects)} of them writes")
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            places = [
                (number, point) for number in range(1, len(agent.calls) + 1) for point in POINTS
            ]
            bare = list(at_once.map(lambda place: self._play_killed(agent, *place), places))
        self.say("With Surehand")
        surehand = await self._play_with_surehand(agent)
        return ComparisonReport(
            ok=all(cell.outcome is ComparedOutcome.RIGHT for cell in surehand),
            agent=agent.name,
            framework=end.framework,
            resumes=end.resumes,
            calls=agent.calls,
            cells=[*bare, *surehand],
            seconds=round(time.monotonic() - began, 1),
        )

    def _play_reference(self) -> tuple[Agent, BareEnd]:
        """Run the agent twice: two runs that differ are no measure for a third."""
        calls, end = self._play_whole(self.agent, "reference-1")
        agent = self.agent.model_copy(update={"tools": end.tools, "calls": calls})
        again, _ = self._play_whole(agent, "reference-2")
        if [(one.tool, one.params) for one in calls] != [(one.tool, one.params) for one in again]:
            raise WrongUse(
                f"two runs of {agent.name} that nothing happened to make different calls, so"
                " nothing can be compared with them: use a model that answers by rules, or"
                " temperature 0"
            )
        if all(one.reads for one in agent.calls):
            raise WrongUse(
                f"{agent.name} has called no tool that writes (it has"
                f" {', '.join(agent.tools) or 'none'}): say with --input what it is to do"
            )
        return agent, end

    def _play_whole(self, agent: Agent, name: str) -> tuple[list[CountedCall], BareEnd]:
        run = BareRun(agent=agent, folder=self._make_folder(name))
        code, said = self._play(run, "whole")
        if code:
            raise WrongUse(f"{agent.name} does not run: {said}")
        end = BareEnd.model_validate_json((run.folder / END).read_text(encoding="utf-8"))
        return read_calls(run.folder / CALLS), end

    def _play_killed(self, agent: Agent, number: int, point: str) -> ComparedCell:
        folder = self._make_folder(f"bare-{number}-{point}")
        run = BareRun(agent=agent, folder=folder, kill_call=number, kill_point=point)
        code, said = self._play(run, "killed")
        if code != -signal.SIGKILL:
            raise WrongUse(f"{agent.name} has not come to call {number} again: {said or code}")
        whole = run.model_copy(update={"kill_call": 0})
        for attempt in range(_MOST_RESUMES):
            code, said = self._play(whole, f"resumed-{attempt + 1}")
            if code == 0:
                break
        made, wanted = _count_effects(read_calls(folder / WORLD)), _count_effects(agent.calls)
        outcome = ComparedOutcome.STUCK if code else ComparedOutcome.RIGHT
        if made - wanted:
            outcome = ComparedOutcome.DOUBLED
        elif wanted - made:
            outcome = ComparedOutcome.LOST
        cell = ComparedCell(
            with_surehand=False,
            call=number,
            tool=agent.calls[number - 1].tool,
            point=point,
            outcome=outcome,
            effects=made.total(),
            reason=said if code else "",
        )
        self.say(f"  {cell.tool} {point}: {outcome}, {counted(cell.effects, 'effect')}")
        return cell

    def _make_folder(self, name: str) -> Path:
        return self.environment.make_case_folder(name)

    def _play(self, run: BareRun, name: str) -> tuple[int, str]:
        """Run an agent in a process of its own; returns how it ended, and its last line."""
        spec = run.folder / f"{name}.json"
        spec.write_text(run.model_dump_json(), encoding="utf-8")
        command = python("surehand.drill.bare_agent", str(spec))
        path = [str(ROOT), str(Path.cwd()), self.variables.get("PYTHONPATH", "")]
        environment = {**self.variables, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return 1, f"it has not ended within {LIMIT_S:.0f} s"
        lines = f"{done.stdout}{done.stderr}".strip().splitlines()
        return done.returncode, lines[-1] if lines and done.returncode else ""

    async def _play_with_surehand(self, agent: Agent) -> list[ComparedCell]:
        """Drill a run that makes the agent's calls by Surehand."""
        folder = self._make_folder("surehand")
        spec, plan = folder / "tried.json", folder / "plan.json"
        tried = BareRun(agent=agent, folder=folder)
        spec.write_text(tried.model_dump_json(), encoding="utf-8")
        given = {"agent": agent.name, "tools": list(agent.tools), "input": agent.input}
        plan.write_bytes(to_json({"name": "tried", "code": "AdoptedAgent", "input": given}))
        variables = {
            **self.variables,
            "ADOPTED_AGENT": str(spec),
            "SUREHAND_TOOL_MODULES": "surehand.drill.adopted_tools",
            "SUREHAND_WORKFLOW_MODULES": "surehand.drill.adopted_agent",
            "SUREHAND_AGENT_MODULES": agent.name.partition(":")[0],
        }
        world = partial(read_effects, folder)
        request = ComparisonRequest(str(plan), world=world, fresh=_fresh)
        suite = Suite(request, self.environment, self.settings, variables, self.say)
        found = await suite.run()
        steps = list(dict.fromkeys(cell.step for cell in found.cells))
        made = [next(one.tool for one in found.cells if one.step == step) for step in steps]
        if made != (wanted := [call.tool for call in agent.calls]):
            raise WrongUse(
                f"with Surehand {agent.name} calls {', '.join(made) or 'nothing'}, and as it is"
                f" {', '.join(wanted)}: see the logs in {self.environment.folder}"
            )
        return [_judge_cell(cell, steps.index(cell.step) + 1) for cell in found.cells]


#: Where a call is killed with Surehand, by the point of a bare agent's.
_SAME: Final = {
    CrashPoint.BEFORE_CLAIM: BEFORE,
    CrashPoint.AFTER_CLAIM: BEFORE,
    CrashPoint.DURING_CALL: DURING,
    CrashPoint.BEFORE_REPORT: AFTER,
}


class ComparisonRequest(DrillRequest):
    """A drill of an agent's calls, at the points at which it is killed as it is."""

    def choose_targets(self, targets: Sequence[report.DrillTarget]) -> list[report.DrillTarget]:
        chosen = super().choose_targets(targets)
        return [target for target in chosen if target.tool != MODEL]

    def points_of(self, target: report.DrillTarget) -> list[report.Point]:
        first = CrashPoint.BEFORE_CLAIM if target.effect is Effect.READ else CrashPoint.AFTER_CLAIM
        return [first, CrashPoint.DURING_CALL, CrashPoint.BEFORE_REPORT]


def _fresh(context: Context) -> dict[str, Any]:
    return {}  # what an agent's tools leave is told apart by the run


def read_effects(folder: Path, context: Context) -> dict[str, Any]:
    made = [one for one in read_calls(folder / WORLD) if one.run == context.run_id]
    return {
        "effects": dict(Counter(one.tool for one in made)),
        "calls": [{"tool": one.tool, "params": one.params} for one in made],
    }


def _judge_cell(cell: report.DrillCell, number: int) -> ComparedCell:
    match cell.outcome:
        case report.CellOutcome.SAME:
            outcome = ComparedOutcome.RIGHT
        case report.CellOutcome.NEEDS_HUMAN:
            outcome = ComparedOutcome.ASKS
        case _:
            outcome = ComparedOutcome.STUCK
    return ComparedCell(
        with_surehand=True,
        call=number,
        tool=cell.tool,
        point=_SAME[CrashPoint(cell.point)],
        outcome=outcome,
        effects=cell.effects,
        reason="; ".join(cell.reasons),
    )


def _count_effects(calls: Sequence[CountedCall]) -> Counter[tuple[str, bytes]]:
    return Counter((one.tool, to_json(one.params)) for one in calls if not one.reads)


def describe_comparison(found: ComparisonReport) -> Lines:
    """Yield the report as people read it."""
    cells = {(cell.with_surehand, cell.call, cell.point): cell for cell in found.cells}
    yield ""
    rows = []
    for number, call in enumerate(found.calls, 1):
        name = f"{number} {call.tool}" + (" (read)" if call.reads else "")
        of_call = [cells.get((way, number, point)) for way in (False, True) for point in POINTS]
        rows.append([name, *(cell.outcome.value if cell else "-" for cell in of_call)])
    columns = [f"as it is: {POINTS[0]}", *POINTS[1:], f"with Surehand: {POINTS[0]}", *POINTS[1:]]
    yield Table(["killed at call", *columns], rows)
    yield ""
    for way, name in ((False, "As it is"), (True, "With Surehand")):
        of_way = [cell for cell in found.cells if cell.with_surehand is way]
        yield f"{name}: {_count_outcomes(of_way)} of {counted(len(of_way), 'kill')}."
    yield f"As it is, an agent of {found.framework} {found.resumes}."
    yield from _list_reasons(found)
    good = "With Surehand each effect happened once." if found.ok else "NOT OK"
    yield Styled(good, "bold green" if found.ok else "bold red")
    yield f"Took {found.seconds:.0f} s. No write was made: each was counted in a file."


def _list_reasons(found: ComparisonReport) -> Iterator[str]:
    for cell in found.cells:
        if cell.reason:
            way = "with Surehand" if cell.with_surehand else "as it is"
            yield f"  {cell.tool} {cell.point}, {way}: {compact(cell.reason, 300)}"


def _count_outcomes(cells: Sequence[ComparedCell]) -> str:
    outcomes = Counter(cell.outcome for cell in cells)
    return ", ".join(f"{outcomes[one]} {one}" for one in ComparedOutcome if outcomes[one])
