"""Progress while waiting: a live step table on a terminal, plain lines otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from surehand.cli.verb.pending import open_items
from surehand.cli.verb.printer import Printer, rich_table
from surehand.cli.verb.render import STEP_COLUMNS, step_rows
from surehand.cli.verb.shapes import TurnTokens
from surehand.cli.verb.text import shown_time
from surehand.client.connection import Connection
from surehand.client.outcome import Tokens
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.base import TimelineLine
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.plain_text import plain


@contextmanager
def watching(printer: Printer, connection: Connection) -> Iterator[LineWatch | LiveWatch]:
    """Show a run as fits where the output goes: a table that is gone at the end, or lines."""
    if not printer.console.is_terminal:
        yield LineWatch(printer)
        return
    spinner = Spinner("dots", text="starting")
    with Live(spinner, console=printer.console, transient=True) as live:
        yield LiveWatch(printer, connection, live, spinner)


class LineWatch:
    """One line for each change."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._said: dict[str, str] = {}
        self.pending: list[ApprovalRequest] = []

    def show(self, view: RunView) -> None:
        """Print what has changed since the last time."""
        self.pending = view.pending
        self._said.pop("note", None)
        for step in view.result.steps:
            again = f", attempt {step.attempts}" if step.attempts > 1 else ""
            if step.state != "pending":
                self._once(f"step {step.id}", f"{step.state}{again}")
        self._once("run", view.result.state)

    def note(self, text: str) -> None:
        """Print why nothing moves, once."""
        if self._said.get("note") != text:
            self._said["note"] = text
            self._printer.say(text)

    def _once(self, what: str, state: str) -> None:
        if self._said.get(what) != state:
            self._said[what] = state
            self._printer.say(f"{what}: {state}")


class TimelineWatch:
    """The lines of the run's timeline, each once, as they come."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._told: list[TimelineLine] = []
        self._noted = ""

    def show(self, view: RunView) -> None:
        """Print the lines that are new."""
        self._noted = ""
        known = _known(self._told, view.timeline)
        if self._told and not known:
            self.note("Lines are missing here: the run keeps its newest ones only")
        for line in view.timeline[known:]:
            if self._printer.json_output:
                self._printer.document(line)
            else:
                step = f"{line.step_id}: " if line.step_id else ""
                self._printer.say(f"{shown_time(line.at)}  {step}{line.text}")
        self._told = view.timeline

    def note(self, text: str) -> None:
        """Print why nothing moves, once; it is no line of the timeline."""
        if self._noted != text:
            self._noted = text
            self._printer.warn(text)


class TokenWatch(TimelineWatch):
    """The timeline, and between its lines what models say.

    What was shown of a turn is void once it is asked again. What counts is what the run has
    recorded, which is said at the end of each turn that was shown.
    """

    def __init__(self, printer: Printer) -> None:
        super().__init__(printer)
        self._heard: dict[str, tuple[int, int]] = {}
        """By turn: the attempt that was heard last, and how many of its characters are shown."""

    def hear(self, tokens: Mapping[str, Tokens]) -> None:
        """Print what models have said since the last time."""
        for step_id, now in tokens.items():
            attempt, shown = self._heard.get(step_id, (now.attempt, 0))
            if attempt != now.attempt:
                self._void(step_id, attempt, "the turn is asked again")
                shown = 0
            text = now.text[max(0, shown - now.before) :]
            if text:
                missed = "[...] " if now.before > shown else ""
                self._say(TurnTokens(step_id=step_id, attempt=now.attempt, text=missed + text))
            self._heard[step_id] = (now.attempt, now.before + len(now.text))

    def show(self, view: RunView) -> None:
        """Print the lines that are new, and what has become of the turns that were shown."""
        for step in view.result.steps:
            if step.id not in self._heard or step.state in (StepState.PENDING, StepState.RUNNING):
                continue
            attempt, _ = self._heard.pop(step.id)
            if step.state is StepState.SUCCEEDED:
                if attempt != step.attempts:
                    self._void(step.id, attempt, "the turn was asked again")
                said = step.output.get("line") if isinstance(step.output, dict) else None
                told = TurnTokens(step_id=step.id, attempt=step.attempts, said=str(said or ""))
                self._say(told)
            else:
                self._void(step.id, attempt, "the turn has failed")
        super().show(view)

    def _void(self, step_id: str, attempt: int, why: str) -> None:
        told = TurnTokens(step_id=step_id, attempt=attempt, void=True)
        self._say(told, f"-- {step_id}: {why}; what was shown of it is void --")

    def _say(self, told: TurnTokens, line: str | None = None) -> None:
        if self._printer.json_output:
            self._printer.document(told)
        elif line is None and told.said is not None:
            self._printer.say(f"-- {told.step_id} is recorded: {told.said} --")
        else:
            self._printer.say(line or f"{told.step_id} | {told.text}")


def _known(told: Sequence[TimelineLine], timeline: Sequence[TimelineLine]) -> int:
    """Return how many lines of a timeline were told before: it may have lost its oldest ones."""
    for lost in range(len(told)):
        rest = list(told[lost:])
        if timeline[: len(rest)] == rest:
            return len(rest)
    return 0


class LiveWatch:
    """A table that is drawn anew in place."""

    def __init__(
        self, printer: Printer, connection: Connection, live: Live, spinner: Spinner
    ) -> None:
        self._printer = printer
        self._connection = connection
        self._asked: set[tuple[str, str, str]] = set()
        self._view: RunView | None = None
        self._note = ""
        self._live = live
        self._spinner = spinner

    def show(self, view: RunView) -> None:
        """Draw the steps; what is waited for is printed above them, once."""
        self._view = view
        self._note = ""
        self._ask(view)
        self._draw()

    @property
    def pending(self) -> list[ApprovalRequest]:
        """Return the requests that waited when the run was seen last."""
        return [] if self._view is None else self._view.pending

    def note(self, text: str) -> None:
        """Draw why nothing moves."""
        self._note = text
        self._draw()

    def _draw(self) -> None:
        if self._view is None:
            self._spinner.update(text=Text(plain(self._note or "starting")))
            return
        result = self._view.result
        self._spinner.update(text=Text(plain(self._note or f"{result.run_id}: {result.state}")))
        table = rich_table(STEP_COLUMNS, step_rows(result.steps))
        self._live.update(Group(table, self._spinner))

    def _ask(self, view: RunView) -> None:
        """Print each question above the table, unwrapped, so that its commands can be pasted."""
        items = dict(open_items(self._connection, view.result, view.pending))
        for key, lines in items.items():
            if key not in self._asked:
                self._printer.lines(lines)
        # What has been answered may be asked again.
        self._asked = set(items)
