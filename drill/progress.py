"""Shows a drill while it goes on: a bar on a terminal, a line for each case otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from surehand.cli.verb.printer import Printer
from surehand.cli.verb.text import counted
from surehand.drill.report import ALIKE, Cell
from surehand.workflows.plain_text import plain


class Progress:
    """One line for each case; the base of the bar."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._total = 0
        self._done = 0

    def note(self, text: str) -> None:
        """Say what goes on beside the cases."""
        self._printer.say(text)

    def begin(self, total: int, kept: Sequence[Cell]) -> None:
        """Say how many cells there are; some may be done."""
        self._total, self._done = total, len(kept)
        if kept:
            self._printer.say(f"Done before: {len(kept)} of {counted(total, 'case')}")

    def playing(self, cell: Cell) -> None:
        """A case has begun."""

    def done(self, cell: Cell) -> None:
        """A case is done."""
        self._done += 1
        self._printer.say(f"{self._done}/{self._total}  {line(cell)}")


class Bar(Progress):
    """A bar that is drawn anew in place; only what is not the same world gets a line above."""

    def __init__(self, printer: Printer, bar: RichProgress) -> None:
        super().__init__(printer)
        self._bar = bar
        self._id = self._bar.add_task("fault-free", total=None)
        self._playing: list[str] = []

    def begin(self, total: int, kept: Sequence[Cell]) -> None:
        """Give the bar its length."""
        super().begin(total, kept)
        self._bar.update(self._id, total=total, completed=len(kept))

    def playing(self, cell: Cell) -> None:
        """Name the cases under way before the bar."""
        self._playing.append(_place(cell))
        self._describe()

    def done(self, cell: Cell) -> None:
        """Move the bar."""
        if _place(cell) in self._playing:
            self._playing.remove(_place(cell))
        if cell.outcome not in ALIKE:
            self._printer.say(line(cell))
        self._bar.advance(self._id)
        self._describe()

    def _describe(self) -> None:
        self._bar.update(self._id, description=plain(", ".join(self._playing)))


@contextmanager
def make_progress(printer: Printer) -> Iterator[Progress]:
    """Show a drill as fits where the output goes."""
    if not printer.console.is_terminal:
        yield Progress(printer)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    more = (MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, *more, console=printer.console, transient=True) as bar:
        yield Bar(printer, bar)


def line(cell: Cell) -> str:
    """Return one line about a cell that is done."""
    recovered = f", recovered in {cell.recovery_s:.1f} s" if cell.recovery_s is not None else ""
    why = next(iter(cell.reasons), "")
    told = f"{cell.outcome}, {counted(cell.effects, 'effect')}{recovered}"
    return f"{_place(cell)}: {told}{f' ({why})' if why else ''}"


def _place(cell: Cell) -> str:
    return f"{cell.label} {cell.point}"
