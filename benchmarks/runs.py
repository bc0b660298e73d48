"""``python -m benchmarks.runs``: what a whole run costs, from its start to its result.

The refund of ``examples``: two reads and three writes, of which one needs an approval that a
standing approval gives. One run after another and many at once, in turns with a plain Temporal
workflow that makes the same five calls, and whose signal is there from the start. BENCHMARKS.md
shows what this prints.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console

from benchmarks.figures import table
from benchmarks.ledgers import DATABASES
from benchmarks.program import Told, parser_of, run
from benchmarks.whole_runs import PLAIN, Measured, Turn, WholeRuns
from benchmarks.workers import Place, at_each
from surehand.drill.environment import Environment
from surehand.process.exits import leave
from surehand.workflows.plan.durability import Durability

_MODES: Final = tuple(mode.value for mode in Durability)
ROUNDS: Final = 3
#: In each turn, at once and one after another.
RUNS: Final = 50
ALONE: Final = 20
#: Before the first turn, in each mode.
_WARM_UP: Final = 3
_PROCESSES: Final = ("worker", "server", "database")


async def measure(
    environment: Environment, options: argparse.Namespace, console: Console, found: list[Measured]
) -> None:
    """Play all modes on each ledger; the list keeps what is done when this is ended early."""
    began, kinds = time.monotonic(), (PLAIN, *(options.mode or _MODES))

    async def play(place: Place) -> None:
        runs = WholeRuns(place)
        runs.grant()
        for kind in kinds:
            await runs.turn(kind, _WARM_UP, at_once=False)
        for at_once, runs_each in ((False, min(ALONE, options.runs)), (True, options.runs)):
            turns: dict[str, list[Turn]] = {kind: [] for kind in kinds}
            for _ in range(options.rounds):
                for kind in kinds:
                    turns[kind].append(await runs.turn(kind, runs_each, at_once=at_once))
            crowd = options.runs if at_once else 1
            found.extend(
                Measured(place.store, kind, crowd, turns[kind], turns[PLAIN]) for kind in kinds
            )
            took = time.monotonic() - began
            console.print(f"{place.store}: {crowd} at once ({took:.0f} s so far)")

    databases = options.database or list(DATABASES)
    tools, processes = "benchmarks.refund_tools", str(options.processes)
    await at_each(environment, databases, play, tools=tools, processes=processes)


def document(one: Measured) -> dict[str, Any]:
    """Return it for JSON."""
    return {
        "mode": one.kind,
        "store": one.store,
        "at_once": one.at_once,
        "ms_per_run": round(one.ms, 1),
        "ratio": round(one.ratio, 3),
        "runs_per_s": round(one.runs_per_s, 2),
        "events": one.left(lambda history: history.events),
        "history_bytes": one.left(lambda history: history.size),
        "activities": one.left(lambda history: history.activities),
        "local_activities": one.left(lambda history: history.local),
        "workflow_tasks": one.left(lambda history: history.tasks),
        "cpu_s_per_run": {process: round(one.cpu(process), 4) for process in _PROCESSES},
    }


def tables(found: Sequence[Measured]) -> str:
    """Return the tables of BENCHMARKS.md."""
    head = ["mode", "ledger", "runs", "ms a run", "ratio", "runs/s", *_PROCESSES]
    times = [
        [
            *(one.kind, one.store, str(one.at_once)),
            *(f"{one.ms:.0f}", f"{one.ratio:.2f}", f"{one.runs_per_s:.1f}"),
            *(f"{one.cpu(process):.3f} s" if one.cpu(process) else "" for process in _PROCESSES),
        ]
        for one in found
    ]
    left = [
        [
            *(one.kind, one.store, str(one.at_once)),
            f"{one.left(lambda history: history.events):.0f}",
            f"{one.left(lambda history: history.size):.0f}",
            f"{one.left(lambda history: history.activities):.0f}",
            f"{one.left(lambda history: history.local):.0f}",
            f"{one.left(lambda history: history.tasks):.0f}",
        ]
        for one in found
    ]
    named = ["mode", "ledger", "runs", "events", "bytes", "activities", "local", "workflow tasks"]
    return f"{table(head, times)}\n\n{table(named, left)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("runs", "What a whole run costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 3")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="at once; default 50")
    own = "of our worker, not of the plain one; default 1"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=own)
    parser.add_argument("--mode", choices=_MODES, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.runs < 2:
        parser.error("--rounds must be at least 1, --runs at least 2")
    found: list[Measured] = []
    return run(
        "runs",
        options.json,
        lambda environment, console: measure(environment, options, console, found),
        lambda: Told([document(one) for one in found], tables(found) if found else ""),
    )


if __name__ == "__main__":
    leave(main())
