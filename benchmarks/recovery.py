"""``python -m benchmarks.recovery``: how long a run stands still when its worker is killed.

A worker is killed with SIGKILL at crash points of a call, and while its run waits for an approval,
with another one standing by, all with default settings. Measured from its death to the next call
that reaches the outside world. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.figures import Figures, grouped, table
from benchmarks.ledgers import DATABASES, makers
from benchmarks.program import Told, clean, parser_of, run
from benchmarks.standby import ANY_MOMENT, WAITING, Kill, Pair
from surehand.activities.worker.crash_points import CrashPoint
from surehand.client.connection import Connection
from surehand.drill.environment import Environment
from surehand.process.connect import connect, find_target
from surehand.process.exits import leave
from surehand.process.settings import ClientSettings
from surehand.workflows.identity import DEFAULT_TENANT

#: With two databases twenty kills of one kind at one point.
ROUNDS: Final = 10
#: Seconds between the kills of one round: recoveries shall not wait for each other.
STAGGER: Final = 0.4
#: What is promised: seconds from a kill to the next effect, and to the next step's call, 95th
#: percentile. In a call, another worker notices the death. Elsewhere time-outs may have to.
TARGETS: Final = {
    **dict.fromkeys(("read", "dedupes", "transactional"), (0.5, 0.8)),
    **dict.fromkeys(("any moment", "approval"), (5.0, 5.0)),
}

_CALLED: Final = (CrashPoint.DURING_CALL, CrashPoint.AFTER_CALL, CrashPoint.BEFORE_REPORT)
#: Kind, tool, points. A read claims nothing. A lookup that finds nothing has to wait for the first
#: call's deadline and settle time, so it is a kind of its own.
_KILLS: Final[Sequence[tuple[str, str, Sequence[str]]]] = (
    ("read", "world.read", _CALLED),
    ("dedupes", "world.put", (CrashPoint.AFTER_CLAIM, *_CALLED)),
    ("transactional", "world.book", (CrashPoint.AFTER_CLAIM, *_CALLED)),
    ("any moment", "world.put", (ANY_MOMENT,)),
    ("approval", "world.put_approved", (WAITING,)),
    ("lookup, found", "world.order", _CALLED),
    ("lookup, not found", "world.order", (CrashPoint.AFTER_CLAIM,)),
)


class Shown:
    """Says how far the benchmark is: a bar on a terminal, a line for each round otherwise."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("kills"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._id = self._bar.add_task("kills", total=total)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Draw the bar while the block lasts."""
        with self._bar:
            yield

    def killed(self) -> None:
        """Count one more kill."""
        self._bar.advance(self._id)

    def done(self, database: str, number: int, rounds: int, pairs: list[Pair]) -> None:
        """Tell of a round that is done."""
        if self._console.is_terminal:
            return
        took = Figures.of(pair.samples[-1].next_effect for pair in pairs)
        self._console.print(
            f"{database}: round {number} of {rounds}, {took.n} kills, next effect after"
            f" {took.shortest:.1f} to {took.longest:.1f} s"
            f" ({time.monotonic() - self._began:.0f} s so far)"
        )


async def measure(
    environment: Environment,
    databases: list[str],
    kinds: list[str],
    rounds: int,
    console: Console,
    measured: list[Pair],
) -> None:
    """Kill workers in all pairs, ``rounds`` times in each.

    Args:
        environment: Where.
        databases: Of ``DATABASES``.
        kinds: Of ``_KILLS``.
        rounds: Kills in each pair.
        console: Where progress is shown.
        measured: Takes the pairs with their samples, which stay when this is ended early.
    """
    variables = environment.variables({**clean(), "SUREHAND_TOOL_MODULES": "benchmarks.tools"})
    target = find_target(variables)
    settings = ClientSettings(
        tenant=DEFAULT_TENANT, user="benchmark", task_queue="", ui_url=environment.web_ui
    )
    server = Connection(await connect(target, quiet=True), target, settings)
    kills = [
        (kind, tool, point) for kind, tool, points in _KILLS if kind in kinds for point in points
    ]
    shown = Shown(console, len(databases) * len(kills) * rounds)
    with ExitStack() as servers, shown.going_on():
        for database, make in makers(environment, databases, servers).items():
            # Workers of one database at a time: all of them would crowd a small machine.
            with ExitStack() as workers:
                pairs = [
                    Pair(
                        Kill(database, kind, tool, point),
                        environment,
                        server,
                        variables,
                        await asyncio.to_thread(make, f"{database}-{number}"),
                        workers,
                    )
                    for number, (kind, tool, point) in enumerate(kills)
                ]
                measured += pairs
                for number in range(1, rounds + 1):
                    await _round(pairs, shown)
                    shown.done(database, number, rounds, pairs)
                for pair in pairs:
                    await pair.check()


async def _round(pairs: list[Pair], shown: Shown) -> None:
    """Kill one worker in each pair, once all workers are ready: starting them costs most."""
    await asyncio.gather(*(pair.prepare() for pair in pairs))

    async def one(number: int, pair: Pair) -> None:
        await asyncio.sleep(number * STAGGER)
        await pair.measure()
        shown.killed()

    # The kinds that take longest come last in the list, and so first here.
    await asyncio.gather(*(one(number, pair) for number, pair in enumerate(reversed(pairs))))


def document(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Return what was measured, one document for each sort of kill and database."""
    return [
        {
            "database": pair.kill.database,
            "kind": pair.kill.kind,
            "point": str(pair.kill.point),
            "next_effect_s": Figures.of(s.next_effect for s in pair.samples).document(),
            "next_step_s": Figures.of(s.next_step for s in pair.samples).document(),
            "samples_s": [[round(s.next_effect, 3), round(s.next_step, 3)] for s in pair.samples],
        }
        for pair in pairs
    ]


def tables(pairs: Sequence[Pair]) -> str:
    """Return the tables of BENCHMARKS.md: by kind and database, then by point."""
    by_kind = grouped(pairs, lambda pair: f"{pair.kill.kind} | {pair.kill.database}")
    by_point = grouped(pairs, lambda pair: f"{pair.kill.kind} | {pair.kill.point}")
    figures = ["n", "p50", "p95", "min", "max", "next step p50", "p95", "max"]
    return "\n\n".join(
        table([*names, *figures], [_row(name, group) for name, group in groups.items()])
        for names, groups in ((("kind", "ledger"), by_kind), (("kind", "point"), by_point))
    )


def _row(name: str, pairs: list[Pair]) -> list[str]:
    samples = [sample for pair in pairs for sample in pair.samples]
    effect = Figures.of(sample.next_effect for sample in samples)
    step = Figures.of(sample.next_step for sample in samples)
    seconds = (effect.p50, effect.p95, effect.shortest, effect.longest)
    later = (step.p50, step.p95, step.longest)
    return [name, str(effect.n), *(f"{value:.2f} s" for value in (*seconds, *later))]


def missed(pairs: Iterable[Pair]) -> list[str]:
    """Return a line for each kind that missed a target."""
    lines = []
    for kind, group in grouped(pairs, lambda pair: pair.kill.kind).items():
        # A call that was over is not made again: what is next is the next step.
        repeated = [pair for pair in group if pair.kill.point != CrashPoint.BEFORE_REPORT]
        measured = (
            ("effect", [s.next_effect for pair in repeated for s in pair.samples]),
            ("step", [s.next_step for pair in group for s in pair.samples]),
        )
        for (what, seconds), target in zip(measured, TARGETS.get(kind, ()), strict=False):
            p95 = Figures.of(seconds).p95 if seconds else 0.0
            if p95 >= target:
                lines.append(f"{kind}: next {what} p95 {p95:.2f} s, not under {target:g} s")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; exits with 3 if the target is missed."""
    parser = parser_of("recovery", "From a worker's death to what is next.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 10")
    kinds = [kind for kind, _, _ in _KILLS]
    parser.add_argument(
        "--kind", choices=kinds, action="append", help="may be repeated; default all"
    )
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    asked = (options.database or list(DATABASES), options.kind or kinds, options.rounds)
    pairs: list[Pair] = []

    def tell() -> Told:
        done = [pair for pair in pairs if pair.samples]
        return Told(document(done), tables(done), missed(done))

    return run(
        "recovery",
        options.json,
        lambda environment, console: measure(environment, *asked, console, pairs),
        tell,
    )


if __name__ == "__main__":
    leave(main())
