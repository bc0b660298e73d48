"""What came of one case, and how that compares with the fault-free run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.verb.text import counted
from surehand.drill.disturbance import Disturbance
from surehand.drill.points import Beforehand, Operation
from surehand.drill.report import Cell, CellOutcome, DrilledApproval, Tally
from surehand.drill.state import Baseline
from surehand.drill.world import counted as counted_by_world
from surehand.drill.world import differences
from surehand.workflows.contracts.maintenance import Unwound
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.tools import ToolSpec

#: Differences that are kept of one cell: the first ones tell.
MOST_DIFFERENCES: Final = 20
#: Why nothing was proven, of a kill and of an interruption.
_NOT_REACHED: Final = ("no worker has come to this point", "the run has not waited here")
_RESETS: Final = (Operation.RESET, Operation.RESET_STEP, Operation.RESET_KILLED)


@dataclass
class Played:
    """What came of one case."""

    run_id: str
    result: RunResult | None = None
    """``None``: it has none."""
    no_end: str = ""
    """Why it has none."""
    question: str = ""
    """What the run asks a human; empty if it has ended."""
    compared: dict[str, Any] = field(default_factory=dict)
    """The end of the run, its ledger entries and the world: what must be as fault-free."""
    counted: dict[str, int] = field(default_factory=dict)
    approvals: list[DrilledApproval] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    """Of the run itself."""
    remaining: list[str] = field(default_factory=list)
    """What the run and its child runs have done that is not undone."""
    applied: int = 0
    """How many effects the ledger says that they have had, undoing ones included."""
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    reached: bool = False
    """Whether the worker was killed, or the run was interrupted, as it was meant to be."""
    tally: Tally = field(default_factory=Tally)
    violations: list[str] = field(default_factory=list)
    """What should not have happened, whatever the world looks like."""
    recovery_s: float | None = None
    seconds: float = 0
    unwound: Unwound | None = None
    """What became of the effects of a run that was terminated."""


def count_of(snapshot: Any, entries: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many effects the world counted; without its word, the ledger's."""
    by_world = counted_by_world(snapshot)
    if by_world is not None:
        return by_world
    counts: dict[str, int] = {}
    for entry in entries:
        if entry["state"] in ("committed", "compensating", "compensated"):
            counts[entry["tool"]] = counts.get(entry["tool"], 0) + 1
    return counts


def skipped(events: Sequence[Mapping[str, Any]], done: Disturbance | None) -> Iterator[str]:
    """Yield what was recorded as made although its worker had died before the call."""
    if done is None or not isinstance(done.point, Beforehand):
        return
    for event in events:
        made = event["type"] == "effect.committed" and event["step_id"] == done.target.step
        if made and event["body"].get("rule") == "lookup":
            yield (
                f"{done.target.step}: {done.target.tool} was skipped in silence: its lookup took"
                ' for its effect what was so before; declare lookup_by="state"'
            )


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
        stands = {**baseline.compared, "ledger": baseline.remaining}
        yield from differences(stands, {**played.compared, "ledger": played.remaining})
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
