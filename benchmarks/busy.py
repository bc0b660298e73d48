"""``python -m benchmarks.busy``: whether a live worker on a busy machine is taken for dead.

Runs whose calls take four seconds, so that each has to heartbeat, beside processes that only
compute. An attempt that Temporal has given up is counted by the step's next one. BENCHMARKS.md
shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console

from benchmarks.figures import table
from benchmarks.ledgers import DATABASES
from benchmarks.played import played
from benchmarks.program import Told, parser_of, run
from benchmarks.worker_use import process_with, tree_cpu
from benchmarks.workers import Place, at_each
from surehand.drill.environment import Environment
from surehand.process.children import Child
from surehand.process.exits import leave
from surehand.workflows.plan.plan import Plan

#: Seconds of one call: shorter than its deadline, and longer than the heartbeat timeout.
CALL: Final = 4.0
RUNS: Final = 20
MINUTES: Final = 10.0
#: Processes that only compute.
COMPUTING: Final = 6
_MODE: Final = "sync"


@dataclass(frozen=True)
class Measured:
    """What has become of the calls."""

    store: str
    computing: int
    calls: int
    attempts: int
    load: float
    """Over the last five minutes, at the end."""
    server: float
    """Of a core, what Temporal's server has taken: most of it for heartbeats."""

    @property
    def lost(self) -> int:
        """Attempts that were given up although their worker lived."""
        return self.attempts - self.calls


async def measure(
    environment: Environment, options: argparse.Namespace, console: Console, found: list[Measured]
) -> None:
    """Play the runs on each ledger; the list keeps what is done when this is ended early."""
    each = max(1, round(options.minutes * 60 / CALL))
    step = {"tool": "quick.write", "params": {"takes": CALL}}
    plan = Plan.model_validate({"name": "busy", "steps": [step] * each})

    async def play(place: Place) -> None:
        server = process_with("--port", place.server.target.address.split(":")[1])
        with _busy(environment, options.computing):
            before, began = tree_cpu(server), time.monotonic()
            results = await asyncio.gather(
                *(played(place.server, "busy", plan, _MODE) for _ in range(options.runs))
            )
            used = (tree_cpu(server) - before) / (time.monotonic() - began)
            load = os.getloadavg()[1]
        steps = [one for result in results for one in result.steps]
        attempts = sum(one.attempts for one in steps)
        found.append(Measured(place.store, options.computing, len(steps), attempts, load, used))
        console.print(f"{place.store}: {len(steps)} calls")

    await at_each(environment, options.database or list(DATABASES), play)


@contextmanager
def _busy(environment: Environment, count: int) -> Iterator[None]:
    with ExitStack() as running:
        for number in range(count):
            log = environment.folder / f"computing-{number}.log"
            command = [sys.executable, "-c", "while True: pass"]
            running.enter_context(Child(command, environment=os.environ, log=log))
        yield


def told(found: Sequence[Measured]) -> Told:
    """Return what there is to say."""
    head = ["ledger", "computing", "load average", "calls", "attempts", "taken for dead"]
    head += ["server, of a core"]
    rows = [
        [
            *(one.store, str(one.computing), f"{one.load:.1f}"),
            *(str(one.calls), str(one.attempts), str(one.lost), f"{one.server:.2f}"),
        ]
        for one in found
    ]
    missed = [f"{one.lost} calls were taken for dead on {one.store}" for one in found if one.lost]
    return Told([asdict(one) for one in found], table(head, rows), missed)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; exits with 3 if a live worker was taken for dead."""
    parser = parser_of("busy", "Whether a live worker on a busy machine is taken for dead.")
    runs, computing = f"at once; default {RUNS}", f"busy processes; default {COMPUTING}"
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=runs)
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="N", help="default 10")
    parser.add_argument("--computing", type=int, default=COMPUTING, metavar="N", help=computing)
    options = parser.parse_args(argv)
    if options.runs < 1 or options.minutes <= 0 or options.computing < 0:
        parser.error("--runs must be at least 1, --minutes more than 0, --computing at least 0")
    found: list[Measured] = []
    return run(
        "busy",
        options.json,
        lambda environment, console: measure(environment, options, console, found),
        lambda: told(found),
    )


if __name__ == "__main__":
    leave(main())
