"""What came of the cases, how that compares with the fault-free run, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from surehand.activities.worker.crash_points import CrashPoint
from surehand.cli.printer import counted
from surehand.drill.report import (
    Beforehand,
    CellOutcome,
    DrillCell,
    DrilledApproval,
    DrillTarget,
    FaultFree,
    ModelTurns,
    Operation,
    Tally,
)
from surehand.drill.request import Disturbance
from surehand.drill.world import differences
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.maintenance import Unwound
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.tools import MODEL, ToolSpec
from surehand.workflows.plan.plan import ITERATION


class Baseline(BaseModel):
    """The fault-free run, and what every other one is compared with."""

    fingerprint: str
    targets: list[DrillTarget]
    fault_free: FaultFree
    compared: dict[str, Any]
    remaining: list[str]


class DrillState:
    """A file of lines: the baseline first, then a line for each cell as it is done."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self, fingerprint: str) -> tuple[Baseline, list[DrillCell]] | None:
        """Return what an earlier drill has left; ``None`` if there was none.

        A line that was cut off when the drill was killed is left out.
        """
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"--resume: {self.file} cannot be read: {error}") from error
        whole = [line for line in lines if line.endswith("\n")]
        if not whole:
            return None
        try:
            baseline = Baseline.model_validate_json(whole[0])
            cells = [DrillCell.model_validate_json(line) for line in whole[1:]]
        except ValidationError as error:
            raise WrongUse(f"--resume: {self.file} is not the state of a drill") from error
        if baseline.fingerprint != fingerprint:
            raise WrongUse(
                f"--resume: {self.file} is of another drill (plan, tools, world or fresh differ):"
                " leave --resume out to begin anew"
            )
        return baseline, cells

    def begin(self, baseline: Baseline, cells: Iterable[DrillCell] = ()) -> None:
        """Write the file anew."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = [baseline.model_dump_json(), *(cell.model_dump_json() for cell in cells)]
        self.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def add(self, cell: DrillCell) -> None:
        """Add a cell that is done."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{cell.model_dump_json()}\n")


#: Differences that are kept of one cell: the first ones tell.
MOST_DIFFERENCES: Final = 20
#: Why nothing was proven, of a kill and of a forced wait.
_NOT_REACHED: Final = ("no worker has come to this point", "the run has not waited here")
#: A worker that dies here takes a model's answer with it, which nobody else knows.
_UNRECORDED: Final = (CrashPoint.DURING_CALL, CrashPoint.AFTER_CALL)
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
    """Effects by the world's own count; without one, by the ledger's."""
    approvals: list[DrilledApproval] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    """Of the run itself."""
    remaining: list[str] = field(default_factory=list)
    """What the run and its child runs have done that is not undone."""
    applied: int = 0
    """How many effects the ledger says that they have had, undoing ones included."""
    turns_recorded: int = 0
    """Turns of models that stand in the ledger."""
    turns_asked: int | None = None
    """How often models were asked, by the world's own count; ``None``: it does not say."""
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    """By step, those that were called."""
    recorded: Mapping[str, ToolSpec] = field(default_factory=dict)
    """By name, those that the run may call, undoing ones included."""
    reached: bool = False
    """Whether the worker was killed, or the run was interrupted, as it was meant to be."""
    tally: Tally = field(default_factory=Tally)
    violations: list[str] = field(default_factory=list)
    """What should not have happened, whatever the world looks like."""
    recovery_s: float | None = None
    seconds: float = 0
    unwound: Unwound | None = None
    """What became of the effects of a run that was terminated."""

    def turns_beside(self, lost: int) -> ModelTurns | None:
        """Return the turns, of which so many answers may have died before they were recorded."""
        if self.turns_asked is None:
            return None
        more = max(self.turns_asked - self.turns_recorded, 0)
        unrecorded = min(more, lost)
        return ModelTurns(
            asked=self.turns_asked,
            recorded=self.turns_recorded,
            unrecorded=unrecorded,
            asked_again=more - unrecorded,
        )


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


def judged(
    cell: DrillCell,
    baseline: Baseline,
    played: Played,
    *,
    world: bool,
    halted: Sequence[Mapping[str, Any]] | None = None,
    in_doubt: str | None = None,
) -> DrillCell:
    """Return a cell with what its case has shown."""
    beforehand = cell.point in list(Beforehand)
    lost = int(cell.tool == MODEL and cell.point in _UNRECORDED)
    turns = played.turns_beside(lost)
    found = list(_differences(cell, baseline, played))
    question = played.question
    outcome = CellOutcome.SAME if world and not beforehand else CellOutcome.SAME_LEDGER
    if violations := [*played.violations, *asked_again(played, lost)]:
        outcome, found = CellOutcome.DIFFERS, [*violations, *found]
    elif not played.reached:
        outcome = CellOutcome.NOT_REACHED
        question = question or _NOT_REACHED[cell.point not in list(CrashPoint)]
    elif question:
        step = in_doubt or cell.step
        found = list(_differences_in_doubt(cell, step, baseline, played, halted))
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
            "turns": turns,
        }
    )


def _differences(cell: DrillCell, baseline: Baseline, played: Played) -> Iterator[str]:
    """Yield what is otherwise than it would be, had nothing been done to the run."""
    if cell.point == Operation.TERMINATE:
        yield from uncounted(played)
    elif cell.point in _RESETS:
        # What a run has done, and undone, before it was reset is not there fault-free.
        stands = {**baseline.compared, "ledger": baseline.remaining}
        yield from differences(stands, {**played.compared, "ledger": played.remaining})
        yield from uncounted(played)
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


def _differences_in_doubt(
    cell: DrillCell,
    step: str,
    baseline: Baseline,
    played: Played,
    halted: Sequence[Mapping[str, Any]] | None,
) -> Iterator[str]:
    """Yield what is otherwise in a run that needs a human than only the call in doubt."""
    if halted is None:
        yield f"a human is asked, and {cell.tool} says that it settles this by itself"
        return
    # The run stands, so later effects are missing; but nothing may be there twice.
    allowed = baseline.fault_free.counted
    for name, count in played.counted.items():
        if count > allowed.get(name, 0):
            yield f"{name}: {counted(count, 'effect')}, fault-free {allowed.get(name, 0)}"
    found = _around(step, played.compared)
    unlike = [list(differences(_around(step, one), found)) for one in halted]
    yield from min(unlike, key=len, default=[])


def _around(step: str, compared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run has left, without how it stands itself, and the step in doubt."""
    own = f"{step}: "
    around = {name: part for name, part in compared.items() if name != "run"}
    around["steps"] = {
        id_: state
        for id_, state in compared["steps"].items()
        if id_ not in (step, ITERATION.sub("", step))
    }
    around["ledger"] = [line for line in compared["ledger"] if not line.startswith(own)]
    return around


def asked_again(played: Played, lost: int = 0) -> Iterator[str]:
    """Yield that models were asked for turns that were recorded already."""
    turns = played.turns_beside(lost)
    if turns is not None and turns.asked_again:
        there = counted(turns.recorded, "turn")
        yield (
            f"models were asked {counted(turns.asked, 'time')} for {there}:"
            f" {turns.asked_again} again although recorded"
        )


def uncounted(played: Played) -> Iterator[str]:
    """Yield that ledger and world do not agree in the number of effects."""
    effects = sum(played.counted.values())
    if effects != played.applied:
        there = counted(effects, "effect")
        yield f"the world counts {there}, the ledger {played.applied}"
