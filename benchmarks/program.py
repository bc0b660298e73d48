"""What the benchmarks do alike: an environment, notes, and a summary."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console

from benchmarks.ledgers import DATABASES
from surehand.drill.environment import Environment, prepared
from surehand.process.exits import ExitCode, SurehandError, end_by_signal_in_order
from tests.postgres_server import PostgresMissing


@dataclass(frozen=True)
class Told:
    """What a benchmark has to say in the end, also of one that was ended early."""

    documents: Sequence[dict[str, Any]]
    """For ``--json``."""
    tables: str
    missed: Sequence[str] = ()
    """A line for each target that was missed."""


def clean() -> dict[str, str]:
    """Return the environment without settings: the figures are those of the defaults."""
    ours = ("SUREHAND_", "TEMPORAL_", "BENCHMARK_")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}


@contextmanager
def unread_log() -> Iterator[None]:
    """Write log lines as a worker does, and keep none."""
    with Path(os.devnull).open("w", encoding="utf-8") as nobody:
        structlog.configure(
            processors=[structlog.processors.JSONRenderer()],
            logger_factory=structlog.WriteLoggerFactory(nobody),
        )
        try:
            yield
        finally:
            structlog.reset_defaults()


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument(
        "--database", choices=DATABASES, action="append", help="may be repeated; default both"
    )
    return parser


def run(
    name: str,
    file: Path | None,
    play: Callable[[Environment, Console], Coroutine[Any, Any, None]],
    tell: Callable[[], Told],
) -> int:
    """Play a benchmark, say what it has measured, and return its exit code.

    Args:
        name: Its module's.
        file: Where to write all that was measured.
        play: Measures; ended early by Ctrl-C, it leaves what there is for ``tell``.
        tell: Returns what was measured.
    """
    console = Console(markup=False, highlight=False, soft_wrap=True)
    end_by_signal_in_order()
    before, code = os.getloadavg()[0], ExitCode.DONE
    try:
        with prepared(clean(), database=None, say=console.print) as environment:
            try:
                asyncio.run(play(environment, console))
            except KeyboardInterrupt:
                code = ExitCode.INTERRUPTED
                print(f"benchmarks.{name}: ended early", file=sys.stderr)
            except BaseException:
                environment.keep()
                console.print(f"Ledgers and logs are kept in {environment.folder}")
                raise
    except (SurehandError, PostgresMissing) as error:
        code = error.code if isinstance(error, SurehandError) else ExitCode.NOT_REACHABLE
        print(f"benchmarks.{name}: {error}", file=sys.stderr)
    after, told = os.getloadavg()[0], tell()
    if not told.documents:
        return code
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{json.dumps(told.documents, indent=1)}\n", encoding="utf-8")
    console.print(told.tables)
    console.print(f"\nLoad average before {before:.1f}, after {after:.1f} (its own included)")
    for line in told.missed:
        console.print(f"MISSED: {line}")
    if code is ExitCode.DONE and told.missed:
        return ExitCode.BROKEN
    return code
