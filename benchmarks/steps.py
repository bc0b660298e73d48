"""``python -m benchmarks.steps``: what the protection of a step costs, in each durability mode.

Runs of steps that do next to nothing, one run after another and many at once, beside a plain
Temporal workflow whose activity makes the same call with nothing to protect it, in turns with it.
BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from benchmarks.concurrent import ConcurrentRuns, Measured, Probe
from benchmarks.figures import table
from benchmarks.ledgers import DATABASES
from benchmarks.long_run import HEAD, LongRun, last
from benchmarks.program import Told, parser_of, run
from benchmarks.workers import Place, at_each
from surehand.drill.environment import Environment
from surehand.process.exits import leave
from surehand.workflows.plan.durability import Durability

#: A write that holds a resource, which is free; many at once would wait for it.
LEASED: Final = "leased"
EFFECTS: Final = ("read", "write", LEASED)
#: One run after another, many at once, tools that take 200 ms, a run of 1,000 steps, and one of
#: 10,000.
PROBES: Final = ("alone", "concurrent", "slow", "long", "long_run")
_MODES: Final = tuple(mode.value for mode in Durability)
#: Times that each mode has its turn.
ROUNDS: Final = 5
#: Steps of a run that is alone, and of each of many.
STEPS: Final = 100
CONCURRENT_STEPS: Final = 20
CONCURRENT: Final = 50
#: Seconds that a tool takes which does something, and steps of its runs.
SLOW: Final = 0.2
SLOW_STEPS: Final = 20
#: Steps of the run that shows, beside Temporal alone, whether a step costs more the later it comes.
LONG_STEPS: Final = 1000


async def measure(
    environment: Environment,
    options: argparse.Namespace,
    console: Console,
    found: list[Measured],
    long_run: list[LongRun],
) -> None:
    """Play all probes on each ledger; the lists keep what is done when this is ended early."""
    began = time.monotonic()

    async def play(place: Place) -> None:
        concurrent = ConcurrentRuns(place.server, place.store)
        for probe in _probes(options):
            found.extend(await concurrent.play(probe))
            if not console.is_terminal:
                took = time.monotonic() - began
                console.print(f"{place.store}: {probe.label} ({took:.0f} s so far)")
        if "long_run" in (options.probe or PROBES):
            for mode in options.mode or _MODES:
                long_run.append(await last(place.server, place.store, place.url, mode))
                took = time.monotonic() - began
                console.print(f"{place.store}: 10,000 steps, {mode} ({took:.0f} s so far)")

    databases = options.database or list(DATABASES)
    await at_each(environment, databases, play, processes=str(options.processes))


def _probes(options: argparse.Namespace) -> list[Probe]:
    modes = tuple(options.mode or _MODES)
    effects = options.effect or EFFECTS
    unheld = [effect for effect in effects if effect != LEASED]
    steps, rounds = options.steps, options.rounds
    found = {
        "alone": [Probe(modes, effect, 1, steps, rounds) for effect in effects],
        "concurrent": [Probe(modes, effect, CONCURRENT, CONCURRENT_STEPS, 1) for effect in unheld],
        "slow": [Probe(modes, "write", 1, SLOW_STEPS, rounds, takes=SLOW)],
        "long": [Probe(modes, "write", 1, LONG_STEPS, 1)],
    }
    wanted = [name for name in options.probe or PROBES if name in found]
    return [probe for name in wanted for probe in found[name]]


def tables(found: Sequence[Measured], long_run: Sequence[LongRun]) -> str:
    """Return the tables of BENCHMARKS.md."""
    both = [_costs(found)] if found else []
    both += [table(HEAD, (one.row() for one in long_run))] if long_run else []
    return "\n\n".join(both)


def _costs(found: Sequence[Measured]) -> str:
    head = ["mode", "ledger", "effect", "runs", "tool", "ms a step", "plain", "ratio"]
    head += ["steps/s", "history, bytes a step"]
    costs = table(head, (one.row() for one in found if one.probe.steps < LONG_STEPS))
    late = [one for one in found if one.probe.steps >= LONG_STEPS]
    if not late:
        return costs
    head = ["mode", "ledger", "ms at step 10", f"ms at step {LONG_STEPS}", "plain 10", "plain late"]
    return f"{costs}\n\n{table(head, (one.late_row() for one in late))}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("steps", "What the protection of a step costs.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 5")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="default 100")
    parser.add_argument("--mode", choices=_MODES, action="append", help="default all")
    parser.add_argument("--effect", choices=EFFECTS, action="append", help="default all")
    own = "of our worker, not of the plain one; default 1"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=own)
    parser.add_argument("--probe", choices=PROBES, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or not 2 <= options.steps <= LONG_STEPS:
        parser.error(f"--rounds must be at least 1, --steps 2 to {LONG_STEPS}")
    found: list[Measured] = []
    long_run: list[LongRun] = []
    return run(
        "steps",
        options.json,
        lambda environment, console: measure(environment, options, console, found, long_run),
        lambda: Told(
            [*(one.document() for one in found), *(one.document() for one in long_run)],
            tables(found, long_run),
        ),
    )


if __name__ == "__main__":
    leave(main())
