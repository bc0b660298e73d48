"""``python -m benchmarks.guards``: what keys and quotas add to a step.

Runs of writes that do next to nothing, one after another: with nothing more, with a key for each
run, with all quotas of the tenant set, and with both. They take turns on the same machine, each
with a worker and a ledger of its own. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import base64
import statistics
from asyncio import to_thread
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from rich.console import Console

from benchmarks.concurrent import ConcurrentRuns, Probe
from benchmarks.figures import table
from benchmarks.ledgers import DATABASES, limit, makers
from benchmarks.program import Told, clean, parser_of, run
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.run_keys import LedgerKeys
from surehand.client.connection import Connection
from surehand.drill.environment import READY, Environment, worker
from surehand.process.blobs import Blobs
from surehand.process.connect import connect, find_target
from surehand.process.ending import leave
from surehand.process.key_encryption import KeyRing, new_key
from surehand.process.payload_encryption import RunEncryption
from surehand.process.settings import ClientSettings
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.payload_codec import data_converter
from surehand.workflows.plan.durability import Durability

T = TypeVar("T")

#: What is on; the first one is what the others are compared with.
GUARDS: Final = ("nothing", "keys", "quotas", "both")
_MODES: Final = tuple(mode.value for mode in Durability)
ROUNDS: Final = 5
STEPS: Final = 50


@dataclass(frozen=True)
class Measured:
    """What a step costs with a guard, and with none in the same minutes, in seconds."""

    store: str
    mode: str
    guard: str
    costs: list[float]
    bare: list[float]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios: what slows one down slows its neighbour, too."""
        return statistics.median(
            with_it / without for with_it, without in zip(self.costs, self.bare, strict=True)
        )

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        ms = round(1000 * statistics.median(self.costs), 2)
        told = {"store": self.store, "mode": self.mode, "guard": self.guard}
        return {**told, "ms_per_step": ms, "ratio": round(self.ratio, 3)}

    def row(self) -> list[str]:
        """Return it as a line of the table."""
        ms = 1000 * statistics.median(self.costs)
        return [self.mode, self.store, self.guard, f"{ms:.1f}", f"{self.ratio:.2f}"]


async def measure(
    environment: Environment, options: argparse.Namespace, console: Console, found: list[Measured]
) -> None:
    """Play all guards on each ledger; the list keeps what is done when this is ended early."""
    for store in options.database or list(DATABASES):
        with ExitStack() as running:
            by_guard = await _by_guard(environment, store, running)
            costs: dict[tuple[str, str], list[float]] = {}
            for mode in options.mode or _MODES:
                plan = Probe((mode,), "write", 1, options.steps, 1).plan()
                for runs in by_guard.values():
                    await runs.protected(mode, plan, 1)  # the first one warms up
                for _ in range(options.rounds):
                    for guard, runs in by_guard.items():
                        turn = await runs.protected(mode, plan, 1)
                        costs.setdefault((mode, guard), []).append(turn.seconds_per_step())
                found.extend(
                    Measured(store, mode, guard, costs[mode, guard], costs[mode, GUARDS[0]])
                    for guard in GUARDS
                )
                console.print(f"{store}: {mode}")


async def _by_guard(
    environment: Environment, store: str, running: ExitStack
) -> dict[str, ConcurrentRuns]:
    """Return what plays runs, for each guard on a ledger and with a worker of its own."""
    variables = environment.variables(
        {**clean(), "SUREHAND_TOOL_MODULES": "benchmarks.quick_tools"}
    )
    target = find_target(variables)
    make = makers(environment, [store], running)[store]
    found: dict[str, ConcurrentRuns] = {}
    for guard in GUARDS:
        url, queue = await to_thread(make, f"guards-{guard}"), f"{store}-{guard}"
        folder = environment.case_folder(queue)
        settings, converter = {"database_url": url, "task_queue": queue}, None
        if guard in ("quotas", "both"):
            limit(url)
        if guard in ("keys", "both"):
            key = new_key("benchmark")
            settings["key_encryption_keys"] = f"{key.id}={base64.b64encode(key.secret).decode()}"
            ledger = running.enter_context(closing(Ledger(make_engine(url))))
            keys = LedgerKeys(partial(_same, ledger), KeyRing([key]))
            blobs = Blobs(str(folder / "artifacts"))
            converter = data_converter(
                partial(_same, blobs), waits=True, encryption=RunEncryption(keys)
            )
        one = running.enter_context(worker(variables, folder, "worker", **settings))
        await to_thread(one.wait_said, READY)
        client = await connect(target, quiet=True, converter=converter)
        own = ClientSettings(
            tenant=DEFAULT_TENANT, user="benchmark", task_queue=queue, ui_url=environment.web_ui
        )
        found[guard] = ConcurrentRuns(Connection(client, target, own), store)
    return found


def _same(value: T) -> T:
    return value


def told(found: Sequence[Measured]) -> Told:
    """Return what there is to say."""
    head = ["mode", "ledger", "guards", "ms a step", "ratio"]
    return Told(
        [one.document() for one in found],
        table(head, (one.row() for one in found)) if found else "",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("guards", "What keys and quotas add to a step.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 5")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="default 50")
    parser.add_argument("--mode", choices=_MODES, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.steps < 2:
        parser.error("--rounds must be at least 1, --steps at least 2")
    found: list[Measured] = []
    return run(
        "guards",
        options.json,
        lambda environment, console: measure(environment, options, console, found),
        lambda: told(found),
    )


if __name__ == "__main__":
    leave(main())
