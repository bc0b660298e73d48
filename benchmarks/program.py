"""What all benchmarks share: options, an environment, notes, percentiles, tables, the exit code."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console

from benchmarks.places import DATABASES
from surehand.drill.environment import Environment, prepared
from surehand.drill.report import nearest_rank
from surehand.process.exits import ExitCode, SurehandError, end_by_signal_in_order
from surehand.workflows.plan.durability import Durability
from tests.postgres_server import PostgresMissing

#: A line of a table, and an element of ``--json``.
Row = dict[str, Any]
MODES = tuple(mode.value for mode in Durability)


@dataclass
class Found:
    """What was measured so far. It is printed even if a benchmark is ended early."""

    say: Callable[[str], object]
    rows: list[Row] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Tell how far the benchmark is."""
        self.say(f"{text} ({time.monotonic() - self.began:.0f} s so far)")


def percentiles(of: str, seconds: Iterable[float]) -> Row:
    """Return the figures of at least one measurement; percentiles by nearest rank."""
    times = sorted(seconds)
    figures = {"p50": nearest_rank(times, 50), "p95": nearest_rank(times, 95), "max": times[-1]}
    return {f"{of}_{name}_s": round(value, 3) for name, value in figures.items()}


def tables(rows: Sequence[Row]) -> str:
    """Return the rows as tables in Markdown, one for each set of columns."""
    by_columns: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_columns.setdefault(tuple(row), []).append(row)
    return "\n\n".join(
        "\n".join(
            f"| {' | '.join(map(str, line))} |"
            for line in (columns, ["---"] * len(columns), *(row.values() for row in group))
        )
        for columns, group in by_columns.items()
    )


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


def clean() -> dict[str, str]:
    """Return the environment without settings: the figures are those of the defaults."""
    ours = ("SUREHAND_", "TEMPORAL_", "BENCHMARK_")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}


def run(
    name: str,
    options: argparse.Namespace,
    play: Callable[[Environment, argparse.Namespace, Found], Coroutine[Any, Any, None]],
    missed: Callable[[Sequence[Row]], Iterable[str]] = lambda rows: (),
) -> int:
    """Play a benchmark, print what it has measured, and return its exit code."""
    console = Console(markup=False, highlight=False, soft_wrap=True)
    end_by_signal_in_order()
    options.database = options.database or list(DATABASES)
    found, before, code = Found(console.print), os.getloadavg()[0], ExitCode.DONE
    try:
        with prepared(clean(), database=None, say=console.print) as environment:
            try:
                asyncio.run(play(environment, options, found))
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
    after = os.getloadavg()[0]
    if not found.rows:
        return code
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(f"{json.dumps(found.rows, indent=1)}\n", encoding="utf-8")
    console.print(tables(found.rows))
    console.print(f"\nLoad average before {before:.1f}, after {after:.1f} (its own included)")
    lines = list(missed(found.rows))
    for line in lines:
        console.print(f"MISSED: {line}")
    return ExitCode.BROKEN if lines and code is ExitCode.DONE else code
