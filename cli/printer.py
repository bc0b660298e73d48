"""Where output goes: one JSON document on stdout with ``--json``, text for people otherwise.

Nothing that a tool, a model or a plan wrote can steer the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from surehand.process.exits import ExitCode, PlanRefused, SurehandError
from surehand.workflows.plain_text import plain


def compact(value: Any, longest: int | None = None) -> str:
    """Return a JSON value as one line of text, cut if it is longer; a plain string as it is."""
    if isinstance(value, str):
        return plain(value, longest)
    from surehand.workflows.contracts.base import as_artifact  # not with every verb's errors

    artifact = as_artifact(value)
    if artifact is not None:
        return f"artifact sha256:{artifact.sha256[:12]}... ({artifact.bytes} bytes)"
    return plain(json.dumps(value, ensure_ascii=False, default=str), longest)


def time_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def shown_time(moment: datetime) -> str:
    """Return a time as people read it, in their own time zone and with its offset."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def rough_time(time: timedelta) -> str:
    """Return a time in its two largest units: ``3 h 12 min``."""
    minutes, seconds = divmod(int(time.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


#: Colours of states; a state without one is printed as it is.
_STYLES: Final = {
    "completed": "green",
    "succeeded": "green",
    "committed": "green",
    "ok": "green",
    "compensated": "cyan",
    "running": "blue",
    "waiting_approval": "yellow",
    "waiting_rate_limit": "yellow",
    "waiting_quota": "yellow",
    "halted": "red",
    "needs_intervention": "bold yellow",
    "in_doubt": "bold yellow",
    "compensating": "yellow",
    "failed": "bold red",
    "FAIL": "bold red",
    "cancelled": "magenta",
}


class Shape(BaseModel):
    """Base of a document that ``--json`` prints, if no record of a contract is printed itself."""

    model_config = ConfigDict(frozen=True, defer_build=True)  # a verb prints one of them


@dataclass(frozen=True)
class Styled:
    """A line in colour, or bold."""

    text: str
    style: str


@dataclass(frozen=True)
class Table:
    """Rows with a name for each column."""

    columns: Sequence[str]
    rows: Iterable[Sequence[str]]


#: What people read, in order.
Lines = Iterable[str | Styled | Table]


def table_or(columns: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> Lines:
    return [Table(columns, rows) if rows else nothing]


@dataclass(frozen=True)
class Reply:
    """What a verb answers: a document, the same for people, and how it ends."""

    document: BaseModel | dict[str, Any]
    text: str | Lines
    code: ExitCode = ExitCode.DONE


class Printer:
    """Prints results to stdout and, with ``--json``, everything else to stderr."""

    def __init__(self, *, json_output: bool) -> None:
        self.json_output = json_output
        #: Documents that follow one another are one line each (JSON Lines).
        self.one_a_line = False
        # Rich's own markup and guessing would change what a tool or a plan wrote.
        self.errors = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
        self.console = (
            self.errors
            if json_output
            else Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
        )

    @property
    def attended(self) -> bool:
        """Say whether a person watches: stdout is a terminal."""
        return sys.stdout.isatty()

    def reply(self, reply: Reply) -> None:
        """Print a verb's answer: its document with ``--json``, its text otherwise."""
        if self.json_output:
            self.document(reply.document)
        else:
            self.lines([reply.text] if isinstance(reply.text, str) else reply.text)

    def lines(self, lines: Lines) -> None:
        for part in lines:
            if isinstance(part, Table):
                self.table(part.columns, part.rows)
            elif isinstance(part, Styled):
                self.say(part.text, part.style)
            else:
                self.say(part)

    def document(self, document: BaseModel | dict[str, Any]) -> None:
        """Print the one JSON document of ``--json``, or one of several, a line each."""
        value = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
        # ASCII: it survives any locale, and no character can steer a terminal.
        indent = None if self.one_a_line else 2
        print(json.dumps(value, indent=indent), file=sys.stdout, flush=self.one_a_line)

    def say(self, text: str = "", style: str = "") -> None:
        """Print one line for people; it is never wrapped, so that commands can be pasted."""
        self.console.print(Text(plain(text), style=style), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.errors.print(Text(f"surehand: {plain(text)}"), soft_wrap=True)

    def error(self, error: SurehandError) -> None:
        """Print an error: its lines to stderr and, with ``--json``, a document to stdout."""
        for line in error.lines:
            self.warn(line)
        if self.json_output:
            from surehand.workflows.contracts.tools import ErrorReport

            problems = error.problems if isinstance(error, PlanRefused) else []
            self.document(
                ErrorReport(error=str(error), exit_code=int(error.code), problems=problems)
            )

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows: a table on a terminal, aligned columns otherwise."""
        if self.console.is_terminal:
            table = RichTable(header_style="bold", box=None, pad_edge=False)
            for column in columns:
                table.add_column(column, overflow="fold")
            for row in rows:
                table.add_row(*(Text(plain(cell), style=_STYLES.get(cell, "")) for cell in row))
            self.console.print(table)
            return
        lines = [[plain(cell) for cell in row] for row in ([c.upper() for c in columns], *rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self.console.print(Text("  ".join(cells).rstrip()), soft_wrap=True)
