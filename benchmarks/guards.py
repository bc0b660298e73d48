"""``python -m benchmarks.guards``: what keys and quotas add to a step.

Runs of writes that do next to nothing, one after another: with nothing more, with a key for each
run, with all quotas of the tenant set, and with both. They take turns on the same machine, each
with a worker and a ledger of its own. BENCHMARKS.md shows what this prints.
"""

from __future__ import annotations

import argparse
import base64
from asyncio import to_thread
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Final, TypeVar

from rich.console import Console

from benchmarks.ledgers import DATABASES, MakeLedger, limit, makers
from benchmarks.program import Told, parser_of, run
from benchmarks.variants import Compared, Variant, compare, compared
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.run_keys import LedgerKeys
from surehand.drill.environment import Environment
from surehand.process.blobs import Blobs
from surehand.process.ciphers import KeyRing, RunEncryption, new_key
from surehand.process.exits import leave
from surehand.workflows.payload_codec import data_converter
from surehand.workflows.plan.durability import Durability

T = TypeVar("T")

#: What is on; the first one is what the others are compared with.
GUARDS: Final = ("nothing", "keys", "quotas", "both")
_MODES: Final = tuple(mode.value for mode in Durability)
ROUNDS: Final = 5
STEPS: Final = 50


async def measure(
    environment: Environment, options: argparse.Namespace, console: Console, found: list[Compared]
) -> None:
    """Play all guards on each ledger; the list keeps what is done when this is ended early."""
    for store in options.database or list(DATABASES):
        with ExitStack() as running:
            make = makers(environment, [store], running)[store]
            variants = [
                await to_thread(
                    _variant, guard, make, str(environment.folder / f"{store}-{guard}.d"), running
                )
                for guard in GUARDS
            ]
            found += await compare(
                environment,
                store,
                variants,
                options.mode or _MODES,
                rounds=options.rounds,
                steps=options.steps,
            )
            console.print(store)


def _variant(guard: str, make: MakeLedger, artifacts: str, running: ExitStack) -> Variant:
    url = make(f"guards-{guard}")
    if guard in ("quotas", "both"):
        limit(url)
    if guard not in ("keys", "both"):
        return Variant(guard, url)
    key = new_key("benchmark")
    settings = {
        "key_encryption_keys": f"{key.id}={base64.b64encode(key.secret).decode()}",
        "artifacts": artifacts,
    }
    ledger = running.enter_context(closing(Ledger(make_engine(url))))
    keys = LedgerKeys(partial(_same, ledger), KeyRing([key]))
    converter = data_converter(
        partial(_same, Blobs(artifacts)), waits=True, encryption=RunEncryption(keys)
    )
    return Variant(guard, url, settings, converter)


def _same(value: T) -> T:
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return its exit code."""
    parser = parser_of("guards", "What keys and quotas add to a step.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="default 5")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="default 50")
    parser.add_argument("--mode", choices=_MODES, action="append", help="default all")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.steps < 2:
        parser.error("--rounds must be at least 1, --steps at least 2")
    found: list[Compared] = []
    return run(
        "guards",
        options.json,
        lambda environment, console: measure(environment, options, console, found),
        lambda: Told([one.document() for one in found], compared("guards", found)),
    )


if __name__ == "__main__":
    leave(main())
