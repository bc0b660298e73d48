"""Runs that are measured: one after another or many at once, in turns with Temporal alone."""

from __future__ import annotations

import asyncio
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.plain import PLAIN, PLAIN_QUEUE
from benchmarks.played import played
from surehand.client.connection import Connection
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.plan.plan import Plan

#: Steps around one that say what it costs there.
_AROUND: Final = 10


@dataclass(frozen=True)
class Probe:
    """What is measured."""

    modes: tuple[str, ...]
    effect: str
    runs: int
    """At once; 1: one after another."""
    steps: int
    """Of each run."""
    rounds: int
    takes: float = 0
    """Seconds that each call takes."""

    @property
    def label(self) -> str:
        """Return its name in progress."""
        slow = f" of {self.takes * 1000:.0f} ms" if self.takes else ""
        return f"{self.runs} x {self.steps} {self.effect} steps{slow}"

    def plan(self) -> Plan:
        """Return the plan of each run."""
        step = {"tool": f"quick.{self.effect}", "params": {"takes": self.takes}}
        return Plan.model_validate({"name": "steps", "steps": [step] * self.steps})


@dataclass(frozen=True)
class Turn:
    """When the calls of some runs began, each run's in order, by the machine's monotonic clock."""

    began: list[list[float]]
    history_bytes: int = 0
    """Of one of the runs."""

    def seconds_per_step(self) -> float:
        """Return what a step takes its run: from its call to the next one's."""
        runs = [(run[-1] - run[0]) / (len(run) - 1) for run in self.began]
        return statistics.median(runs)

    def steps_per_second(self) -> float:
        """Return how many steps all runs together make in a second."""
        all_of_them = [at for run in self.began for at in run]
        return (len(all_of_them) - 1) / (max(all_of_them) - min(all_of_them))

    def around(self, step: int) -> float:
        """Return what a step costs there, in seconds."""
        run = self.began[0]
        last = min(step, len(run)) - 1
        first = max(0, last - _AROUND + 1)
        return (run[last] - run[first]) / (last - first)


@dataclass(frozen=True)
class Measured:
    """What a step costs in one mode, and without protection in the same minutes."""

    probe: Probe
    mode: str
    store: str
    turns: list[Turn]
    plain: list[Turn]

    @property
    def ms(self) -> float:
        """Milliseconds a step."""
        return 1000 * statistics.median(turn.seconds_per_step() for turn in self.turns)

    @property
    def plain_ms(self) -> float:
        """Milliseconds a step of Temporal alone."""
        return 1000 * statistics.median(turn.seconds_per_step() for turn in self.plain)

    @property
    def steps_per_s(self) -> float:
        """Steps a second, of all runs together."""
        return statistics.median(turn.steps_per_second() for turn in self.turns)

    @property
    def history_bytes(self) -> float:
        """Bytes of history that a step takes; those of opening and closing the run are shared."""
        return statistics.median(turn.history_bytes for turn in self.turns) / self.probe.steps

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        turn, plain = self.turns[0], self.plain[0]
        last = self.probe.steps
        at = {str(step): round(1000 * turn.around(step), 2) for step in (_AROUND, last)}
        plain_at = {str(step): round(1000 * plain.around(step), 2) for step in (_AROUND, last)}
        return {
            "mode": self.mode,
            "store": self.store,
            "effect": self.probe.effect,
            "runs": self.probe.runs,
            "ms_per_step": round(self.ms, 2),
            "plain_ms_per_step": round(self.plain_ms, 2),
            "steps_per_s": round(self.steps_per_s, 1),
            "steps": self.probe.steps,
            "tool_ms": round(1000 * self.probe.takes),
            "history_bytes_per_step": round(self.history_bytes),
            "ms_at_step": at,
            "plain_ms_at_step": plain_at,
        }

    def row(self) -> list[str]:
        """Return it as a line of the table of costs."""
        probe, ratio = self.probe, self.ms / self.plain_ms
        tool = f"{probe.takes * 1000:.0f} ms" if probe.takes else "0"
        told = [self.mode, self.store, probe.effect, str(probe.runs), tool]
        told += [f"{self.ms:.1f}", f"{self.plain_ms:.1f}", f"{ratio:.2f}"]
        return [*told, f"{self.steps_per_s:.0f}", f"{self.history_bytes:.0f}"]

    def late_row(self) -> list[str]:
        """Return it as a line of the table of early and late steps."""
        costs = [
            1000 * turn.around(step)
            for turn in (self.turns[0], self.plain[0])
            for step in (_AROUND, self.probe.steps)
        ]
        return [self.mode, self.store, *(f"{cost:.1f}" for cost in costs)]


class ConcurrentRuns:
    """Starts runs on one ledger."""

    def __init__(self, server: Connection, store: str) -> None:
        self._server = server
        self._store = store

    async def play(self, probe: Probe) -> list[Measured]:
        """Measure a probe in all of its modes; they and Temporal alone take turns.

        Raises:
            SurehandError: A run did not complete.
        """
        plan, warm_up = probe.plan(), Probe(probe.modes, probe.effect, 1, 3, 1).plan()
        plain: list[Turn] = []
        turns: dict[str, list[Turn]] = {mode: [] for mode in probe.modes}
        for mode in probe.modes:
            await self.protected(mode, warm_up, 1)
        await self.plain(3, 0, 1)
        for _ in range(probe.rounds):
            plain.append(await self.plain(probe.steps, probe.takes, probe.runs))
            for mode in probe.modes:
                turns[mode].append(await self.protected(mode, plan, probe.runs))
        return [Measured(probe, mode, self._store, turns[mode], plain) for mode in probe.modes]

    async def protected(self, mode: str, plan: Plan, runs: int) -> Turn:
        """Play runs of a plan at once in a mode.

        Raises:
            SurehandError: One did not complete.
        """
        results = await asyncio.gather(
            *(played(self._server, mode, plan, mode) for _ in range(runs))
        )
        described = await self._server.handle(results[0].run_id).describe()
        size = described.raw_description.workflow_execution_info.history_size_bytes
        return Turn([_began(result) for result in results], size)

    async def plain(self, steps: int, takes: float, runs: int) -> Turn:
        """Play runs of Temporal alone at once."""
        client, ids = self._server.client, [f"plain-{secrets.token_hex(6)}" for _ in range(runs)]
        began = await asyncio.gather(
            *(
                client.execute_workflow(
                    PLAIN,
                    args=[steps, takes],
                    id=run_id,
                    task_queue=PLAIN_QUEUE,
                    result_type=list[float],
                )
                for run_id in ids
            )
        )
        return Turn([list(run) for run in began])


def _began(result: RunResult) -> list[float]:
    outputs: Sequence[Any] = [step.output for step in result.steps]
    return [float(output["at"]) for output in outputs]
