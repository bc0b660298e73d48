"""What came of a case: what ran as approved and allowed, what stands, and how that compares."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history import reads
from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.report import (
    CellOutcome,
    DrillCell,
    DrillTarget,
    FaultFree,
    Operation,
    Tally,
)
from surehand.drill.request import Context, Disturbance
from surehand.workflows.canonical_json import NotCanonical
from surehand.workflows.contracts.base import ENDED_STEPS, RunState, StepState
from surehand.workflows.contracts.effects import Unwound
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.tools import MODEL, Effect, ToolSpec
from surehand.workflows.identity import child_run_id, params_hash
from surehand.workflows.plain_text import counted
from surehand.workflows.plan.plan import ITERATION, Step

#: Shorter fresh values are not looked for in a snapshot: they would be found by chance.
SHORTEST_NAMED: Final = 4
#: Key of a snapshot under which the world counts its effects, ``{"refunds": 1}``.
EFFECTS: Final = "effects"
#: Key of a snapshot under which the world says how often models were asked.
TURNS: Final = "turns"
#: Differences that are kept of one cell: the first ones tell.
MOST_DIFFERENCES: Final = 20
#: Why nothing was proven, of a kill and of a forced wait.
_NOT_REACHED: Final = ("no worker has come to this point", "the run has not waited here")
#: A worker that dies here takes a model's answer with it, which nobody else knows.
_UNRECORDED: Final = (CrashPoint.DURING_CALL, CrashPoint.AFTER_CALL)
_RESETS: Final = (Operation.RESET, Operation.RESET_STEP, Operation.RESET_KILLED)
#: A step in one of these does not go on by itself.
_STANDING: Final = ENDED_STEPS | {StepState.NEEDS_INTERVENTION}
#: Nobody knows what an entry in one of these has done.
_IN_DOUBT: Final = frozenset({"claimed", "in_doubt", "partial"})
#: An entry in one of these may have happened and is not undone.
_REMAINING: Final = _IN_DOUBT | {"committed", "compensating"}
#: An entry in one of these has had its effect, undone later or not.
_APPLIED: Final = frozenset({"committed", "compensating", "compensated"})


@dataclass(frozen=True)
class Baseline:
    """The fault-free run, and what every other one is compared with."""

    targets: list[DrillTarget]
    fault_free: FaultFree
    compared: dict[str, Any]
    remaining: list[str]


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
    entries: list[dict[str, Any]] = field(default_factory=list)
    """Of the run itself."""
    remaining: list[str] = field(default_factory=list)
    """What the run and its child runs have done that is not undone."""
    applied: int = 0
    """How many effects the ledger says that they have had, undoing ones included."""
    in_doubt: int = 0
    """Of how many more it does not say whether they were made."""
    turns_recorded: int = 0
    """Turns of models that stand in the ledger."""
    turns_asked: int = 0
    """How often models were asked, by the world's own count; 0: it does not say."""
    called: dict[str, str] = field(default_factory=dict)
    """The tool that each step has called last."""
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
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


def judge_cell(
    cell: DrillCell,
    baseline: Baseline,
    played: Played,
    *,
    world: bool,
    doubtful: Disturbance | None = None,
) -> DrillCell:
    """Return the cell with its outcome; ``doubtful``: the call that a human may be asked about."""
    lost = int(cell.tool == MODEL and cell.point in _UNRECORDED)
    found = list(_compare_with_baseline(cell, baseline, played))
    question = played.question
    outcome = CellOutcome.SAME if world else CellOutcome.SAME_LEDGER
    if violations := [*played.violations, *list_repeated_turns(played, lost)]:
        outcome, found = CellOutcome.DIFFERS, [*violations, *found]
    elif not played.reached:
        outcome = CellOutcome.NOT_REACHED
        question = question or _NOT_REACHED[cell.point not in list(CrashPoint)]
    elif question:
        found = list(_compare_in_doubt(cell, doubtful, baseline, played))
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
            "tally": played.tally,
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
    else:
        yield from list_differences(baseline.compared, played.compared)


def _compare_in_doubt(
    cell: DrillCell, doubtful: Disturbance | None, baseline: Baseline, played: Played
) -> Iterator[str]:
    """Yield what is otherwise in a run that needs a human than only the call in doubt."""
    if doubtful is None or not doubtful.may_need_human:
        yield f"a human is asked, and {cell.tool} says that it settles this by itself"
        return
    step = doubtful.target.step
    for entry in played.entries:
        if entry["state"] in _IN_DOUBT and entry["step_id"] != step:
            yield f"{entry['step_id']}: {entry['tool']} {entry['state']}, and it was not disturbed"
    for id_, state in played.compared["steps"].items():
        there, own = baseline.compared["steps"].get(id_), (step, ITERATION.sub("", step))
        if state in _STANDING and state != there and id_ not in own:
            yield f"steps.{id_}: {state}, fault-free {there}"
    # The run stands, so later effects are missing; but nothing may be there twice, or be lost.
    allowed = baseline.fault_free.counted
    for name, count in played.counted.items():
        if count > allowed.get(name, 0):
            yield f"{name}: {counted(count, 'effect')}, fault-free {allowed.get(name, 0)}"
    # The world has what the ledger says was made, and of what is in doubt once each at most.
    if not 0 <= sum(played.counted.values()) - played.applied <= played.in_doubt:
        yield from compare_counts(played)


def list_repeated_turns(played: Played, lost: int = 0) -> Iterator[str]:
    """Yield that recorded turns were asked again; so many answers have died before that."""
    again = played.turns_asked - played.turns_recorded - lost
    if again > 0:
        there = counted(played.turns_recorded, "turn")
        yield (
            f"models were asked {counted(played.turns_asked, 'time')} for {there}:"
            f" {again} again although recorded"
        )


def compare_counts(played: Played) -> Iterator[str]:
    """Yield that ledger and world do not agree in the number of effects."""
    effects = sum(played.counted.values())
    if effects != played.applied:
        there = counted(effects, "effect")
        yield f"the world counts {there}, the ledger {played.applied}"


def tally_calls(evidence: reads.Evidence, actor: str) -> tuple[Tally, list[str]]:
    """Count the calls that were made as approved and as allowed, and tell of all others.

    The audit judges by events the writes of a plan's steps. What no event shows is judged by rows:
    reads, calls of steps that code and agents make, and the params that a tool was given.
    """
    gated = 0
    unlike, without = list[str](), list[str]()
    for row in list_calls(evidence):
        call = f"{row['step_id']} attempt {row['attempt']} of {row['tool']}"
        asked = [one for one in evidence.approvals if one["step_id"] == row["step_id"]]
        if asked or _needs_approval(evidence, row):
            gated += 1
            if why := _explain_difference(evidence, row, asked):
                unlike.append(f"{call} is not what was approved: {why}")
        permission = evidence.tools[row["tool"]].permission
        changes = [c for c in evidence.changes if c["what"] == permission]
        before = [c["change"] for c in changes if c["at_ms"] <= row["started_ms"]]
        if before and before[-1] == "permission_revoked":
            without.append(
                f"{call} was made although {evidence.user} had lost the permission {permission}"
            )
    lost = [c for c in evidence.changes if c["change"].endswith("revoked") and c["actor"] == actor]
    found = Tally(
        gated=gated, as_approved=gated - len(unlike), losses=len(lost), drifted=len(without)
    )
    return found, [*unlike, *without]


def list_calls(evidence: reads.Evidence, step_id: str | None = None) -> list[reads.Row]:
    """Return the attempts, of all steps or of one, that may have reached their tools."""
    return [
        row
        for row in evidence.steps
        if step_id in (None, row["step_id"])
        and row["tool"] in evidence.tools
        and row["attempt"] > 0
        # One that was refused was turned away before its tool.
        and row["error_class"] != "refused"
    ]


def count_recorded_turns(evidence: reads.Evidence) -> int:
    """Return how many turns of models are recorded, with those that have failed."""
    turns = (row for row in evidence.steps if row["tool"] == MODEL)
    return sum(row["state"] in ("succeeded", "failed") for row in turns)


def _needs_approval(evidence: reads.Evidence, row: reads.Row) -> bool:
    """Say whether a human had to be asked: there is a policy that was not waived."""
    tool, plan, step_id = evidence.tools[row["tool"]], evidence.plan, row["step_id"]
    # What code has made takes the defaults.
    step = plan.step(step_id) if plan.code is None else Step(id=step_id, tool=tool.name)
    policies = [*plan.approvals(step), *filter(None, [tool.approval])]
    if not all(any(not rule.required for rule in one.rules) for one in policies):
        return True  # No rule of it can waive it.
    waived = [one["params_hash"] for one in evidence.waived if one["step_id"] == step_id]
    return bool(policies) and _hash_params(tool.name, tool.version, row["input"]) not in waived


def _explain_difference(
    evidence: reads.Evidence, row: reads.Row, asked: Sequence[reads.Row]
) -> str | None:
    """Return in what a call differs from what was approved; ``None``: in nothing."""
    approved = [one for one in asked if one["state"] == "approved"]
    if not approved:
        return "nobody has approved it"
    if evidence.tools[row["tool"]].effect is Effect.WRITE:
        claims = {(c["step_id"], c["attempt"]): c for c in evidence.claims if not c.get("undoes")}
        claim = claims.get((row["step_id"], row["attempt"]))
        if claim is None:
            return "it was made without a claim"
        own = [claim.get(name) for name in ("approval_id", "params_hash", "entry_id", "generation")]
        used = ("approval_id", "params_hash", "consumed_entry", "consumed_generation")
        approved = [one for one in approved if [one[name] for name in used] == own]
        if not approved:
            return f"no approval was used by its claim of {claim['entry_id']}, for these params"
    if not any(_same_params(evidence, row, one) for one in approved):
        return f"its params are not those of {', '.join(one['approval_id'] for one in approved)}"
    return None


def _same_params(evidence: reads.Evidence, row: reads.Row, approval: reads.Row) -> bool:
    tool, version = approval["tool"], approval["tool_version"]
    if row["step_id"] in evidence.answered:
        # The hash covers the answers, too, which stand in no row as they are.
        approved = _hash_params(tool, version, approval["params"])
    else:
        approved = approval["params_hash"]
    return _hash_params(tool, version, row["input"]) == str(approved)


def _hash_params(tool: str, version: str, params: Any) -> str | None:
    try:
        return params_hash(tool, version, params)
    except NotCanonical:
        return None


@dataclass
class RunTree:
    """The rows of a run and of its child runs, and of theirs."""

    run_id: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    """Each with its ``run_id``."""
    interventions: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    async def read_run(self, ledger: Ledger, tenant: str, run_id: str) -> None:
        entries = await ledger.transact(tenant, reads.effects_of, run_id)
        self.entries += [{**entry, "run_id": run_id} for entry in entries]
        self.interventions += await ledger.transact(tenant, reads.interventions_of, run_id)
        self.events += await ledger.transact(tenant, reads.events_of, run_id)

    def count_by_tool(self) -> dict[str, int]:
        return Counter(entry["tool"] for entry in self.entries if entry["state"] in _APPLIED)

    def count_in_doubt(self) -> int:
        return sum(entry["state"] in _IN_DOUBT for entry in self.entries)

    def describe_entries(self, entries: list[dict[str, Any]]) -> list[str]:
        """Return entries in words that are the same of every run."""
        return sorted(f"{self._name_step(e)}: {e['tool']} {e['state']}" for e in entries)

    def list_remaining(self) -> list[dict[str, Any]]:
        """Return the entries that stand."""
        return [e for e in self.entries if e["undoes"] is None and e["state"] in _REMAINING]

    def list_unreported(self, result: RunResult) -> Iterator[str]:
        """Yield what stands that a run's end does not account for, and nobody was told of.

        In a completed run one effect of each succeeded step may stand, and what that step's child
        run has left.
        """
        succeeded = {view.id for view in result.steps if view.state is StepState.SUCCEEDED}
        children = {view.child for view in result.steps if view.id in succeeded and view.child}
        told = self._find_asked() | {view.entry_id for view in result.uncompensated}
        accounted: set[tuple[str, str]] = set()
        for entry in self.list_remaining():
            if entry["entry_id"] in told:
                continue
            place = (entry["run_id"], entry["step_id"])
            if entry["run_id"] == self.run_id:
                of_result = entry["step_id"] in succeeded
            else:
                inside = (child_run_id(child, "") for child in children)
                of_result = entry["run_id"] in children or entry["run_id"].startswith((*inside,))
            if result.state is RunState.COMPLETED and of_result and place not in accounted:
                accounted.add(place)
            else:
                yield f"{self._name_entry(entry)}, and the run, {result.state}, says nothing of it"

    def list_not_unwound(self, unwound: Unwound) -> Iterator[str]:
        """Yield what stands of a run that was unwound from outside, and nobody was told of."""
        left = {one.step_id for one in unwound.left}
        for entry in self.list_remaining():
            own = entry["run_id"] == self.run_id
            step = entry["step_id"] if own else f"{entry['run_id']}/{entry['step_id']}"
            if entry["entry_id"] not in self._find_asked() and step not in left:
                named = self._name_entry(entry)
                yield f"{named}, and whoever unwound the run was told nothing of it"

    def list_out_of_order(self) -> Iterator[str]:
        """Yield what was undone before something that had been committed after it."""
        committed = {
            event["body"]["entry_id"]: event["at"]
            for event in self.events
            if event["type"] == "effect.committed"
        }
        entries = {entry["entry_id"]: entry for entry in self.entries}
        undoing = [e for e in self.entries if e["undoes"] in committed and e["undoes"] in entries]
        undoing.sort(key=lambda undo: undo["claimed_at"])
        for number, earlier in enumerate(undoing):
            for later in undoing[number + 1 :]:
                at = committed[later["undoes"]]
                if committed[earlier["undoes"]] < at < earlier["claimed_at"]:
                    first, then = (
                        self._name_step(entries[undo["undoes"]]) for undo in (earlier, later)
                    )
                    yield f"{then} came after {first}, and was undone later"

    def list_clock_jumps(self) -> Iterator[str]:
        """Yield where the ledger has taken a deadline or a lease for a clock that was set back."""
        for event in self.events:
            if event["type"] == "clock.set_back":
                yield f"{event['step_id']}: a clock is said to be set back, and none was"

    def _find_asked(self) -> set[str]:
        """Return the entries that a human is asked about, or has given up."""
        return {
            row["entry_id"]
            for row in self.interventions
            if row["state"] == "open" or row["outcome"] == "give_up"
        }

    def _name_step(self, entry: dict[str, Any]) -> str:
        """Return a step's name among those of all runs: ``pay/refund``."""
        inside = entry["run_id"].removeprefix(self.run_id).strip("~").replace("~", "/")
        return f"{inside}/{entry['step_id']}".removeprefix("/")

    def _name_entry(self, entry: dict[str, Any]) -> str:
        return f"{entry['tool']} of {self._name_step(entry)} ({entry['key']}) is {entry['state']}"


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

    def rewrite_value(value: Any) -> Any:
        if isinstance(value, str):
            for text, name in longest_first:
                value = value.replace(text, name)
            return value
        if isinstance(value, list):
            return [rewrite_value(item) for item in value]
        if isinstance(value, dict):
            return {rewrite_value(key): rewrite_value(item) for key, item in value.items()}
        return value

    return rewrite_value(snapshot)


def read_own_count(snapshot: Any) -> dict[str, int] | None:
    counts = snapshot.get(EFFECTS) if isinstance(snapshot, dict) else None
    if not isinstance(counts, dict) or not all(type(n) is int for n in counts.values()):
        return None
    return counts


def split_turns(snapshot: Any) -> tuple[int, Any]:
    """Return how often models were asked, if the snapshot says so, and all else that it says."""
    asked = snapshot.get(TURNS) if isinstance(snapshot, dict) else None
    if type(asked) is not int:
        return 0, snapshot
    return asked, {name: part for name, part in snapshot.items() if name != TURNS}


def list_differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield each place where two snapshots differ, as one line."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in found:
                yield f"{place}: missing, expected {_shorten_value(expected[key])}"
            elif key not in expected:
                yield f"{place}: {_shorten_value(found[key])}, not expected"
            else:
                yield from list_differences(expected[key], found[key], place)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from list_differences(one, other, f"{where}[{index}]")
    elif isinstance(expected, list) and isinstance(found, list):
        yield f"{where}: {len(found)} items, expected {len(expected)}: {_shorten_value(found)}"
    elif type(expected) is not type(found) or expected != found:
        yield f"{where}: {_shorten_value(found)}, expected {_shorten_value(expected)}"


def _shorten_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:159]}…"
