"""``try``: an agent as it is, and with Surehand, killed at each of its calls and counted."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.printer import Lines, Shape, Styled, Table, compact
from surehand.drill import report
from surehand.drill.bare_agent import (
    ADOPTED,
    AFTER,
    BEFORE,
    CALLS,
    DURING,
    END,
    FUNCTION,
    POINTS,
    WORLD,
    Agent,
    BareEnd,
    BareRun,
    CountedCall,
    read_calls,
)
from surehand.drill.environment import WORKER, Environment
from surehand.drill.request import Context, DrillRequest
from surehand.drill.suite import Suite, run_together
from surehand.process import ROOT
from surehand.process.children import Child, fork_server, python
from surehand.process.exits import WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.tools import MODEL, Effect
from surehand.workflows.plain_text import counted

#: Seconds that an agent may take by itself, for one attempt.
LIMIT_S: Final = 120.0
#: How often an agent is started again after a kill, until it ends.
_MOST_RESUMES: Final = 3
_BARE: Final = "surehand.drill.bare_agent"
#: Agents that run at once.
_AT_ONCE: Final = 2
#: Seconds between looks at whether one has ended.
_PAUSE_S: Final = 0.05


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
        agent, end = await self._play_reference()
        effects = [call for call in agent.calls if not call.reads]
        self.say(f"It makes {counted(len(agent.calls), 'call')}, {len(effects)} of them writes")
        places = [(n, point) for n in range(1, len(agent.calls) + 1) for point in POINTS]
        left, bare = iter(places), list[ComparedCell]()

        async def play_one_after_another() -> None:
            for place in left:
                bare.append(await self._play_killed(agent, *place))

        await run_together(*(play_one_after_another() for _ in range(_AT_ONCE)))
        self.say("With Surehand")
        drilled, surehand = await self._play_with_surehand(agent)
        ok = drilled and all(cell.outcome is ComparedOutcome.RIGHT for cell in surehand)
        self.environment.kept |= not ok
        return ComparisonReport(
            ok=ok,
            agent=agent.name,
            framework=end.framework,
            resumes=end.resumes,
            calls=agent.calls,
            cells=[*bare, *surehand],
            seconds=round(time.monotonic() - began, 1),
        )

    async def _play_reference(self) -> tuple[Agent, BareEnd]:
        """Run the agent twice: two runs that differ are no measure for a third."""
        calls, end = await self._play_whole(self.agent, "reference-1")
        agent = self.agent.model_copy(update={"tools": end.tools, "calls": calls})
        if all(one.reads for one in agent.calls):
            raise WrongUse(
                f"{agent.name} has called no tool that writes (it has"
                f" {', '.join(agent.tools) or 'none'}): say with --input what it is to do"
            )
        # To load a framework takes seconds: all that follow are copies of a process that has.
        adapter = f"surehand.agents.{end.framework.replace('-', '_')}"
        own = () if end.framework == FUNCTION else (adapter,)
        self.environment.loaded = (_BARE, *own)
        again, _ = await self._play_whole(agent, "reference-2")
        if sorted(one.content for one in calls) != sorted(one.content for one in again):
            raise WrongUse(
                f"two runs of {agent.name} that nothing happened to make different calls, so"
                " nothing can be compared with them: use a model that answers by rules, or"
                " temperature 0"
            )
        return agent, end

    async def _play_whole(self, agent: Agent, name: str) -> tuple[list[CountedCall], BareEnd]:
        run = BareRun(agent=agent, folder=self.environment.make_case_folder(name))
        code, said = await self._play(run, "whole")
        if code:
            raise WrongUse(f"{agent.name} cannot be tried: {said}")
        end = BareEnd.model_validate_json((run.folder / END).read_text(encoding="utf-8"))
        return read_calls(run.folder / CALLS), end

    async def _play_killed(self, agent: Agent, number: int, point: str) -> ComparedCell:
        folder = self.environment.make_case_folder(f"bare-{number}-{point}")
        run = BareRun(agent=agent, folder=folder, kill_call=number, kill_point=point)
        code, said = await self._play(run, "killed")
        if code != -signal.SIGKILL:
            raise WrongUse(f"{agent.name} has not come to call {number} again: {said or code}")
        whole = run.model_copy(update={"kill_call": 0})
        for attempt in range(_MOST_RESUMES):
            code, said = await self._play(whole, f"resumed-{attempt + 1}")
            if code == 0:
                break
        made = read_calls(folder / WORLD)
        outcome = ComparedOutcome.STUCK if code else ComparedOutcome.RIGHT
        cell = ComparedCell(
            with_surehand=False,
            call=number,
            tool=agent.calls[number - 1].tool,
            point=point,
            outcome=_judge_effects(made, agent, outcome),
            effects=len(made),
            reason=said if code else "",
        )
        self.say(f"  {cell.tool} {point}: {cell.outcome}, {counted(cell.effects, 'effect')}")
        return cell

    async def _play(self, run: BareRun, name: str) -> tuple[int, str]:
        """Run an agent in a process of its own; returns how it ended, and its last line."""
        spec = run.folder / f"{name}.json"
        spec.write_text(run.model_dump_json(), encoding="utf-8")
        path = [str(ROOT), str(Path.cwd()), self.variables.get("PYTHONPATH", "")]
        child = Child(
            python(_BARE, str(spec)),
            environment={**self.variables, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            log=run.folder / f"{name}.log",
            folder=Path.cwd(),
            server=fork_server(WORKER, *self.environment.loaded) if run.agent.calls else None,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                while (code := child.returncode) is None:
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            return 1, f"it has not ended within {LIMIT_S:.0f} s"
        finally:
            child.kill()
        return code, child.last_line() if code else ""

    async def _play_with_surehand(self, agent: Agent) -> tuple[bool, list[ComparedCell]]:
        """Drill a run of the adopted agent; returns whether the drill is well, and its cells."""
        folder = self.environment.make_case_folder("surehand")
        spec, plan = folder / "tried.json", folder / "plan.json"
        tried = BareRun(agent=agent, folder=folder)
        spec.write_text(tried.model_dump_json(), encoding="utf-8")
        given = {"agent": agent.name, "tools": list(agent.tools), "input": agent.input}
        plan.write_bytes(to_json({"name": "tried", "code": "AdoptedAgent", "input": given}))
        variables = {
            **self.variables,
            ADOPTED: str(spec),
            "SUREHAND_TOOL_MODULES": "surehand.drill.adopted_tools",
            "SUREHAND_WORKFLOW_MODULES": "surehand.drill.adopted_agent",
            "SUREHAND_AGENT_MODULES": agent.name.partition(":")[0],
            # Of the user's own tools, which are not loaded.
            "SUREHAND_LIMITS": "",
            "SUREHAND_MCP": "",
        }
        world = partial(read_effects, folder)
        request = ComparisonRequest(str(plan), world=world, fresh=lambda _: {})  # told apart by run
        suite = Suite(request, self.environment, self.settings, variables, self.say)
        found = await suite.run()
        called = {cell.step: cell.tool for cell in found.cells}
        wanted = [call.tool for call in agent.calls]
        # By tool: the calls of one turn come in any order.
        steps = sorted(called, key=called.__getitem__)
        places = sorted(range(len(wanted)), key=wanted.__getitem__)
        if (made_by := sorted(called.values())) != sorted(wanted):
            self.environment.kept = True
            raise WrongUse(
                f"with Surehand {agent.name} calls {', '.join(made_by) or 'nothing'}, and as it is"
                f" {', '.join(wanted)}: see the logs in {self.environment.folder}"
            )
        made = read_calls(folder / WORLD)
        cells = [
            ComparedCell(
                with_surehand=True,
                call=places[steps.index(cell.step)] + 1,
                tool=cell.tool,
                point=_SAME[CrashPoint(cell.point)],
                outcome=_judge_effects(
                    [one for one in made if one.run == cell.run_id],
                    agent,
                    _OUTCOMES.get(cell.outcome, ComparedOutcome.STUCK),
                ),
                effects=cell.effects,
                reason="; ".join(cell.reasons),
            )
            for cell in found.cells
        ]
        return found.ok, cells


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


def read_effects(folder: Path, context: Context) -> dict[str, Any]:
    made = [one for one in read_calls(folder / WORLD) if one.run == context.run_id]
    made.sort(key=lambda one: one.content)  # calls of one turn come in any order
    return {
        "effects": dict(Counter(one.tool for one in made)),
        "calls": [{"tool": one.tool, "params": one.params} for one in made],
    }


#: What a drill's cell is whose effects are right.
_OUTCOMES: Final = {
    report.CellOutcome.SAME: ComparedOutcome.RIGHT,
    report.CellOutcome.NEEDS_HUMAN: ComparedOutcome.ASKS,
}


def _judge_effects(
    made: Sequence[CountedCall], agent: Agent, otherwise: ComparedOutcome
) -> ComparedOutcome:
    """Compare effects with those of the agent that nothing happened to."""
    found = Counter(one.content for one in made)
    wanted = Counter(one.content for one in agent.calls if not one.reads)
    if found - wanted:
        return ComparedOutcome.DOUBLED
    if otherwise is ComparedOutcome.ASKS:  # it may be missing, and a human is asked
        return otherwise
    return ComparedOutcome.LOST if wanted - found else otherwise


def describe_comparison(found: ComparisonReport) -> Lines:
    """Yield the report as people read it."""
    cells = {(cell.with_surehand, cell.call, cell.point): cell for cell in found.cells}
    yield Styled(f"{found.agent}, tried on {time.strftime('%Y-%m-%d')}", "bold")
    yield "Killed before the effect; during, with the answer on its way; after the agent has it."
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
        outcomes = Counter(cell.outcome for cell in of_way)
        told = ", ".join(f"{outcomes[one]} {one}" for one in ComparedOutcome if outcomes[one])
        yield f"{name}: {told} of {counted(len(of_way), 'kill')}."
        for cell in of_way:
            if cell.reason:
                yield f"  {cell.tool} {cell.point}: {compact(cell.reason, 300)}"
    yield f"Killed as it is, the agent ({found.framework}) {found.resumes}."
    good = "With Surehand each effect happened once." if found.ok else "NOT OK"
    yield Styled(good, "bold green" if found.ok else "bold red")
    reads = ", ".join(sorted({call.tool for call in found.calls if call.reads})) or "none"
    yield f"Took {found.seconds:.0f} s. No write was made. Reads that were made, once: {reads}."
