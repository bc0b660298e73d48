"""``python -m benchmarks.retries``: what trying a call again takes, beside its pause.

A call of 200 ms fails for now, twice, and is tried again after a pause; a plain Temporal activity
does the same in turns with it. What is told is the time from the end of an attempt to the beginning
of the next one, less the pause. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from benchmarks.figures import Figures, table
from benchmarks.ledgers import DATABASES
from benchmarks.plain import PLAIN_QUEUE, PLAIN_REPEATED
from benchmarks.played import played
from benchmarks.program import Told, parser_of, run
from benchmarks.quick_tools import Attempts
from benchmarks.workers import Place, at_each
from surehand.drill.environment import Environment
from surehand.process.exits import leave
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import Plan

#: Runs of each kind, each with two retries.
ROUNDS: Final = 20
#: Seconds that an attempt takes, and that pass before the next one.
TAKES: Final = 0.2
PAUSE: Final = 0.1
FAILS: Final = 2
#: Share of the call that its retry may take.
TARGET: Final = 0.2
_PLAIN: Final = "plain"
_MODES: Final = tuple(mode.value for mode in Durability)


@dataclass(frozen=True)
class Measured:
    """What trying again has taken on one ledger, in seconds; ``plain`` is Temporal alone."""

    store: str
    mode: str
    figures: Figures

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        share = round(self.figures.p50 / TAKES, 3)
        return {"store": self.store, "mode": self.mode, "share_of_call": share} | {
            f"{name}_s": value for name, value in self.figures.document().items() if name != "n"
        }

    def row(self) -> list[str]:
        """Return it as a line of the table."""
        found = self.figures
        costs = [f"{1000 * s:.0f}" for s in (found.p50, found.p95, found.longest)]
        return [self.mode, self.store, str(found.n), *costs, f"{found.p50 / TAKES:.0%}"]


async def measure(
    environment: Environment, options: argparse.Namespace, console: Console, found: list[Measured]
) -> None:
    """Play all modes on each ledger; the list keeps what is done when this is ended early."""

    async def play(place: Place) -> None:
        gaps: dict[str, list[float]] = {mode: [] for mode in (*_MODES, _PLAIN)}
        for _ in range(options.rounds):
            for mode in _MODES:
                gaps[mode] += _gaps(await _protected(place, mode))
            gaps[_PLAIN] += _gaps(await _plain(place))
        found.extend(Measured(place.store, mode, Figures.of(of)) for mode, of in gaps.items())
        console.print(f"{place.store}: {options.rounds} rounds")

    await at_each(
        environment,
        options.database or list(DATABASES),
        play,
        retries_transient=",".join([f"{PAUSE}s"] * FAILS),
        jitter="0",
    )


async def _protected(place: Place, mode: str) -> Any:
    step = {"id": "one", "tool": "quick.repeated", "params": {"takes": TAKES, "fails": FAILS}}
    # Two steps: one alone is no batch.
    plan = Plan.model_validate([step, {"id": "two", "tool": "quick.write", "params": {}}])
    return (await played(place.server, "again", plan, mode)).steps[0].output


async def _plain(place: Place) -> Any:
    return await place.server.client.execute_workflow(
        PLAIN_REPEATED,
        args=[TAKES, FAILS, PAUSE],
        id=f"again-{secrets.token_hex(6)}",
        task_queue=PLAIN_QUEUE,
        result_type=Attempts,
    )


def _gaps(attempts: Sequence[Sequence[float]]) -> list[float]:
    ends, begins = [end for _, end in attempts[:-1]], [begin for begin, _ in attempts[1:]]
    return [begin - end - PAUSE for end, begin in zip(ends, begins, strict=True)]


def told(found: Sequence[Measured]) -> Told:
    """Return what there is to say."""
    head = ["mode", "ledger", "retries", "p50 ms", "p95 ms", "max ms", "of the call"]
    return Told(
        [one.document() for one in found],
        table(head, (one.row() for one in found)) if found else "",
        [
            f"{one.mode} on {one.store}: a retry takes {one.figures.p50 / TAKES:.0%} of the call"
            for one in found
            if one.mode != _PLAIN and one.figures.p50 > TARGET * TAKES
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("retries", "What trying a call again takes, beside its pause.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 20")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    found: list[Measured] = []
    return run(
        "retries",
        options.json,
        lambda environment, console: measure(environment, options, console, found),
        lambda: told(found),
    )


if __name__ == "__main__":
    leave(main())
