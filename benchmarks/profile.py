"""``python -m benchmarks.profile``: where the time of a write goes in the ledger.

The transactions of a write as a worker makes them, without Temporal around them: a claim, an
outcome, and an outcome with the claim of what follows; where the tenant has quotas, with
``--quotas``, that is two transactions. With ``--events``, a ledger that has grown for years takes
turns with the new one: it has the rows of many runs that are over, 100 events and 20 effects each.
A last pass runs the transactions under ``cProfile``, in one thread, and shows which functions take
the time. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from sqlalchemy import event

from benchmarks.places import makers, set_quotas
from benchmarks.program import Found, Row, parser_of, run, unread_log
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.core.tables import runs
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest
from surehand.drill.environment import Environment
from surehand.process.exits import leave
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.contracts.states import RunState
from tests.ledger.grown import grow
from tests.ledger.scene import Scene

#: Writes of each pass.
WRITES: Final = 500
#: Turns of each ledger, and writes before the first.
TURNS: Final = 5
WARM_UP: Final = 50
#: Events and effects of each run in the grown ledger.
RUN_EVENTS: Final = 100
RUN_EFFECTS: Final = 20
_PAST: Final = "past"
#: A transaction may take this many times as long there.
TARGET: Final = 1.2
#: Functions shown.
SHOWN: Final = 25
_SCENE: Final = "default"
#: What each write returns.
RECEIPT: Final = {"refund": "r-1", "amount": "120.00"}

Work = Callable[[Transaction], Any]


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


def writes(scene: Scene, first: int, count: int) -> Iterator[ClaimRequest]:
    """Yield the claims of so many refunds, each with a key of its own."""
    for number in range(first, first + count):
        key, step = f"refund:order-{number}", f"refund-{number}"
        yield scene.call(key=key, step_id=step, params={"order": str(number), "amount": "120.00"})


def claim_of(request: ClaimRequest) -> Work:
    """Return the transaction that claims a write."""
    return lambda tx: claims.claim(tx, request)


def outcome_of(request: ClaimRequest, claimed: Claimed) -> Work:
    """Return the transaction that records what a write has returned."""
    return lambda tx: outcomes.commit(tx, request, claimed.entry, Kept(RECEIPT))


def _both(request: ClaimRequest, claimed: Claimed, following: ClaimRequest) -> Work:
    def work(tx: Transaction) -> Claimed | None:
        assert outcomes.commit(tx, request, claimed.entry, Kept(RECEIPT)) is not None
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
        """Make a transaction and return what its work returns."""
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

    def rows(self, store: str, ledger: str) -> Iterator[Row]:
        """Yield what one transaction of each kind costs."""
        for name, (*seconds, statements, times) in self.sums.items():
            wall, processor, database = (round(1000 * one / times, 2) for one in seconds)
            yield {
                "store": store,
                "ledger": ledger,
                "transaction": name,
                "ms": wall,
                "processor_ms": processor,
                # From a statement's way to the driver until its answer is there, COMMIT included.
                "database_ms": database,
                # Statements, with BEGIN and COMMIT.
                "trips": round(statements / times + (store != "sqlite"), 1),
            }


async def play_writes(measure: Measure, first: int, count: int) -> None:
    """Make writes one after another: each with two transactions, then each with one."""
    scene = measure.scene
    for request in writes(scene, first, count):
        claimed = await measure.make("claim", claim_of(request))
        await measure.make("outcome", outcome_of(request, claimed))
    requests = list(writes(scene, first + count, count + 1))
    claimed = await scene.ledger.transact(scene.tenant, claim_of(requests[0]))
    for request, following in pairwise(requests):
        name, both = "outcome and next claim", _both(request, claimed, following)
        claimed = await measure.make(name, both)
        if claimed is None:
            claimed = await measure.make(name, claim_of(following), more=True)


def analyze(ledger: Ledger) -> None:
    """Give a ledger statistics, as one that is not new has: plans made without them are bad."""
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()


def _functions(scene: Scene, store: str, first: int, count: int) -> list[Row]:
    """Return the functions that take the most time of their own in stretches of writes."""
    requests = list(writes(scene, first, count + 1))
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
        {
            f"function ({store})": _name(*where),
            "calls": round(calls / count, 1),
            "own": f"{100 * own / whole:.1f}%",
            "with all it calls": f"{100 * all_ / whole:.1f}%",
        }
        for where, (_, calls, own, all_, _) in rows
    ]


def _name(file: str, _line: int, function: str) -> str:
    return function if file == "~" else f"{Path(file).parent.name}/{Path(file).name}: {function}"


def _grow(url: str, events: int) -> None:
    """Give a ledger one run that is over, and copies of it until it has so many events."""
    with closing(Ledger(make_engine(url))) as ledger:
        scene = Scene(ledger, _SCENE)
        scene.open_run(_PAST)
        for number in range(RUN_EFFECTS):
            key, step = f"refund:past-{number}", f"refund-{number}"
            scene.committed(scene.call(run_id=_PAST, key=key, step_id=step))
        with scene.tx() as tx:
            written = tx.one(rows_of(runs, runs.c.seq, run_id=_PAST))
            assert written is not None
            for _ in range(RUN_EVENTS - written["seq"] - 1):
                tx.event(_PAST, "step.progress", step_id="refund-0", tool="t", progress=None)
            over = CloseRun(tenant=_SCENE, run_id=_PAST, state=RunState.COMPLETED)
            lifecycle.close_run(tx, over)
    grow(url, _SCENE, _PAST, events // RUN_EVENTS - 1)


async def measure(environment: Environment, options: argparse.Namespace, found: Found) -> None:
    """Make all transactions on each ledger; a new ledger and a grown one take turns."""
    with ExitStack() as running, unread_log():
        for store, make in makers(environment, options.database, running).items():
            urls = {"new": make("new")}
            if options.events:
                urls["grown"] = make("grown")
                await asyncio.to_thread(_grow, urls["grown"], options.events)
                found.note(f"{store}: a ledger with {options.events:,} events")
            async with AsyncExitStack() as opened:
                measures = {}
                for name, url in urls.items():
                    if options.quotas:
                        set_quotas(url)
                    ledger = await opened.enter_async_context(open_ledger(url))
                    scene, watch = Scene.begin(ledger, _SCENE), Watch(ledger)
                    await play_writes(Measure(scene, watch), 0, WARM_UP)
                    analyze(ledger)
                    measures[name] = Measure(scene, watch)
                for turn in range(1, TURNS + 1):
                    for one in measures.values():
                        await play_writes(one, 100_000 * turn, -(-options.writes // TURNS))
                for name, one in measures.items():
                    found.rows += one.rows(store, name)
                scene = measures["new"].scene
                found.rows += await asyncio.to_thread(
                    _functions, scene, store, 1_000_000, options.writes
                )
            found.note(f"{store}: transactions")


def missed(rows: Sequence[Row]) -> Iterable[str]:
    """Yield a line for each transaction that costs too much in a grown ledger."""
    made = [row for row in rows if "transaction" in row]
    new = {(row["store"], row["transaction"]): row["ms"] for row in made if row["ledger"] == "new"}
    for row in made:
        ratio = row["ms"] / new[row["store"], row["transaction"]]
        if ratio > TARGET:
            where = f"{row['transaction']} on {row['store']}"
            yield f"{where} takes {ratio:.2f} times as long in a grown ledger"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("profile", "Where the time of a write goes in the ledger.")
    parser.add_argument("--writes", type=int, default=WRITES, metavar="N", help="default 500")
    parser.add_argument("--quotas", action="store_true", help="set all quotas of the tenant")
    grown = "also measure in a ledger with so many events of runs that are over"
    parser.add_argument("--events", type=int, default=0, metavar="N", help=grown)
    options = parser.parse_args(argv)
    if options.events and options.events < 2 * RUN_EVENTS:
        parser.error(f"--events must be at least {2 * RUN_EVENTS}")
    return run("profile", options, measure, missed)


if __name__ == "__main__":
    leave(main())
