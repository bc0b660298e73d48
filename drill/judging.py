"""What a case of a drill shows, held against the fault-free run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.verb.text import counted
from surehand.drill.played import Played
from surehand.drill.points import Beforehand, Operation
from surehand.drill.report import Cell, CellOutcome
from surehand.drill.state import Baseline
from surehand.drill.world import differences

#: Differences that are kept of one cell: the first ones tell.
MOST_DIFFERENCES: Final = 20
#: Why nothing was proven, of a kill and of an interruption.
_NOT_REACHED: Final = ("no worker has come to this point", "the run has not waited here")
_RESETS: Final = (Operation.RESET, Operation.RESET_STEP, Operation.RESET_KILLED)


def judged(cell: Cell, baseline: Baseline, played: Played, *, world: bool) -> Cell:
    """Return a cell with what its case has shown.

    Args:
        cell: What was to be done to its run, and where.
        baseline: What the case is compared with.
        played: What came of it.
        world: Whether the world outside was looked at, too.
    """
    beforehand = cell.point in list(Beforehand)
    found = list(_differences(cell, baseline, played))
    question = played.question
    outcome = CellOutcome.SAME if world and not beforehand else CellOutcome.SAME_LEDGER
    if played.violations:
        outcome, found = CellOutcome.DIFFERS, [*played.violations, *found]
    elif not played.reached:
        outcome = CellOutcome.NOT_REACHED
        question = question or _NOT_REACHED[cell.point not in list(CrashPoint)]
    elif question and cell.point in list(Operation):
        # What stands beside it, nobody is asked about: that would be a violation.
        outcome, found = CellOutcome.NEEDS_HUMAN, []
    elif question:
        # The run stands, so later effects are missing; but nothing may be there twice.
        allowed = baseline.fault_free.counted
        found = [
            f"{name}: {counted(count, 'effect')}, fault-free {allowed.get(name, 0)}"
            for name, count in played.counted.items()
            if count > allowed.get(name, 0)
        ]
        outcome = CellOutcome.DIFFERS if found else CellOutcome.NEEDS_HUMAN
    elif found:
        outcome = CellOutcome.DIFFERS
    elif cell.point == Operation.TERMINATE:
        outcome = CellOutcome.UNDONE
    recovery = played.recovery_s
    return cell.model_copy(
        update={
            "outcome": outcome,
            "run_id": played.run_id,
            "effects": sum(played.counted.values()),
            "recovery_s": None if recovery is None else round(recovery, 2),
            "seconds": round(played.seconds, 1),
            "differences": found[:MOST_DIFFERENCES],
            "question": question,
            "approvals": played.approvals,
            "tally": played.tally,
        }
    )


def _differences(cell: Cell, baseline: Baseline, played: Played) -> Iterator[str]:
    """Yield what is otherwise than it would be, had nothing been done to the run."""
    if cell.point == Operation.TERMINATE:
        yield from _uncounted(baseline, played)
    elif cell.point in _RESETS:
        # What a run has done, and undone, before it was reset is not there fault-free.
        stands = {**baseline.compared, "ledger": baseline.standing}
        yield from differences(stands, {**played.compared, "ledger": played.standing})
        yield from _uncounted(baseline, played)
    elif cell.point in list(Beforehand):
        # What was done to the world beforehand is no difference of the run's.
        kept = baseline.compared.keys() - {"world"}
        expected, compared = (
            {name: part for name, part in side.items() if name in kept}
            for side in (baseline.compared, played.compared)
        )
        yield from differences(expected, compared)
    else:
        yield from differences(baseline.compared, played.compared)


def _uncounted(baseline: Baseline, played: Played) -> Iterator[str]:
    """Yield that ledger and world do not agree, where they did of the fault-free run."""
    effects = sum(played.counted.values())
    if baseline.fault_free.effects == baseline.applied and effects != played.applied:
        there = counted(effects, "effect")
        yield f"the world counts {there}, the ledger {played.applied}"
