"""What a drill does to runs, and what it has found: the shape of ``drill --json``, and its text."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from rich.console import Console

from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.printer import Lines, Printer, Shape, Styled, Table
from surehand.workflows.contracts.tools import Effect, Recovery
from surehand.workflows.plain_text import counted


class ForcedWait(StrEnum):
    """A way in which a run is made to wait at a step."""

    PAUSE = "pause"
    """It is paused right before the step's call, and resumed by another worker."""
    HALT = "halt"
    """Its calls are halted right before the step's, and made by another worker after the lift."""
    APPROVAL = "approval"
    """The call needs an approval, whatever its policies say; another worker makes it."""
    ASK = "ask"
    """A human is asked before the step, and answers to another worker."""
    PERMISSION_LOSS = "permission_loss"
    """The acting user loses the tool's permission between approval and call."""
    EXPIRY = "expiry"
    """An approval expires; the one that is asked for again is given."""


class Operation(StrEnum):
    """What an operator does to a run, or to its workers."""

    RESET = "reset"
    """Behind the step, Temporal starts the run again at its first workflow task."""
    RESET_STEP = "reset_step"
    """From its end, it starts again right before the step's call, or the start of its child run."""
    RESET_KILLED = "reset_killed"
    """Its worker is killed in the middle of its calls, and it is reset before another goes on."""
    TERMINATE = "terminate"
    """Behind the step it is terminated, and unwound from outside."""
    DEPLOY = "deploy"
    """Its worker is killed in the call; the next one has shorter timeouts and a shorter lease."""
    FREEZE = "freeze"
    """Its worker is frozen in the call (SIGSTOP), and goes on when another one has done all."""

    @property
    def crash_point(self) -> CrashPoint | None:
        """Return where the worker is killed or frozen; ``None``: the run waits behind the step."""
        match self:
            case Operation.RESET_KILLED:
                return CrashPoint.AFTER_OUTCOME
            case Operation.DEPLOY | Operation.FREEZE:
                return CrashPoint.DURING_CALL
        return None


Point = CrashPoint | ForcedWait | Operation
#: What is drilled.
POINTS: Final[tuple[Point, ...]] = (*CrashPoint, *ForcedWait, *Operation)


class CellOutcome(StrEnum):
    """How the run of one cell compares with the fault-free run."""

    SAME = "same world"
    SAME_LEDGER = "same ledger"
    """No world was named: run and ledger are the same, what is outside was not compared."""
    DIFFERS = "differs"
    NEEDS_HUMAN = "needs human"
    """The run has asked a human about the call, as its tool says, and as many effects are there as
    the ledger knows of, or one more for the call in doubt. The world is not compared otherwise."""
    UNDONE = "undone"
    """It was terminated and unwound: nothing of it stands that nobody was told of."""
    NOT_REACHED = "not reached"
    """No worker was killed, the run was not interrupted: this cell proves nothing."""


#: Outcomes with which a drill has proven what it was asked to.
GOOD: Final = frozenset(CellOutcome) - {CellOutcome.DIFFERS, CellOutcome.NOT_REACHED}
#: Outcomes of which there is no more to say.
ALIKE: Final = GOOD - {CellOutcome.NEEDS_HUMAN}


class Tally(Shape):
    """Calls of one or more plays, counted from the rows of their ledgers."""

    gated: int = 0
    """Calls that needed an approval; each attempt is one."""
    as_approved: int = 0
    """Those of them that were made with exactly what was approved."""
    losses: int = 0
    """Times that the drill has taken a permission away."""
    drifted: int = 0
    """Calls that were made all the same, although the permission was gone."""

    @property
    def holds(self) -> bool:
        """Say whether nothing ran that was not approved or not allowed."""
        return self.as_approved == self.gated and not self.drifted

    @property
    def percent_approved(self) -> float | None:
        """Return the Approval Consistency; ``None``: no call needed an approval."""
        # Rounded down: a single call among thousands must not vanish in a 100.
        return math.floor(1000 * self.as_approved / self.gated) / 10 if self.gated else None


def add_tallies(*tallies: Tally) -> Tally:
    names = Tally.model_fields
    return Tally(**{name: sum(getattr(one, name) for one in tallies) for name in names})


class DrillTarget(Shape):
    """A row of the matrix: a step's tool call or child run, or the call that undoes it."""

    step: str
    tool: str
    effect: Effect | None
    """``None``: the fault-free run has never called it."""
    recovery: Recovery | None = None
    """How the tool settles an outcome that a crash has left unknown, as it was recorded."""
    absence_provable: bool = True
    """Whether a call that was claimed and never made is settled without a human."""
    undo: bool = False
    asks: bool = False
    """A step that asks a human and calls no tool."""
    child: bool = False
    """A step that is a plan: a child run does it."""
    succeeded: bool = True
    """Whether it has succeeded in the fault-free run: a run can wait behind it then."""
    permission: str | None = None
    """What the acting user must be allowed, as the tool was recorded."""
    may_ask_again: bool = True
    """Whether the tool's own policy lets an approval that has expired be asked for again."""

    @property
    def called(self) -> bool:
        """Say whether the fault-free run has come to the step."""
        return self.effect is not None or self.asks or self.child


class DrillCell(Shape):
    """One run that was disturbed at one point of one step."""

    mode: str
    step: str
    undo: bool
    tool: str
    point: str
    outcome: CellOutcome
    run_id: str = ""
    effects: int = 0
    """Effects that the world counted; without a count of its own, those of the ledger."""
    recovery_s: float | None = None
    """Seconds from the worker's death to the step's outcome, reported by another worker."""
    seconds: float = 0
    differences: list[str] = []
    question: str = ""
    """What a human is asked, or why the point was not reached."""
    tally: Tally = Tally()

    @property
    def reasons(self) -> list[str]:
        return self.differences or ([self.question] if self.question else [])


class FaultFree(Shape):
    """The run that nothing happens to, which all others are compared with."""

    run_id: str
    state: str
    effects: int
    counted: dict[str, int]
    tally: Tally = Tally()
    """Of both fault-free runs."""
    violations: list[str] = []
    """What should not have happened in them."""


class DrillReport(Shape):
    """``drill``."""

    ok: bool
    """There are cells, each is the same world or ledger, or needs a human, and nothing ran that
    was not approved or not allowed."""
    plan: str
    modes: list[str]
    server: str
    world: str
    """The user's function; empty: only the run and the ledger were compared."""
    seconds: float
    fault_free: FaultFree
    points: list[str]
    targets: list[DrillTarget]
    cells: list[DrillCell]
    tally: Tally = Tally()
    """Of all cells and the fault-free runs: Approval Consistency and Permission Drift."""

    def __str__(self) -> str:
        """Return the matrix and all that is wrong, as text."""
        return print_lines(make_lines(self))


def nearest_rank(times: Sequence[float], percent: int) -> float:
    """Return a percentile by nearest rank: a time that was measured, never one in between."""
    return times[max(math.ceil(len(times) * percent / 100), 1) - 1]


def list_recoveries(cells: Iterable[DrillCell], *points: str) -> list[float]:
    """Return the recovery times at some points, or at all, the shortest one first."""
    times = [(cell.recovery_s, cell.point) for cell in cells]
    return sorted(time for time, at in times if time is not None and (not points or at in points))


#: A call that has no such point, and a point at which nobody recovered.
_NONE: Final = "-"


def name_row(step: str, undo: bool) -> str:
    return f"{step} (undo)" if undo else step


def make_tables(report: DrillReport) -> Iterator[Table]:
    """Yield a matrix each of kills, forced waits, and what operators do."""
    cells = {(cell.step, cell.undo, cell.point, cell.mode): cell for cell in report.cells}
    for kind in (tuple(CrashPoint), tuple(ForcedWait), tuple(Operation)):
        points = [point for point in report.points if point in kind]
        rows = []
        for mode in report.modes:
            of_mode = "" if len(report.modes) == 1 else f", {mode}"
            for one in report.targets:
                row = [cells.get((one.step, one.undo, point, mode)) for point in points]
                if any(row):
                    name = name_row(one.step, one.undo) + of_mode
                    rows.append([name, *(_describe_outcome(cell) for cell in row)])
        if kind == tuple(CrashPoint):
            known = (list_recoveries(report.cells, point) for point in points)
            times = (f"{nearest_rank(some, 50):.1f} s" if some else _NONE for some in known)
            rows.append(["recovery p50", *times])
        if points:
            yield Table(["step", *points], rows)


def _describe_outcome(cell: DrillCell | None) -> str:
    if cell is None:
        return _NONE
    reached = cell.outcome is not CellOutcome.NOT_REACHED
    return f"{cell.outcome}, {cell.effects}" if reached else cell.outcome.value


def describe_result(report: DrillReport) -> str:
    outcomes = Counter(cell.outcome for cell in report.cells)
    counts = ", ".join(f"{outcomes[one]} {one}" for one in CellOutcome if outcomes[one])
    sign = "OK" if report.ok else "NOT OK"
    return f"{sign}: {counted(len(report.cells), 'case')} in {report.plan}: {counts}."


def _explain_matrix(report: DrillReport) -> Iterator[str]:
    """Yield what one has to know to read the matrix, and the numbers about what ran."""
    fault_free, tally = report.fault_free, report.tally
    effects = ", ".join(f"{name} {count}" for name, count in fault_free.counted.items() if count)
    yield (
        f"Each cell: how the disturbed run compares with the fault-free one ({fault_free.state}),"
        f" and the effects counted; fault-free {fault_free.effects} ({effects or 'none'})."
    )
    share = f"{tally.as_approved} of {tally.gated}" if tally.gated else "none needed one"
    percent = _NONE if tally.percent_approved is None else f"{tally.percent_approved:g} %"
    yield f"Approval Consistency: {percent} (calls made exactly as approved: {share})."
    losses = f"{counted(tally.losses, 'time')} that the permission was taken away"
    yield f"Permission Drift: {tally.drifted} (calls made without it: {losses})."
    if any(target.effect is Effect.READ for target in report.targets):
        yield "A read claims nothing: some crash points are not there for it (-)."
    if ForcedWait.PERMISSION_LOSS in report.points and not tally.losses:
        yield "No permission was taken away: permission_loss is there for tools that need one."
    if not report.world:
        yield "No --world was named: only runs and ledgers were compared, not what is outside."
    if times := list_recoveries(report.cells):
        yield (
            f"Recovery, from the worker's death to the step's outcome,"
            f" {counted(len(times), 'kill')}: p50 {nearest_rank(times, 50):.1f} s,"
            f" p95 {nearest_rank(times, 95):.1f} s, longest {times[-1]:.1f} s."
        )
    for violation in fault_free.violations:
        yield f"In a fault-free run: {violation}."
    yield f"Server: {report.server}. Took {report.seconds:.0f} s."


def make_lines(report: DrillReport) -> Lines:
    yield ""
    for table in make_tables(report):
        yield table
        yield ""
    yield from _explain_matrix(report)
    for cell in report.cells:
        if cell.outcome not in ALIKE:
            yield ""
            run = f", run {cell.run_id}" if cell.run_id else ""
            place = f"{name_row(cell.step, cell.undo)} {cell.tool}:{cell.point}{run}"
            red = cell.outcome is CellOutcome.DIFFERS
            yield Styled(f"{cell.outcome}: {place}", "bold red" if red else "bold")
            yield from (f"  {reason}" for reason in cell.reasons)
    yield ""
    yield Styled(describe_result(report), "bold green" if report.ok else "bold red")


def describe_cell(cell: DrillCell) -> str:
    recovered = f", recovered in {cell.recovery_s:.1f} s" if cell.recovery_s is not None else ""
    why = next(iter(cell.reasons), "")
    told = f"{cell.outcome}, {counted(cell.effects, 'effect')}{recovered}"
    return f"{name_row(cell.step, cell.undo)} {cell.point}: {told}{f' ({why})' if why else ''}"


def print_lines(lines: Lines, *, html: bool = False) -> str:
    """Return a report as it is printed on a wide terminal: as plain text, or as an HTML page."""
    printer = Printer(json_output=False)
    printer.console = console = Console(
        file=io.StringIO(), record=True, width=200, force_terminal=True, color_system="truecolor",
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    printer.lines(lines)
    # Nothing in it is loaded from elsewhere.
    return console.export_html() if html else console.export_text()
