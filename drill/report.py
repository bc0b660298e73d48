"""What a drill does to runs, and what it has found: the shape of ``drill --json`` and of its files.

The shape is add-only.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from functools import reduce
from typing import Final, Self

from rich.console import Console

from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.printer import Lines, Styled, Table, compact, counted, rich_table
from surehand.cli.shapes import Shape
from surehand.workflows.contracts.tools import Effect, Recovery


class ForcedWait(StrEnum):
    """A way in which a run is made to wait at a step."""

    PAUSE = "pause"
    """It is paused right before the step's call, and resumed by another worker."""
    APPROVAL = "approval"
    """The call needs an approval, whatever its policies say; another worker makes it."""
    ASK = "ask"
    """A human is asked before the step, and answers to another worker."""
    PERMISSION_LOSS = "permission_loss"
    """The acting user loses the tool's permission between approval and call."""
    EXPIRY = "expiry"
    """An approval expires; the one that is asked for anew is given."""


class Beforehand(StrEnum):
    """What is done to the world outside before a run whose worker is killed."""

    ALREADY_TRUE = "already_true"
    """It is already as the call would leave it, and the worker dies between claim and call: the
    write must not be skipped in silence."""


class Operation(StrEnum):
    """What an operator does to a run, or to its workers."""

    RESET = "reset"
    """Behind the step, Temporal begins the run anew at its first workflow task."""
    RESET_STEP = "reset_step"
    """From its end, it begins anew right before the step's call, or the start of its child run."""
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


class Halt(StrEnum):
    """Where an undisturbed run is left waiting: a run that needs a human is compared with it."""

    BEFORE = "before"
    AFTER = "after"
    BEFORE_ALREADY_TRUE = "before_already_true"
    """Before the call, in a world that is already as the call would leave it."""


Point = CrashPoint | ForcedWait | Beforehand | Operation | Halt
#: What is drilled.
POINTS: Final[tuple[Point, ...]] = (*CrashPoint, *ForcedWait, *Beforehand, *Operation)


class CellOutcome(StrEnum):
    """How the run of one cell compares with the fault-free run."""

    SAME = "same world"
    SAME_LEDGER = "same ledger"
    """No world was named: run and ledger are the same, what is outside was not compared."""
    DIFFERS = "differs"
    NEEDS_HUMAN = "needs human"
    """The run has asked a human, where its tool says that one decides. The world is as right
    before the call or right behind it."""
    UNDONE = "undone"
    """It was terminated and unwound: nothing of it stands that nobody was told of."""
    NOT_REACHED = "not reached"
    """No worker was killed, the run was not interrupted: this cell proves nothing."""


#: Outcomes with which a drill has proven what it was asked to.
GOOD: Final = frozenset(CellOutcome) - {CellOutcome.DIFFERS, CellOutcome.NOT_REACHED}
#: Outcomes of which there is no more to say.
ALIKE: Final = GOOD - {CellOutcome.NEEDS_HUMAN}


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
    def label(self) -> str:
        """Return the row's name."""
        return f"{self.step} (undo)" if self.undo else self.step


class DrilledApproval(Shape):
    """An approval that the drill has given."""

    approval_id: str
    tool: str
    description: str
    params_hash: str


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

    def plus(self, other: Tally) -> Tally:
        """Return both together."""
        mine, theirs = self.model_dump(), other.model_dump()
        return Tally(**{name: mine[name] + theirs[name] for name in mine})


class ApprovalConsistency(Shape):
    """How many of the calls that needed an approval were made exactly as approved."""

    as_approved: int
    gated: int
    percent: float | None
    """``None``: no call needed one."""


class PermissionDrift(Shape):
    """Calls that were made without the permission, of so many times that it was taken away."""

    drifted: int
    losses: int


class ModelTurns(Shape):
    """How often models were asked, by the world's own count, for how many turns."""

    asked: int = 0
    recorded: int = 0
    """Turns that stand in the ledger."""
    unrecorded: int = 0
    """Asked again, because the answer had died with its worker before anything was recorded."""
    asked_again: int = 0
    """Asked again, although the turn was recorded."""

    def plus(self, other: ModelTurns) -> ModelTurns:
        """Return both together."""
        mine, theirs = self.model_dump(), other.model_dump()
        return ModelTurns(**{name: mine[name] + theirs[name] for name in mine})


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
    approvals: list[DrilledApproval] = []
    tally: Tally = Tally()
    turns: ModelTurns | None = None
    """``None``: the world does not say how often models were asked."""

    @property
    def label(self) -> str:
        """Return the name of its row."""
        return f"{self.step} (undo)" if self.undo else self.step

    @property
    def reasons(self) -> list[str]:
        """Return what there is to say about it."""
        return self.differences or ([self.question] if self.question else [])


class FaultFree(Shape):
    """The run that nothing happens to, which all others are compared with."""

    run_id: str
    state: str
    effects: int
    counted: dict[str, int]
    seconds: float
    approvals: list[DrilledApproval]
    tally: Tally = Tally()
    """Of both fault-free runs."""
    turns: ModelTurns | None = None
    violations: list[str] = []
    """What should not have happened in them."""


class RecoveryTimes(Shape):
    """Recovery times at one point, or at ``all``."""

    point: str
    kills: int
    p50_s: float
    p95_s: float
    longest_s: float

    @classmethod
    def of(cls, point: str, seconds: Iterable[float]) -> Self | None:
        """Return the times at a point; ``None`` if nobody recovered there."""
        times = sorted(seconds)
        if not times:
            return None
        return cls(
            point=point,
            kills=len(times),
            p50_s=nearest_rank(times, 50),
            p95_s=nearest_rank(times, 95),
            longest_s=times[-1],
        )


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
    fresh: str
    approver: str
    started_at: datetime
    seconds: float
    fault_free: FaultFree
    points: list[str]
    targets: list[DrillTarget]
    cells: list[DrillCell]
    counts: dict[CellOutcome, int]
    recovery: list[RecoveryTimes]
    approval_consistency: ApprovalConsistency = ApprovalConsistency(
        as_approved=0, gated=0, percent=None
    )
    permission_drift: PermissionDrift = PermissionDrift(drifted=0, losses=0)
    model_turns: ModelTurns | None = None
    """Of all cells and the fault-free run; ``None``: the world does not say."""

    def cell(self, target: DrillTarget, point: str, mode: str) -> DrillCell | None:
        """Return a cell of the matrix; ``None`` where the call has no such point."""
        for cell in self.cells:
            place = (cell.step, cell.undo, cell.point, cell.mode)
            if place == (target.step, target.undo, point, mode):
                return cell
        return None

    def __str__(self) -> str:
        """Return the matrix and all that is wrong, as text."""
        return text(self)


def added_up(tallies: Iterable[Tally]) -> Tally:
    """Return the tallies of several plays together."""
    return reduce(Tally.plus, tallies, Tally())


def all_turns(turns: Iterable[ModelTurns | None]) -> ModelTurns | None:
    """Return the turns of several plays together; ``None``: no world says how many there were."""
    known = [one for one in turns if one is not None]
    return reduce(ModelTurns.plus, known) if known else None


def consistency_of(tally: Tally) -> ApprovalConsistency:
    """Return the Approval Consistency of what was counted."""
    # Rounded down: a single call among thousands must not vanish in a 100.
    percent = math.floor(1000 * tally.as_approved / tally.gated) / 10 if tally.gated else None
    return ApprovalConsistency(as_approved=tally.as_approved, gated=tally.gated, percent=percent)


def nearest_rank(times: Sequence[float], percent: int) -> float:
    """Return a percentile by nearest rank: a time that was measured, never one in between."""
    return times[max(math.ceil(len(times) * percent / 100), 1) - 1]


def recovery_of(points: Iterable[str], cells: Sequence[DrillCell]) -> list[RecoveryTimes]:
    """Return the recovery times at each point, and at all of them last."""
    groups = [(point, [cell for cell in cells if cell.point == point]) for point in points]
    groups.append(("all", list(cells)))
    found = (
        RecoveryTimes.of(point, (c.recovery_s for c in group if c.recovery_s is not None))
        for point, group in groups
    )
    return [recovery for recovery in found if recovery is not None]


#: A call that has no such point, and a point at which nobody recovered.
NONE: Final = "-"
STEP: Final = "step"
#: At each of these a worker is killed, and another one stands by.
KILLS: Final = (*CrashPoint, *Beforehand)


def parts(report: DrillReport) -> list[list[str]]:
    """Return the points of each matrix: kills, forced waits, and what operators do."""
    kinds = (KILLS, list(ForcedWait), list(Operation))
    found = ([point for point in report.points if point in kind] for kind in kinds)
    return [points for points in found if points]


def rows_of(report: DrillReport, points: Sequence[str]) -> list[DrillTarget]:
    """Return the steps that a matrix has a row for."""
    if points[0] in list(Operation):
        drilled = {(cell.step, cell.undo) for cell in report.cells if cell.point in points}
        return [target for target in report.targets if (target.step, target.undo) in drilled]
    # What undoes waits for nobody, and a child run is a plan of its own.
    kills = points[0] in KILLS
    return [target for target in report.targets if not target.child and (kills or not target.undo)]


def rows(report: DrillReport, points: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of a matrix: a step's cells each."""
    for mode in report.modes:
        for target in rows_of(report, points):
            cells = (report.cell(target, point, mode) for point in points)
            yield [label(report, target, mode), *(cell_text(cell) for cell in cells)]


def recovery_rows(report: DrillReport, points: Sequence[str]) -> Iterator[list[str]]:
    """Yield the recovery times below a matrix of kills."""
    if points[0] not in KILLS:
        return
    by_point = {recovery.point: recovery for recovery in report.recovery}
    for name, field in (("recovery p50", "p50_s"), ("recovery p95", "p95_s")):
        times = (by_point.get(point) for point in points)
        yield [name, *(f"{getattr(time, field):.1f} s" if time else NONE for time in times)]


def tables(report: DrillReport) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the heads and the rows of each matrix."""
    for points in parts(report):
        yield [STEP, *points], [*rows(report, points), *recovery_rows(report, points)]


def label(report: DrillReport, target: DrillTarget, mode: str) -> str:
    """Return a row's name; the mode is part of it where there are several."""
    return target.label if len(report.modes) == 1 else f"{target.label}, {mode}"


def cell_text(cell: DrillCell | None) -> str:
    """Return a cell: its outcome and, of a run that was played to the point, its effects."""
    if cell is None:
        return NONE
    if cell.outcome is CellOutcome.NOT_REACHED:
        return cell.outcome.value
    return f"{cell.outcome.value}, {cell.effects}"


def headline(report: DrillReport) -> str:
    """Return the verdict in one line."""
    counts = ", ".join(f"{n} {outcome}" for outcome, n in report.counts.items() if n)
    sign = "OK" if report.ok else "NOT OK"
    return f"{sign}: {counted(len(report.cells), 'case')} in {report.plan}: {counts}."


def facts(report: DrillReport) -> Iterator[str]:
    """Yield what one has to know to read the matrix."""
    fault_free = report.fault_free
    effects = ", ".join(f"{name} {count}" for name, count in fault_free.counted.items() if count)
    yield (
        f"Each cell: how the disturbed run compares with the fault-free one ({fault_free.state}),"
        f" and the effects counted; fault-free {fault_free.effects} ({effects or 'none'})."
    )
    yield from numbers(report)
    if any(target.effect is Effect.READ for target in report.targets):
        yield "A read claims nothing: some crash points are not there for it (-)."
    if ForcedWait.PERMISSION_LOSS in report.points and not report.permission_drift.losses:
        yield "No permission was taken away: permission_loss is there for tools that need one."
    if not report.world:
        yield "No --world was named: only runs and ledgers were compared, not what is outside."
    for recovery in report.recovery:
        if recovery.point == "all":
            yield (
                f"Recovery, from the worker's death to the step's outcome, "
                f"{counted(recovery.kills, 'kill')}:"
                f" p50 {recovery.p50_s:.1f} s, p95 {recovery.p95_s:.1f} s,"
                f" longest {recovery.longest_s:.1f} s."
            )
    for violation in fault_free.violations:
        yield f"In a fault-free run: {violation}."
    yield f"Server: {report.server}. Took {report.seconds:.0f} s."


def numbers(report: DrillReport) -> Iterator[str]:
    """Yield the numbers about what ran: as approved, as allowed, and as decided."""
    found, drift = report.approval_consistency, report.permission_drift
    share = f"{found.as_approved} of {found.gated}" if found.gated else "none needed one"
    percent = f"{found.percent:g} %" if found.percent is not None else NONE
    yield f"Approval Consistency: {percent} (calls made exactly as approved: {share})."
    losses = f"{counted(drift.losses, 'time')} that the permission was taken away"
    yield f"Permission Drift: {drift.drifted} (calls made without it: {losses})."
    if (turns := report.model_turns) is not None:
        yield (
            f"Model turns: {turns.recorded} recorded, {turns.asked_again} asked again although"
            f" recorded, {turns.unrecorded} asked again before anything was recorded."
        )


def approval_lines(report: DrillReport) -> Iterator[str]:
    """Yield what was approved, and how often; the fault-free run's are shown in full."""
    given: dict[str, list[DrilledApproval]] = {}
    for approval in report.fault_free.approvals:
        given.setdefault(approval.tool, []).append(approval)
    for cell in report.cells:
        for approval in cell.approvals:
            given.setdefault(approval.tool, []).append(approval)
    for tool, approvals in given.items():
        first = approvals[0]
        yield (
            f"{report.approver!r} approved {tool} {counted(len(approvals), 'time')};"
            f" first {first.approval_id}  {compact(first.description)}  {first.params_hash}"
        )


def findings(report: DrillReport) -> Iterator[tuple[DrillCell, list[str]]]:
    """Yield every cell that is not the same world, with what there is to say about it."""
    for cell in report.cells:
        if cell.outcome not in ALIKE:
            yield cell, cell.reasons


def place(cell: DrillCell) -> str:
    """Return where a cell stands, in one line."""
    run = f", run {cell.run_id}" if cell.run_id else ""
    return f"{cell.outcome}: {cell.label} {cell.tool}:{cell.point}{run}"


def lines(report: DrillReport) -> Lines:
    """Yield the report."""
    yield ""
    for heads, body in tables(report):
        yield Table(heads, body)
        yield ""
    yield from facts(report)
    yield from approval_lines(report)
    for cell, reasons in findings(report):
        yield ""
        yield Styled(place(cell), "bold red" if cell.outcome is CellOutcome.DIFFERS else "bold")
        yield from (f"  {reason}" for reason in reasons)
    yield ""
    yield Styled(headline(report), "bold green" if report.ok else "bold red")


def text(report: DrillReport) -> str:
    """Return the report as plain text, for an assertion that has failed."""
    written = io.StringIO()
    for heads, body in tables(report):
        table = rich_table(heads, body)
        Console(file=written, width=160, color_system=None).print(table)
    found = [headline(report), *numbers(report), *report.fault_free.violations]
    for cell, reasons in findings(report):
        found += [place(cell), *(f"  {reason}" for reason in reasons)]
    return f"{written.getvalue()}\n" + "\n".join(found)
