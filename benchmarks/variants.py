"""Runs on ledgers that differ in one thing, each with a worker of its own, in turns."""

from __future__ import annotations

import statistics
from asyncio import to_thread
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from temporalio.converter import DataConverter

from benchmarks.concurrent import ConcurrentRuns, Probe
from benchmarks.figures import table
from benchmarks.program import clean
from surehand.client.connection import Connection
from surehand.drill.environment import READY, Environment, worker
from surehand.process.connect import connect, find_target
from surehand.process.settings import ClientSettings
from surehand.workflows.identity import DEFAULT_TENANT


@dataclass(frozen=True)
class Variant:
    """A ledger, and how its worker and its starter are set up."""

    name: str
    url: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the worker, where they are not the defaults."""
    converter: DataConverter | None = None
    """Of the starter."""


@dataclass(frozen=True)
class Compared:
    """What a step costs in one variant, and in the first one in the same minutes, in seconds."""

    store: str
    mode: str
    variant: str
    costs: list[float]
    first: list[float]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios: what slows one down slows its neighbour, too."""
        return statistics.median(
            its / firsts for its, firsts in zip(self.costs, self.first, strict=True)
        )

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        ms = round(1000 * statistics.median(self.costs), 2)
        told = {"store": self.store, "mode": self.mode, "variant": self.variant}
        return {**told, "ms_per_step": ms, "ratio": round(self.ratio, 3)}

    def row(self) -> list[str]:
        """Return it as a line of the table."""
        ms = 1000 * statistics.median(self.costs)
        return [self.mode, self.store, self.variant, f"{ms:.1f}", f"{self.ratio:.2f}"]


def compared(name: str, found: Sequence[Compared]) -> str:
    """Return the table; ``name`` is the head of the column of variants."""
    return table(["mode", "ledger", name, "ms a step", "ratio"], (one.row() for one in found))


async def compare(
    environment: Environment,
    store: str,
    variants: Sequence[Variant],
    modes: Sequence[str],
    *,
    rounds: int,
    steps: int,
) -> list[Compared]:
    """Play runs of quick writes on each variant, in turns.

    Args:
        environment: Where their folders are made.
        store: The kind of their ledgers.
        variants: What is compared with the first of them.
        modes: Durability modes.
        rounds: Turns of each.
        steps: Of a run.
    """
    variables = environment.variables(
        {**clean(), "SUREHAND_TOOL_MODULES": "benchmarks.quick_tools"}
    )
    target = find_target(variables)
    with ExitStack() as running:
        played: dict[str, ConcurrentRuns] = {}
        for variant in variants:
            queue = f"{store}-{variant.name}"
            settings = {"database_url": variant.url, "task_queue": queue, **variant.settings}
            folder = environment.case_folder(queue)
            one = running.enter_context(worker(variables, folder, "worker", **settings))
            await to_thread(one.wait_said, READY)
            client = await connect(target, quiet=True, converter=variant.converter)
            own = ClientSettings(
                tenant=DEFAULT_TENANT, user="benchmark", task_queue=queue, ui_url=environment.web_ui
            )
            played[variant.name] = ConcurrentRuns(Connection(client, target, own), store)
        found: list[Compared] = []
        for mode in modes:
            plan = Probe((mode,), "write", 1, steps, 1).plan()
            costs: dict[str, list[float]] = {name: [] for name in played}
            for runs in played.values():
                await runs.protected(mode, plan, 1)  # the first one warms up
            for _ in range(rounds):
                for name, runs in played.items():
                    turn = await runs.protected(mode, plan, 1)
                    costs[name].append(turn.seconds_per_step())
            first = costs[variants[0].name]
            found += [Compared(store, mode, name, its, first) for name, its in costs.items()]
        return found
