"""``python -m benchmarks.peers``: DBOS, LangGraph and plain Temporal beside Surehand.

Runs of steps that do next to nothing, one alone and many at once, in turns on the same machine;
and what each leaves outside when it is killed between a call and its record. The peers have a
virtual environment of their own (``benchmarks/peers.txt``), made at the first time. BENCHMARKS.md
shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.concurrent import ConcurrentRuns, Probe, Turn
from benchmarks.figures import table
from benchmarks.kills import CALLS, TOOLS, ours_killed, plain_killed
from benchmarks.ledgers import DATABASES
from benchmarks.outside import Arrived, arrived
from benchmarks.peer_systems import PEERS, Peer, peers_python
from benchmarks.program import Told, parser_of, run
from benchmarks.workers import Place, at_each
from surehand.drill.environment import Environment
from surehand.process.exits import leave

#: Fastest first.
_MODES: Final = ("exit", "async", "sync")
_TEMPORAL: Final = "temporal"
_PLAIN: Final = "plain Temporal"
ROUNDS: Final = 3
#: Of the run that is alone, and of each of many.
STEPS: Final = 100
CONCURRENT_STEPS: Final = 10
CONCURRENT: Final = 50

#: Plays so many runs with so many steps.
Play = Callable[[int, int], Awaitable[Turn]]


@dataclass(frozen=True)
class Measured:
    """What a step costs in one system, on one kind of database."""

    system: str
    store: str
    runs: int
    """At once."""
    turns: Sequence[Turn]

    @property
    def ms(self) -> float:
        """Milliseconds a step."""
        return 1000 * statistics.median(turn.seconds_per_step() for turn in self.turns)

    @property
    def steps_per_s(self) -> float:
        """Steps a second, of all runs together."""
        return statistics.median(turn.steps_per_second() for turn in self.turns)

    def times(self, other: Measured) -> float:
        """Return how many times as long as here a step takes there: the median of the rounds'."""
        both = list(zip(self.turns, other.turns, strict=True))
        if self.runs == 1:
            return statistics.median(o.seconds_per_step() / t.seconds_per_step() for t, o in both)
        return statistics.median(t.steps_per_second() / o.steps_per_second() for t, o in both)


@dataclass(frozen=True)
class Killed:
    """What a kill has left outside."""

    system: str
    store: str
    call: str
    outside: Arrived


class Compared:
    """What was measured, also when it was ended early."""

    def __init__(self) -> None:
        self.measured: list[Measured] = []
        self.killed: list[Killed] = []

    def told(self) -> Told:
        """Return what there is to say."""
        head = ["system", "database", "runs", "ms a step", "steps/s", *_MODES]
        costs = [
            [one.system, one.store, str(one.runs), f"{one.ms:.1f}", f"{one.steps_per_s:.0f}"]
            + [f"{one.times(self._ours(one, mode)):.2f}" for mode in _MODES]
            for one in self.measured
        ]
        named = ["system", "database", "what recovers it", "calls after a kill", "effects"]
        kills = [
            [one.system, one.store, one.call, str(one.outside.calls), str(one.outside.effects)]
            for one in self.killed
        ]
        documents = [*map(self._document, self.measured), *map(_document_of, self.killed)]
        tables = [table(head, costs)] * bool(costs) + [table(named, kills)] * bool(kills)
        return Told(documents, "\n\n".join(tables))

    def _ours(self, one: Measured, mode: str) -> Measured:
        place = (ours_in(mode), one.store, one.runs)
        return next(m for m in self.measured if (m.system, m.store, m.runs) == place)

    def _document(self, one: Measured) -> dict[str, Any]:
        return {
            "system": one.system,
            "store": one.store,
            "runs": one.runs,
            "ms_per_step": round(one.ms, 2),
            "steps_per_s": round(one.steps_per_s, 1),
            "times": {mode: round(one.times(self._ours(one, mode)), 3) for mode in _MODES},
        }


def ours_in(mode: str) -> str:
    """Return what Surehand is called in a mode."""
    return f"Surehand `{mode}`"


def _document_of(one: Killed) -> dict[str, Any]:
    outside = {"calls": one.outside.calls, "effects": one.outside.effects}
    return {"system": one.system, "store": one.store, "call": one.call, **outside}


async def measure(
    environment: Environment, options: argparse.Namespace, console: Console, found: Compared
) -> None:
    """Play all systems on each database."""
    began = time.monotonic()
    wanted = options.peer or [*PEERS, _TEMPORAL]
    chosen = [name for name in PEERS if name in wanted]
    program = await asyncio.to_thread(peers_python) if chosen else None

    async def play(place: Place) -> None:
        peers = {PEERS[n]: Peer(n, program, environment, place) for n in chosen if program}
        systems: dict[str, Play] = {name: peer.turn for name, peer in peers.items()}
        ours = ConcurrentRuns(place.server, place.store)
        if _TEMPORAL in wanted:
            systems[_PLAIN] = lambda steps, runs: ours.plain(steps, 0, runs)
        systems |= {ours_in(mode): partial(_ours, ours, mode) for mode in _MODES}
        for one in systems.values():
            await one(3, 1)
        for runs, steps in ((1, options.steps), (options.runs, CONCURRENT_STEPS)):
            turns: dict[str, list[Turn]] = {name: [] for name in systems}
            for _ in range(options.rounds):
                for name, one in systems.items():
                    turns[name].append(await one(steps, runs))
            found.measured += [Measured(n, place.store, runs, turns[n]) for n in systems]
            took = time.monotonic() - began
            console.print(f"{place.store}: {runs} x {steps} steps ({took:.0f} s so far)")
        await _kill(environment, place, peers, found, plain=_TEMPORAL in wanted)
        console.print(f"{place.store}: kills ({time.monotonic() - began:.0f} s so far)")

    await at_each(environment, options.database or list(DATABASES), play)


async def _ours(ours: ConcurrentRuns, mode: str, steps: int, runs: int) -> Turn:
    return await ours.protected(mode, Probe((mode,), "write", runs, steps, 1).plan(), runs)


async def _kill(
    environment: Environment, place: Place, peers: dict[str, Peer], found: Compared, *, plain: bool
) -> None:
    def took(system: str, call: str, world: Path) -> None:
        found.killed.append(Killed(system, place.store, call, arrived(world)))

    for keyed, call in CALLS.items():
        for name, peer in peers.items():
            took(name, call, await peer.killed(keyed=keyed))
        if plain:
            took(_PLAIN, call, await plain_killed(environment, place, keyed=keyed))
    for mode in _MODES:
        for call, tool in TOOLS.items():
            took(ours_in(mode), call, await ours_killed(environment, place, tool, mode))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("peers", "DBOS, LangGraph and plain Temporal beside Surehand.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 3")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="default 100")
    parser.add_argument("--runs", type=int, default=CONCURRENT, metavar="N", help="default 50")
    names = (*PEERS, _TEMPORAL)
    parser.add_argument("--peer", choices=names, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or min(options.steps, options.runs) < 2:
        parser.error("--rounds must be at least 1, --steps and --runs at least 2")
    found = Compared()
    return run(
        "peers",
        options.json,
        lambda environment, console: measure(environment, options, console, found),
        found.told,
    )


if __name__ == "__main__":
    leave(main())
