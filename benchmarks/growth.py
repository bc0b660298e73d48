"""``python -m benchmarks.growth``: what a ledger that has grown for years adds to a step.

One ledger has the rows of many runs that are over, 100 events and 20 effects each; the other one
is empty. Both are one tenant's. First the transactions of a write take turns on them, as in the
profile; then runs of a worker each. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Final

from rich.console import Console

from benchmarks.figures import table
from benchmarks.ledgers import DATABASES, MakeLedger, makers
from benchmarks.profile import Measure, Watch, play_writes
from benchmarks.program import Told, parser_of, run, unread_log
from benchmarks.variants import Compared, Variant, compare, compared
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import runs
from surehand.activities.ledger.runs import lifecycle
from surehand.drill.environment import Environment
from surehand.process.exits import leave
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.durability import Durability
from tests.ledger.grown import grow
from tests.ledger.scene import Scene

#: What the grown ledger has, and how much of it one run makes.
EVENTS: Final = 10_000_000
RUN_EVENTS: Final = 100
RUN_EFFECTS: Final = 20
_PAST: Final = "past"
#: A step may cost this many times as much.
TARGET: Final = 1.2
ROUNDS: Final = 5
STEPS: Final = 50
_MODES: Final = tuple(mode.value for mode in Durability)


async def measure(
    environment: Environment,
    options: argparse.Namespace,
    console: Console,
    transactions: list[list[str]],
    steps: list[Compared],
) -> None:
    """Measure on each database; the lists keep what is done when this is ended early."""
    for store in options.database or list(DATABASES):
        with ExitStack() as running:
            running.enter_context(unread_log())
            make = makers(environment, [store], running)[store]
            empty = await asyncio.to_thread(make, "empty")
            began = time.monotonic()
            grown = await asyncio.to_thread(_grown, make, options.events)
            took = time.monotonic() - began
            console.print(f"{store}: a ledger with {options.events:,} events, in {took:.0f} s")
            transactions += await _transactions(store, empty, grown, options.rounds)
            console.print(f"{store}: transactions")
            steps += await compare(
                environment,
                store,
                [Variant("empty", empty), Variant("grown", grown)],
                options.mode or _MODES,
                rounds=options.rounds,
                steps=STEPS,
            )
            console.print(f"{store}: steps")


def _grown(make: MakeLedger, events: int) -> str:
    url = make("grown")
    with closing(Ledger(make_engine(url))) as ledger:
        scene = Scene(ledger, DEFAULT_TENANT)
        scene.open_run(_PAST)
        for number in range(RUN_EFFECTS):
            key, step = f"refund:past-{number}", f"refund-{number}"
            scene.committed(scene.call(run_id=_PAST, key=key, step_id=step))
        with scene.tx() as tx:
            written = tx.one(rows_of(runs, runs.c.seq, run_id=_PAST))
            assert written is not None
            for _ in range(RUN_EVENTS - written["seq"] - 1):
                tx.event(_PAST, "step.progress", step_id="refund-0", tool="t", progress=None)
            over = CloseRun(tenant=scene.tenant, run_id=_PAST, state=RunState.COMPLETED)
            lifecycle.close_run(tx, over)
    grow(url, DEFAULT_TENANT, _PAST, events // RUN_EVENTS - 1)
    return url


async def _transactions(store: str, empty: str, grown: str, rounds: int) -> list[list[str]]:
    """Return the lines of the table of transactions; both ledgers take turns."""
    async with open_ledger(empty) as one, open_ledger(grown) as other:
        measures = []
        for ledger in (one, other):
            scene, watch = Scene.begin(ledger, DEFAULT_TENANT), Watch(ledger)
            await play_writes(Measure(scene, watch), 0, STEPS)
            with ledger.engine.connect() as connection:
                # Plans made without statistics are bad.
                connection.exec_driver_sql("ANALYZE")
                connection.commit()
            measures.append(Measure(scene, watch))
        for number in range(1, rounds + 1):
            for measure in measures:
                await play_writes(measure, 1000 * number, STEPS)
        costs = [list(measure.costs(store)) for measure in measures]
    return [
        [
            *(store, first.transaction, f"{first.each_ms:.2f}", f"{second.each_ms:.2f}"),
            f"{second.each_ms / first.each_ms:.2f}",
        ]
        for first, second in zip(*costs, strict=True)
    ]


def told(transactions: Sequence[list[str]], steps: Sequence[Compared]) -> Told:
    """Return what there is to say."""
    head = ["ledger", "transaction", "ms, empty", "ms, grown", "ratio"]
    named = [dict(zip(head, row, strict=True)) for row in transactions]
    missed = [
        f"a step in {one.mode} on {one.store} costs {one.ratio:.2f} times as much"
        for one in steps
        if one.ratio > TARGET
    ]
    tables = "\n\n".join((table(head, transactions), compared("ledger's rows", steps)))
    return Told([*named, *(one.document() for one in steps)], tables, missed)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("growth", "What a ledger that has grown for years adds to a step.")
    events, rounds = "of the grown ledger; default 10,000,000", "turns of each; default 5"
    parser.add_argument("--events", type=int, default=EVENTS, metavar="N", help=events)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=rounds)
    parser.add_argument("--mode", choices=_MODES, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.events < 2 * RUN_EVENTS:
        parser.error(f"--rounds must be at least 1, --events {2 * RUN_EVENTS}")
    transactions: list[list[str]] = []
    steps: list[Compared] = []
    return run(
        "growth",
        options.json,
        lambda *of: measure(of[0], options, of[1], transactions, steps),
        lambda: told(transactions, steps),
    )


if __name__ == "__main__":
    leave(main())
