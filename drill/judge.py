"""What came of the cases, and how that compares with the fault-free run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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
from surehand.drill.request import Context, Disturbance
from surehand.workflows.contracts.effects import Unwound
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.tools import MODEL, ToolSpec
from surehand.workflows.plan.plan import ITERATION

#: Shorter fresh values are not looked for in a snapshot: they would be found by chance.
SHORTEST_NAMED: Final = 4
#: Key of a snapshot under which the world counts its effects, ``{"refunds": 1}``.
EFFECTS: Final = "effects"
#: Key of a snapshot under which the world says how often models were asked.
TURNS: Final = "turns"


@dataclass(frozen=True)
class Baseline:
    """The fault-free run, and what every other one is compared with."""

    targets: list[DrillTarget]
    fault_free: FaultFree
    compared: dict[str, Any]
    remaining: list[str]


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

    def count_turns(self, lost: int) -> ModelTurns | None:
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


def list_skipped_writes(
    events: Sequence[Mapping[str, Any]], done: Disturbance | None
) -> Iterator[str]:
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


def judge_cell(
    cell: DrillCell,
    baseline: Baseline,
    played: Played,
    *,
    world: bool,
    halted: Sequence[Mapping[str, Any]] | None = None,
    in_doubt: str | None = None,
) -> DrillCell:
    beforehand = cell.point in list(Beforehand)
    lost = int(cell.tool == MODEL and cell.point in _UNRECORDED)
    turns = played.count_turns(lost)
    found = list(_compare_with_baseline(cell, baseline, played))
    question = played.question
    outcome = CellOutcome.SAME if world and not beforehand else CellOutcome.SAME_LEDGER
    if violations := [*played.violations, *list_repeated_turns(played, lost)]:
        outcome, found = CellOutcome.DIFFERS, [*violations, *found]
    elif not played.reached:
        outcome = CellOutcome.NOT_REACHED
        question = question or _NOT_REACHED[cell.point not in list(CrashPoint)]
    elif question:
        step = in_doubt or cell.step
        found = list(_compare_in_doubt(cell, step, baseline, played, halted))
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


def _compare_with_baseline(cell: DrillCell, baseline: Baseline, played: Played) -> Iterator[str]:
    """Yield what is otherwise than it would be, had nothing been done to the run."""
    if cell.point == Operation.TERMINATE:
        yield from compare_counts(played)
    elif cell.point in _RESETS:
        # What a run has done, and undone, before it was reset is not there fault-free.
        stands = {**baseline.compared, "ledger": baseline.remaining}
        yield from list_differences(stands, {**played.compared, "ledger": played.remaining})
        yield from compare_counts(played)
    elif cell.point in list(Beforehand):
        # What was done to the world beforehand is no difference of the run's.
        kept = baseline.compared.keys() - {"world"}
        expected, compared = (
            {name: part for name, part in side.items() if name in kept}
            for side in (baseline.compared, played.compared)
        )
        yield from list_differences(expected, compared)
    else:
        yield from list_differences(baseline.compared, played.compared)


def _compare_in_doubt(
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
    found = _leave_out_step(step, played.compared)
    unlike = [list(list_differences(_leave_out_step(step, one), found)) for one in halted]
    yield from min(unlike, key=len, default=[])


def _leave_out_step(step: str, compared: Mapping[str, Any]) -> dict[str, Any]:
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


def list_repeated_turns(played: Played, lost: int = 0) -> Iterator[str]:
    turns = played.count_turns(lost)
    if turns is not None and turns.asked_again:
        there = counted(turns.recorded, "turn")
        yield (
            f"models were asked {counted(turns.asked, 'time')} for {there}:"
            f" {turns.asked_again} again although recorded"
        )


def compare_counts(played: Played) -> Iterator[str]:
    """Yield that ledger and world do not agree in the number of effects."""
    effects = sum(played.counted.values())
    if effects != played.applied:
        there = counted(effects, "effect")
        yield f"the world counts {there}, the ledger {played.applied}"


def name_fresh_values(snapshot: Any, context: Context, fresh: Mapping[str, Any]) -> Any:
    """Return a snapshot in which this run's own values are written by name.

    Every text that holds a fresh value (``order-7f3a``) gets its name (``${input.order_id}``)
    instead, keys included, so that the worlds of two runs compare equal.
    """
    names = {
        value: f"${{input.{name}}}"
        for name, value in fresh.items()
        if isinstance(value, str) and len(value) >= SHORTEST_NAMED
    }
    names[context.run_id] = "${run_id}"
    longest_first = sorted(names.items(), key=lambda item: len(item[0]), reverse=True)

    def rewrite(value: Any) -> Any:
        if isinstance(value, str):
            for text, name in longest_first:
                value = value.replace(text, name)
            return value
        if isinstance(value, list):
            return [rewrite(item) for item in value]
        if isinstance(value, dict):
            return {rewrite(key): rewrite(item) for key, item in value.items()}
        return value

    return rewrite(snapshot)


def read_own_count(snapshot: Any) -> dict[str, int] | None:
    counts = snapshot.get(EFFECTS) if isinstance(snapshot, dict) else None
    if not isinstance(counts, dict) or not all(type(n) is int for n in counts.values()):
        return None
    return counts


def split_turns(snapshot: Any) -> tuple[int | None, Any]:
    """Return how often models were asked, if the snapshot says so, and all else that it says."""
    asked = snapshot.get(TURNS) if isinstance(snapshot, dict) else None
    if type(asked) is not int:
        return None, snapshot
    return asked, {name: part for name, part in snapshot.items() if name != TURNS}


def list_differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield each place where two snapshots differ, as one line."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in found:
                yield f"{place}: missing, expected {_shorten(expected[key])}"
            elif key not in expected:
                yield f"{place}: {_shorten(found[key])}, not expected"
            else:
                yield from list_differences(expected[key], found[key], place)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from list_differences(one, other, f"{where}[{index}]")
    elif isinstance(expected, list) and isinstance(found, list):
        yield f"{where}: {len(found)} items, expected {len(expected)}: {_shorten(found)}"
    elif type(expected) is not type(found) or expected != found:
        yield f"{where}: {_shorten(found)}, expected {_shorten(expected)}"


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:159]}…"
