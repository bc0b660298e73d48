"""A drill's report as text: the matrix, recovery times, and all that is not the same world."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console

from activities.crashpoints import CrashPoint
from cli.drill.points import Beforehand, Interruption, Operation
from cli.drill.report import ALIKE, Cell, CellOutcome, DrilledApproval, DrillReport, Target
from cli.printer import Printer, rich_table
from cli.text import compact, counted
from workflows.contracts import Effect

#: A call that has no such point, and a point at which nobody recovered.
NONE: Final = "-"
STEP: Final = "step"
#: At each of these a worker is killed, and another one stands by.
KILLS: Final = (*CrashPoint, *Beforehand)


def parts(report: DrillReport) -> list[list[str]]:
    """Return the points of each matrix: kills, interruptions, and what operators do."""
    kinds = (KILLS, list(Interruption), list(Operation))
    found = ([point for point in report.points if point in kind] for kind in kinds)
    return [points for points in found if points]


def rows_of(report: DrillReport, points: Sequence[str]) -> list[Target]:
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


def label(report: DrillReport, target: Target, mode: str) -> str:
    """Return a row's name; the mode is part of it where there are several."""
    return target.label if len(report.modes) == 1 else f"{target.label}, {mode}"


def cell_text(cell: Cell | None) -> str:
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
    if Interruption.PERMISSION_LOSS in report.points and not report.permission_drift.losses:
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
    """Yield the two numbers about what ran: as approved, and as allowed."""
    found, drift = report.approval_consistency, report.permission_drift
    share = f"{found.as_approved} of {found.gated}" if found.gated else "none needed one"
    percent = f"{found.percent:g} %" if found.percent is not None else NONE
    yield f"Approval Consistency: {percent} (calls made exactly as approved: {share})."
    losses = f"{counted(drift.losses, 'time')} that the permission was taken away"
    yield f"Permission Drift: {drift.drifted} (calls made without it: {losses})."


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


def findings(report: DrillReport) -> Iterator[tuple[Cell, list[str]]]:
    """Yield every cell that is not the same world, with what there is to say about it."""
    for cell in report.cells:
        if cell.outcome not in ALIKE:
            yield cell, cell.differences or ([cell.question] if cell.question else [])


def place(cell: Cell) -> str:
    """Return where a cell stands, in one line."""
    undo = " (undo)" if cell.undo else ""
    run = f", run {cell.run_id}" if cell.run_id else ""
    return f"{cell.outcome}: {cell.step}{undo} {cell.tool}:{cell.point}{run}"


def show(printer: Printer, report: DrillReport) -> None:
    """Print the report."""
    printer.say()
    for heads, body in tables(report):
        printer.table(heads, body)
        printer.say()
    for line in (*facts(report), *approval_lines(report)):
        printer.say(line)
    for cell, reasons in findings(report):
        printer.say()
        printer.say(place(cell), "bold red" if cell.outcome is CellOutcome.DIFFERS else "bold")
        for reason in reasons:
            printer.say(f"  {reason}")
    printer.say()
    printer.say(headline(report), "bold green" if report.ok else "bold red")


def text(report: DrillReport) -> str:
    """Return the report as plain text, for an assertion that has failed."""
    written = io.StringIO()
    for heads, body in tables(report):
        table = rich_table(heads, body)
        Console(file=written, width=160, color_system=None).print(table)
    lines = [headline(report), *numbers(report), *report.fault_free.violations]
    for cell, reasons in findings(report):
        lines += [place(cell), *(f"  {reason}" for reason in reasons)]
    return f"{written.getvalue()}\n" + "\n".join(lines)
