"""What one case is, and what came of it, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.points import Beforehand, Interruption, Operation, Point
from surehand.drill.report import DrilledApproval, Tally, Target
from surehand.drill.world import counted
from surehand.workflows.contracts.maintenance import Unwound
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.plan.durability import Durability


@dataclass(frozen=True)
class Disturbance:
    """What a case does to its run, and where."""

    target: Target
    point: Point
    mode: Durability = Durability.SYNC
    """How durable its run is."""
    behind: tuple[str, ...] = ()
    """Steps behind which the run waits for an operator; none: behind the target."""

    @property
    def interruption(self) -> Interruption | None:
        """Return how the run is made to wait, if that is what is done to it."""
        return self.point if isinstance(self.point, Interruption) else None

    @property
    def operation(self) -> Operation | None:
        """Return what an operator does, if that is what is done to it."""
        return self.point if isinstance(self.point, Operation) else None

    @property
    def crash_at(self) -> str:
        """Return the crash point as the setting ``SUREHAND_CRASH_AT``; empty: no worker dies."""
        point = self.operation.crash_point if self.operation else self.point
        if isinstance(point, Beforehand):
            point = CrashPoint.AFTER_CLAIM
        if not isinstance(point, CrashPoint):
            return ""
        return f"{self.target.tool}:{point}@{self.target.step}"


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
    standing: list[str] = field(default_factory=list)
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
    by_world = counted(snapshot)
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
