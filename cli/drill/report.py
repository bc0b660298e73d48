"""What a drill has found: the shape of ``drill --json`` and of its report files. Add-only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from functools import reduce
from typing import Final, Self

from cli.shapes import Shape
from workflows.contracts import Effect


class CellOutcome(StrEnum):
    """How the run of one cell compares with the fault-free run."""

    SAME = "same world"
    SAME_LEDGER = "same ledger"
    """No world was named: run and ledger are the same, what is outside was not compared."""
    DIFFERS = "differs"
    NEEDS_HUMAN = "needs human"
    """The run has asked a human, as a tool without recovery must; nothing was done twice."""
    UNDONE = "undone"
    """It was terminated and unwound: nothing of it stands that nobody was told of."""
    NOT_REACHED = "not reached"
    """No worker was killed, the run was not interrupted: this cell proves nothing."""


#: Outcomes with which a drill has proven what it was asked to.
GOOD: Final = frozenset(CellOutcome) - {CellOutcome.DIFFERS, CellOutcome.NOT_REACHED}
#: Outcomes of which there is no more to say.
ALIKE: Final = GOOD - {CellOutcome.NEEDS_HUMAN}


class Target(Shape):
    """A row of the matrix: a step's tool call or child run, or the call that undoes it."""

    step: str
    tool: str
    effect: Effect | None
    """``None``: the fault-free run has never called it."""
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


class Cell(Shape):
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
    violations: list[str] = []
    """What should not have happened in them."""


class Recovery(Shape):
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
    targets: list[Target]
    cells: list[Cell]
    counts: dict[CellOutcome, int]
    recovery: list[Recovery]
    approval_consistency: ApprovalConsistency = ApprovalConsistency(
        as_approved=0, gated=0, percent=None
    )
    permission_drift: PermissionDrift = PermissionDrift(drifted=0, losses=0)

    def cell(self, target: Target, point: str, mode: str) -> Cell | None:
        """Return a cell of the matrix; ``None`` where the call has no such point."""
        for cell in self.cells:
            place = (cell.step, cell.undo, cell.point, cell.mode)
            if place == (target.step, target.undo, point, mode):
                return cell
        return None

    def __str__(self) -> str:
        """Return the matrix and all that is wrong, as text."""
        from cli.drill.matrix import text

        return text(self)


def added_up(tallies: Iterable[Tally]) -> Tally:
    """Return the tallies of several plays together."""
    return reduce(Tally.plus, tallies, Tally())


def consistency_of(tally: Tally) -> ApprovalConsistency:
    """Return the Approval Consistency of what was counted."""
    # Rounded down: a single call among thousands must not vanish in a 100.
    percent = math.floor(1000 * tally.as_approved / tally.gated) / 10 if tally.gated else None
    return ApprovalConsistency(as_approved=tally.as_approved, gated=tally.gated, percent=percent)


def nearest_rank(times: Sequence[float], percent: int) -> float:
    """Return a percentile by nearest rank: a time that was measured, never one in between.

    Args:
        times: Sorted, not empty.
        percent: Above 0, at most 100.
    """
    return times[max(math.ceil(len(times) * percent / 100), 1) - 1]


def recovery_of(points: Iterable[str], cells: Sequence[Cell]) -> list[Recovery]:
    """Return the recovery times at each point, and at all of them last."""
    groups = [(point, [cell for cell in cells if cell.point == point]) for point in points]
    groups.append(("all", list(cells)))
    found = (
        Recovery.of(point, (c.recovery_s for c in group if c.recovery_s is not None))
        for point, group in groups
    )
    return [recovery for recovery in found if recovery is not None]
