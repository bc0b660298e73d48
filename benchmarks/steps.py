"""``python -m benchmarks.steps``: what the protection of a step costs, in each durability mode.

Runs of steps that do next to nothing, one run after another and many at once. A plain Temporal
workflow, whose activity makes the same call without protection, takes turns with them.
BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import make_url, text

from benchmarks.harness import (
    MODES,
    Found,
    Place,
    Row,
    administration,
    at_each,
    clean,
    parser_of,
    played,
    process_with,
    run,
    tree_cpu,
)
from benchmarks.plain import PLAIN, PLAIN_QUEUE
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.history.reads import chain_of
from surehand.client.connection import Connection
from surehand.drill.environment import Environment
from surehand.process.exits import leave
from surehand.workflows.plan.plan import Plan

#: A write that holds a resource, which is free; many at once would wait for it.
LEASED: Final = "leased"
EFFECTS: Final = ("read", "write", LEASED)
#: One run after another, many at once, tools that take 200 ms, a run of 10,000 steps, and writes
#: within ten limits.
PROBES: Final = ("alone", "concurrent", "slow", "long_run", "limits")
#: A write within ten limits: five that add up, five that count, by customer and over a day.
LIMITED: Final = "limited"
OF_A_CUSTOMER: Final = 10
LIMITS: Final = [
    {"name": f"limit-{number}", "tools": [f"quick.{LIMITED}"], "per": ["customer"], "most": 10**9}
    | {"within": "24h"}
    | ({"total_of": "amount"} if number % 2 else {})
    for number in range(10)
]
#: Times that each mode has its turn.
ROUNDS: Final = 5
#: Steps of a run that is alone, and of each of many.
STEPS: Final = 100
CONCURRENT_STEPS: Final = 20
CONCURRENT: Final = 50
#: Seconds that a tool takes which does something, and steps of its runs.
SLOW: Final = 0.2
SLOW_STEPS: Final = 20
#: Above that, the history of a plain run would be too long.
MOST_STEPS: Final = 1000
#: Lists of a plan, and items of each: a plan has 1,000 steps at most, and a list 1,000 items.
LISTS: Final = 10
ITEMS: Final = 1000


@dataclass(frozen=True)
class Probe:
    """What is measured."""

    effect: str
    runs: int
    """At once; 1: one after another."""
    steps: int
    """Of each run."""
    rounds: int
    takes: float = 0
    """Seconds that each call takes."""

    def plan(self) -> Plan:
        step = {"tool": f"quick.{self.effect}", "params": {"takes": self.takes}}
        return Plan.model_validate({"name": "steps", "steps": [step] * self.steps})


def ms_around(began: Sequence[float], step: int, around: int) -> float:
    """Return what a step costs there, in milliseconds: the mean of those before it."""
    last = min(step, len(began)) - 1
    first = max(0, last - around + 1)
    return round(1000 * (began[last] - began[first]) / (last - first), 2)


@dataclass(frozen=True)
class Turn:
    """When the calls of some runs began, each run's in order, by the machine's monotonic clock."""

    began: list[list[float]]
    history_bytes: int = 0
    """Of one of the runs."""

    def seconds_per_step(self) -> float:
        """Return what a step takes its run: from its call to the next one's."""
        return statistics.median((run[-1] - run[0]) / (len(run) - 1) for run in self.began)

    def steps_per_second(self) -> float:
        """Return how many steps all runs together make in a second."""
        calls = [at for run in self.began for at in run]
        return (len(calls) - 1) / (max(calls) - min(calls))


async def play_protected(server: Connection, mode: str, plan: Plan, runs: int) -> Turn:
    """Play runs of a plan at once in a mode."""
    results = await asyncio.gather(*(played(server, mode, plan, mode) for _ in range(runs)))
    described = await server.handle(results[0].run_id).describe()
    size = described.raw_description.workflow_execution_info.history_size_bytes
    outputs: list[list[Any]] = [[step.output for step in result.steps] for result in results]
    return Turn([[float(output["at"]) for output in of_run] for of_run in outputs], size)


async def play_plain(server: Connection, steps: int, takes: float, runs: int) -> Turn:
    """Play runs of Temporal alone at once."""
    began = await asyncio.gather(
        *(
            server.client.execute_workflow(
                PLAIN,
                args=[steps, takes],
                id=f"plain-{secrets.token_hex(6)}",
                task_queue=PLAIN_QUEUE,
                result_type=list[float],
            )
            for _ in range(runs)
        )
    )
    return Turn([list(run) for run in began])


async def play_probe(place: Place, probe: Probe, modes: Sequence[str]) -> Iterator[Row]:
    """Measure a probe in its modes; they and Temporal alone take turns."""
    plan, warm_up = probe.plan(), Probe(probe.effect, 1, 3, 1).plan()
    plain: list[Turn] = []
    turns: dict[str, list[Turn]] = {mode: [] for mode in modes}
    for mode in modes:
        await play_protected(place.server, mode, warm_up, 1)
    await play_plain(place.server, 3, 0, 1)
    for _ in range(probe.rounds):
        plain.append(await play_plain(place.server, probe.steps, probe.takes, probe.runs))
        for mode in modes:
            turns[mode].append(await play_protected(place.server, mode, plan, probe.runs))
    return (_row(place.store, mode, probe, turns[mode], plain) for mode in modes)


def _row(store: str, mode: str, probe: Probe, turns: list[Turn], plain: list[Turn]) -> Row:
    ms, plain_ms = (
        1000 * statistics.median(turn.seconds_per_step() for turn in each)
        for each in (turns, plain)
    )
    # The bytes of opening and closing the run are shared by its steps.
    history = statistics.median(turn.history_bytes for turn in turns) / probe.steps
    return {
        "mode": mode,
        "store": store,
        "effect": probe.effect,
        "runs": probe.runs,
        "steps": probe.steps,
        "tool_ms": round(1000 * probe.takes),
        "ms_per_step": round(ms, 2),
        "plain_ms_per_step": round(plain_ms, 2),
        "ratio": round(ms / plain_ms, 2),
        "steps_per_s": round(statistics.median(turn.steps_per_second() for turn in turns), 1),
        "history_bytes_per_step": round(history),
    }


async def play_limits(place: Place, steps: int, rounds: int) -> Row:
    """Play writes within no limit and within ten, in turns; the processor's time tells."""
    url, port = make_url(place.url), place.server.target.address.split(":")[1]
    pids = [place.worker.pid, process_with("--port", port)]
    on_postgres = url.get_backend_name() == "postgresql"
    if on_postgres:
        pids.append(process_with("-p", str(url.port)))
    ms: dict[str, list[float]] = {"free": [], LIMITED: []}
    cpu: dict[str, list[float]] = {"free": [], LIMITED: []}
    for number in range(rounds + 1):
        for effect in ms:
            customers = [secrets.token_hex(4) for _ in range(0, steps, OF_A_CUSTOMER)]
            calls = [
                {"tool": f"quick.{effect}", "params": {"customer": customers[at // OF_A_CUSTOMER]}}
                for at in range(steps)
            ]
            plan = Plan.model_validate({"name": "limits", "steps": calls})
            before = sum(map(tree_cpu, pids))
            turn = await play_protected(place.server, "sync", plan, 1)
            if not number and on_postgres:
                with administration(place.url) as tx:  # as autovacuum does within a minute
                    tx.connection.execute(text("ANALYZE"))
            if number:  # the first ones warm up
                cpu[effect].append(1000 * (sum(map(tree_cpu, pids)) - before) / steps)
                ms[effect].append(1000 * turn.seconds_per_step())
    return {
        "mode": "sync",
        "store": place.store,
        **{f"ms {name}": round(statistics.median(ms[name]), 2) for name in ms},
        **{f"cpu ms {name}": round(statistics.median(cpu[name]), 2) for name in cpu},
        **{
            f"ratio of {kind}": round(
                statistics.median(b / a for a, b in zip(of["free"], of[LIMITED], strict=True)), 3
            )
            for kind, of in (("ms", ms), ("cpu", cpu))
        },
    }


async def play_long_run(place: Place, mode: str) -> Row:
    """Play one run of 10,000 writes: whether a step costs more the later it comes."""
    each = {"for_each": "${input.items}", "tool": "quick.write", "params": {}}
    plan = Plan.model_validate(
        {"name": "long_run", "input": {"items": list(range(ITEMS))}, "steps": [each] * LISTS}
    )
    run_id = (await played(place.server, f"long_run-{mode}", plan, mode)).run_id
    async with open_ledger(place.url) as ledger:
        events, _, _ = await ledger.transact(place.server.settings.tenant, chain_of, run_id)
    # By the database's clock: the claims of its effects.
    began = [event["at_ms"] / 1000 for event in events if event["type"] == "effect.claimed"]
    listed = place.server.client.list_workflows(f"WorkflowId = '{run_id}'")
    at = {step: ms_around(began, step, 20) for step in (20, 1000, LISTS * ITEMS)}
    return {
        "mode": mode,
        "store": place.store,
        "steps": len(began),
        **{f"ms_at_step_{step}": ms for step, ms in at.items()},
        "ms_per_step": ms_around(began, len(began), len(began)),
        "last/first": round(at[LISTS * ITEMS] / at[20], 2) if at[20] else None,
        "executions": len([one async for one in listed]),
    }


async def measure(environment: Environment, options: argparse.Namespace, found: Found) -> None:
    modes, wanted = tuple(options.mode or MODES), options.probe or PROBES
    effects, steps, rounds = options.effect or EFFECTS, options.steps, options.rounds
    probes = {
        "alone": [Probe(effect, 1, steps, rounds) for effect in effects],
        "concurrent": [
            Probe(effect, CONCURRENT, CONCURRENT_STEPS, 1) for effect in effects if effect != LEASED
        ],
        "slow": [Probe("write", 1, SLOW_STEPS, rounds, takes=SLOW)],
    }

    async def play(place: Place) -> None:
        for name in wanted:
            for probe in probes.get(name, ()):
                found.rows.extend(await play_probe(place, probe, modes))
                found.note(f"{place.store}: {name}, {probe.effect}")
        if "long_run" in wanted:
            for mode in modes:
                found.rows.append(await play_long_run(place, mode))
                found.note(f"{place.store}: 10,000 steps, {mode}")
        if "limits" in wanted:
            found.rows.append(await play_limits(place, steps, rounds))
            found.note(f"{place.store}: limits")

    file = environment.folder / "limits.json"
    file.write_text(json.dumps({"limits": LIMITS}), encoding="utf-8")
    settings = {"SUREHAND_TOOL_MODULES": "benchmarks.tools", "SUREHAND_LIMITS": str(file)}
    variables = environment.make_variables({**clean(), **settings})
    await at_each(environment, variables, options.database, play, options.processes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("steps", "What the protection of a step costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 5")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="default 100")
    parser.add_argument("--mode", choices=MODES, action="append", help="default all")
    parser.add_argument("--effect", choices=EFFECTS, action="append", help="default all")
    own = "of our worker, not of the plain one; default 1"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=own)
    parser.add_argument("--probe", choices=PROBES, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or not 2 <= options.steps <= MOST_STEPS:
        parser.error(f"--rounds must be at least 1, --steps 2 to {MOST_STEPS}")
    return run("steps", options, measure)


if __name__ == "__main__":
    leave(main())
