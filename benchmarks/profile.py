"""``python -m benchmarks.profile``: where the time of a write goes in the ledger.

The transactions of a write as a worker makes them, without Temporal around them: a claim, an
outcome, and an outcome with the claim of what follows; where the tenant has quotas, with
``--quotas``, that is two transactions. A second pass runs them under ``cProfile``,
in one thread, and shows which functions take the time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from sqlalchemy import event

from benchmarks.figures import table
from benchmarks.ledgers import DATABASES, limit, makers
from benchmarks.program import Told, parser_of, run, unread_log
from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest
from surehand.drill.environment import Environment
from surehand.process.exits import leave
from tests.ledger.scene import Scene

#: Writes of each pass.
WRITES: Final = 500
#: Functions shown.
SHOWN: Final = 25
_SCENE: Final = "default"
_RECEIPT: Final = {"refund": "r-1", "amount": "120.00"}

Work = Callable[[Transaction], Any]


@dataclass(frozen=True)
class Cost:
    """What a transaction costs."""

    store: str
    transaction: str
    each_ms: float
    processor_ms: float
    """Of this process."""
    database_ms: float
    """From a statement's way to the driver until its answer is there; COMMIT included."""
    trips: float
    """Statements, with BEGIN and COMMIT."""

    def row(self) -> list[str]:
        """Return it as a row of a table."""
        times = (self.each_ms, self.processor_ms, self.database_ms)
        return [
            self.store,
            self.transaction,
            *(f"{one:.2f}" for one in times),
            f"{self.trips:.1f}",
        ]


class Watch:
    """Counts what goes to a database, and how long it stays there."""

    def __init__(self, ledger: Ledger) -> None:
        self.statements, self.seconds, self._since = 0, 0.0, 0.0
        event.listen(ledger.engine, "before_cursor_execute", self._before)
        event.listen(ledger.engine, "after_cursor_execute", self._after)
        self._commit: Callable[[Any], None] = ledger.engine.dialect.do_commit
        object.__setattr__(ledger.engine.dialect, "do_commit", self._committing)

    def _before(self, *_: Any) -> None:
        self.statements += 1
        self._since = time.perf_counter()

    def _after(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._since

    def _committing(self, connection: Any) -> None:
        self._before()
        self._commit(connection)
        self._after()


def _writes(scene: Scene, first: int, count: int) -> Iterator[ClaimRequest]:
    for number in range(first, first + count):
        key, step = f"refund:order-{number}", f"refund-{number}"
        yield scene.call(key=key, step_id=step, params={"order": str(number), "amount": "120.00"})


def _claim(request: ClaimRequest) -> Work:
    return lambda tx: claims.claim(tx, request)


def _outcome(request: ClaimRequest, claimed: Claimed) -> Work:
    return lambda tx: outcomes.commit(tx, request, claimed.entry, Kept(_RECEIPT))


def _both(request: ClaimRequest, claimed: Claimed, following: ClaimRequest) -> Work:
    def work(tx: Transaction) -> Claimed | None:
        assert outcomes.commit(tx, request, claimed.entry, Kept(_RECEIPT)) is not None
        return claims.claim_at_once(tx, following)

    return work


@dataclass
class Measure:
    """Makes transactions, and adds up what each kind has cost."""

    scene: Scene
    watch: Watch
    sums: dict[str, list[float]] = field(default_factory=dict)
    """By name: seconds, of the processor and in the database, statements, transactions."""

    async def make(self, name: str, work: Work, *, more: bool = False) -> Any:
        """Make a transaction and return what its work returns.

        Args:
            name: Of its kind.
            work: What is done in it.
            more: It is part of the one before.
        """
        ledger, before = self.scene.ledger, self._now()
        result = await ledger.transact(self.scene.tenant, work)
        sums = self.sums.setdefault(name, [0.0] * 5)
        for at, (late, early) in enumerate(zip(self._now(), before, strict=True)):
            sums[at] += late - early
        sums[4] += not more
        return result

    def _now(self) -> tuple[float, ...]:
        watch = self.watch
        return time.perf_counter(), time.process_time(), watch.seconds, float(watch.statements)

    def costs(self, store: str) -> Iterator[Cost]:
        """Yield what one transaction of each kind costs."""
        for name, (*seconds, statements, times) in self.sums.items():
            wall, processor, database = (1000 * one / times for one in seconds)
            trips = statements / times + (0 if store == "sqlite" else 1)  # BEGIN
            yield Cost(store, name, wall, processor, database, trips)


async def play_writes(measure: Measure, first: int, count: int) -> None:
    """Make writes one after another: each with two transactions, then each with one."""
    scene = measure.scene
    for request in _writes(scene, first, count):
        claimed = await measure.make("claim", _claim(request))
        await measure.make("outcome", _outcome(request, claimed))
    requests = list(_writes(scene, first + count, count + 1))
    claimed = await scene.ledger.transact(scene.tenant, _claim(requests[0]))
    for request, following in pairwise(requests):
        name, both = "outcome and next claim", _both(request, claimed, following)
        claimed = await measure.make(name, both)
        if claimed is None:
            claimed = await measure.make(name, _claim(following), more=True)


def _functions(scene: Scene, first: int, count: int) -> list[list[str]]:
    """Return the functions that take the most time of their own in stretches of writes."""
    requests = list(_writes(scene, first, count + 1))
    claimed: Any = scene.claim(requests[0])
    with cProfile.Profile() as profile:
        for request, following in pairwise(requests):
            with scene.ledger.transaction(scene.tenant) as tx:
                claimed = _both(request, claimed, following)(tx)
            claimed = claimed or scene.claim(following)
    stats: dict[Any, Any] = vars(pstats.Stats(profile))["stats"]
    whole = sum(own for _, _, own, _, _ in stats.values())
    rows = sorted(stats.items(), key=lambda item: -item[1][2])[:SHOWN]
    return [
        [
            _name(*where),
            f"{calls / count:.1f}",
            f"{100 * own / whole:.1f}%",
            f"{100 * all_ / whole:.1f}%",
        ]
        for where, (_, calls, own, all_, _) in rows
    ]


def _name(file: str, _line: int, function: str) -> str:
    return function if file == "~" else f"{Path(file).parent.name}/{Path(file).name}: {function}"


async def play(
    environment: Environment,
    options: argparse.Namespace,
    console: Console,
    costs: list[Cost],
    functions: dict[str, list[list[str]]],
) -> None:
    """Play all transactions on each ledger; the lists keep what is done when this is ended."""
    with ExitStack() as running:
        running.enter_context(unread_log())
        made = makers(environment, options.database or list(DATABASES), running)
        for store, make in made.items():
            url = make("profile")
            if options.quotas:
                limit(url)
            async with open_ledger(url) as ledger:
                scene, count = Scene.begin(ledger, _SCENE), options.writes
                watch = Watch(ledger)
                await play_writes(Measure(scene, watch), 0, 50)
                with ledger.engine.connect() as connection:
                    # As in a ledger that is not new: plans made without statistics are bad.
                    connection.exec_driver_sql("ANALYZE")
                    connection.commit()
                measure = Measure(scene, watch)
                await play_writes(measure, 1000, count)
                costs += measure.costs(store)
                functions[store] = await asyncio.to_thread(_functions, scene, 1_000_000, count)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("profile", "Where the time of a write goes in the ledger.")
    parser.add_argument("--writes", type=int, default=WRITES, metavar="N", help="default 500")
    parser.add_argument("--quotas", action="store_true", help="set all quotas of the tenant")
    options = parser.parse_args(argv)
    costs: list[Cost] = []
    functions: dict[str, list[list[str]]] = {}
    head = ["ledger", "transaction", "ms", "processor, ms", "database, ms", "round trips"]

    def tell() -> Told:
        parts = [table(head, (one.row() for one in costs))]
        for store, rows in functions.items():
            parts.append(table([f"function ({store})", "calls", "own", "with all it calls"], rows))
        return Told([vars(one) for one in costs], "\n\n".join(parts))

    return run(
        "profile", options.json, lambda *of: play(of[0], options, of[1], costs, functions), tell
    )


if __name__ == "__main__":
    leave(main())
