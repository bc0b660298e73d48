"""What a play's rows say: what was approved and allowed, and what stands of its effects."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from surehand.activities.expressions import RuleBroken, condition_holds, of_run
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history import reads
from surehand.drill.report import Tally
from surehand.workflows.canonical_json import NotCanonical
from surehand.workflows.contracts.base import RunState, StepState
from surehand.workflows.contracts.effects import Unwound
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.tools import MODEL, Effect, ToolSpec
from surehand.workflows.identity import child_run_id, identity_hash, params_hash
from surehand.workflows.plan.plan import Step
from surehand.workflows.plan.policy import ApprovalPolicy

#: How attempts end that were turned away before their tool.
_NOT_CALLED: Final = frozenset({"refused"})


def tally_calls(evidence: reads.Evidence, actor: str) -> tuple[Tally, list[str]]:
    gated = [call for call in _list_calls(evidence) if _needs_approval(evidence, call)]
    unlike = [(call, why) for call in gated if (why := _explain_difference(evidence, call))]
    drifted = list(_list_drifted_calls(evidence))
    lost = [c for c in evidence.changes if c["change"].endswith("revoked") and c["actor"] == actor]
    found = Tally(
        gated=len(gated),
        as_approved=len(gated) - len(unlike),
        losses=len(lost),
        drifted=len(drifted),
    )
    stories = [f"{_name_call(call)} is not what was approved: {why}" for call, why in unlike]
    stories += [
        f"{_name_call(call)} was made although {evidence.user} had lost the permission {permission}"
        for call, permission in drifted
    ]
    return found, stories


@dataclass(frozen=True)
class _Call:
    """One attempt that may have reached its tool."""

    id: str
    """The step's id, with its item's number where it has a list."""
    step: Step
    row: reads.Row
    claim: reads.Row | None
    """What the ledger wrote when a write was claimed."""


def _list_calls(evidence: reads.Evidence) -> Iterator[_Call]:
    claims = {(c["step_id"], c["attempt"]): c for c in evidence.claims if not c.get("undoes")}
    for row in evidence.steps:
        called = row["attempt"] > 0 and row["error_class"] not in _NOT_CALLED
        if called and row["tool"] in evidence.tools:
            claim = claims.get((row["step_id"], row["attempt"]))
            yield _Call(row["step_id"], _find_step(evidence, row), row, claim)


def _find_step(evidence: reads.Evidence, row: reads.Row) -> Step:
    """Return the step of a call; one that code has made is in no plan, and takes its defaults."""
    if evidence.plan.code is not None:
        return Step(id=row["step_id"], tool=row["tool"])
    return evidence.plan.step(row["step_id"])


def count_calls(evidence: reads.Evidence, step_id: str | None = None) -> int:
    return sum(step_id in (None, call.id) for call in _list_calls(evidence))


def count_recorded_turns(evidence: reads.Evidence) -> int:
    """Return how many turns of models are recorded, with those that have failed."""
    turns = (row for row in evidence.steps if row["tool"] == MODEL)
    return sum(row["state"] in ("succeeded", "failed") for row in turns)


def _needs_approval(evidence: reads.Evidence, call: _Call) -> bool:
    """Say whether a human had to be asked, by the plan and its tools as they were recorded."""
    if _list_requests(evidence, call):
        return True
    tool = _find_tool(evidence, call)
    own = tool.approval
    policies = [*evidence.plan.approvals(call.step), *([own] if own is not None else [])]
    if not policies:
        return False
    made = ""
    with suppress(NotCanonical):
        made = params_hash(tool.name, tool.version, call.row["input"])
    of_step = (one for one in reversed(evidence.waived) if one["step_id"] == call.id)
    waived = next((one for one in of_step if one["params_hash"] == made), None)
    if waived is None:
        return True
    # What the worker has waived is evaluated anew: only the rules of every policy can waive it.
    # A write's claim has judged it again, when the run may have read content from outside.
    judged = waived if call.claim is None else call.claim
    readings = _guess_params(
        call.row["input"], [rule.when for one in policies for rule in one.rules]
    )
    known = [{**params, **of_run(judged["foreign"])} for params in readings]
    return not any(all(_waives(one, params) for one in policies) for params in known)


def _waives(policy: ApprovalPolicy, params: Mapping[str, Any]) -> bool:
    try:
        decides = next((rule for rule in policy.rules if condition_holds(rule.when, params)), None)
    except RuleBroken:
        return False
    return decides is not None and not decides.required


def _guess_params(params: Mapping[str, Any], rules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what params may have been: of a text in JSON nobody knows whether it was a decimal."""
    ways = []
    for name, value in params.items():
        numbers = _with_decimals(value) if any(name in rule for rule in rules) else value
        ways.append([value] if numbers == value else [value, numbers])
    for values in itertools.product(*ways):
        yield dict(zip(params, values, strict=True))


def _with_decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_decimals(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_decimals(part) for part in value]
    try:
        return Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        return value


def _list_requests(evidence: reads.Evidence, call: _Call) -> list[reads.Row]:
    return [row for row in evidence.approvals if row["step_id"] == call.id]


def _explain_difference(evidence: reads.Evidence, call: _Call) -> str | None:
    """Return in what a call differs from what was approved; ``None``: in nothing."""
    approved = [row for row in _list_requests(evidence, call) if row["state"] == "approved"]
    if not approved:
        return "nobody has approved it"
    if _find_tool(evidence, call).effect is Effect.READ:
        fits = any(_same_params(evidence, call, row) for row in approved)
        ids = ", ".join(row["approval_id"] for row in approved)
        return None if fits else f"its params are not those of {ids}"
    claim = call.claim
    if claim is None:
        return "it was made without a claim"
    row = next((row for row in approved if row["approval_id"] == claim.get("approval_id")), None)
    if row is None:
        return f"its claim names {claim.get('approval_id') or 'no approval'}, not a given one"
    consumer = (row["consumed_entry"], row["consumed_generation"])
    if consumer != (claim["entry_id"], claim["generation"]):
        return f"{row['approval_id']} was used by {consumer[0] or 'nothing'}, not by it"
    # Also what stands in the claim's entry, unless a later claim has changed it.
    claimed = (claim["entry_id"], claim["fencing_token"])
    recorded = {claim["params_hash"]} | {
        entry["params_hash"]
        for entry in evidence.effects
        if (entry["entry_id"], entry["fencing_token"]) == claimed
    }
    if recorded != {row["params_hash"]}:
        others = ", ".join(sorted(recorded - {row["params_hash"]}))
        return f"approved are params {row['params_hash']}, its claim has {others}"
    if not _same_params(evidence, call, row):
        return f"its params are not those of {row['approval_id']}"
    return None


def _same_params(evidence: reads.Evidence, call: _Call, approval: reads.Row) -> bool:
    tool, params = approval["tool"], call.row["input"]
    try:
        if call.id in evidence.answered:
            # The hash covers the answers, too, which stand in no row as they are.
            return identity_hash(tool, params) == identity_hash(tool, approval["params"])
        return params_hash(tool, approval["tool_version"], params) == str(approval["params_hash"])
    except NotCanonical:
        return False


def _list_drifted_calls(evidence: reads.Evidence) -> Iterator[tuple[_Call, str]]:
    """Yield the calls that began while the acting user did not have a permission any more."""
    for call in _list_calls(evidence):
        permission, at_ms = _find_tool(evidence, call).permission, call.row["started_ms"]
        before = [c for c in evidence.changes if c["what"] == permission and c["at_ms"] <= at_ms]
        if permission is not None and before and before[-1]["change"] == "permission_revoked":
            yield call, permission


def _find_tool(evidence: reads.Evidence, call: _Call) -> ToolSpec:
    """Return the tool of an attempt; after a failure that is the step's fallback."""
    return evidence.tools[call.row["tool"]]


def _name_call(call: _Call) -> str:
    return f"{call.id} attempt {call.row['attempt']} of {call.row['tool']}"


RowOfRun = dict[str, Any]

#: An entry in one of these may have happened and is not undone.
_REMAINING: Final = frozenset({"claimed", "committed", "in_doubt", "partial", "compensating"})
#: An entry in one of these has had its effect, undone later or not.
_APPLIED: Final = frozenset({"committed", "compensating", "compensated"})


@dataclass
class RunTree:
    """The rows of a run and of its child runs, and of theirs."""

    run_id: str
    entries: list[RowOfRun] = field(default_factory=list)
    """Each with its ``run_id``."""
    interventions: list[RowOfRun] = field(default_factory=list)
    events: list[RowOfRun] = field(default_factory=list)

    async def read_run(self, ledger: Ledger, tenant: str, run_id: str) -> None:
        entries = await ledger.transact(tenant, reads.effects_of, run_id)
        self.entries += [{**entry, "run_id": run_id} for entry in entries]
        self.interventions += await ledger.transact(tenant, reads.interventions_of, run_id)
        self.events += await ledger.transact(tenant, reads.events_of, run_id)

    def count_by_tool(self) -> dict[str, int]:
        return Counter(entry["tool"] for entry in self.entries if entry["state"] in _APPLIED)

    def describe_entries(self) -> list[str]:
        """Return all entries, in words that are the same of every run."""
        return self._describe(self.entries)

    def describe_remaining(self) -> list[str]:
        """Return those that stand, in the same words."""
        return self._describe(self._list_remaining())

    def list_unreported(self, result: RunResult) -> Iterator[str]:
        """Yield what stands that a run's end does not account for, and nobody was told of.

        In a completed run one effect of each succeeded step may stand, and what that step's child
        run has left.
        """
        succeeded = {view.id for view in result.steps if view.state is StepState.SUCCEEDED}
        children = {view.child for view in result.steps if view.id in succeeded and view.child}
        told = self._find_asked() | {view.entry_id for view in result.uncompensated}
        accounted: set[tuple[str, str]] = set()
        for entry in self._list_remaining():
            if entry["entry_id"] in told:
                continue
            place = (entry["run_id"], entry["step_id"])
            if entry["run_id"] == self.run_id:
                of_result = entry["step_id"] in succeeded
            else:
                of_result = any(self._is_inside(entry["run_id"], child) for child in children)
            if result.state is RunState.COMPLETED and of_result and place not in accounted:
                accounted.add(place)
            else:
                yield f"{self._name_entry(entry)}, and the run, {result.state}, says nothing of it"

    def list_not_unwound(self, unwound: Unwound) -> Iterator[str]:
        """Yield what stands of a run that was unwound from outside, and nobody was told of."""
        left = {one.step_id for one in unwound.left}
        for entry in self._list_remaining():
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

    def _describe(self, entries: list[RowOfRun]) -> list[str]:
        return sorted(f"{self._name_step(e)}: {e['tool']} {e['state']}" for e in entries)

    def _list_remaining(self) -> list[RowOfRun]:
        return [e for e in self.entries if e["undoes"] is None and e["state"] in _REMAINING]

    def _find_asked(self) -> set[str]:
        """Return the entries that a human is asked about, or has given up."""
        return {
            row["entry_id"]
            for row in self.interventions
            if row["state"] == "open" or row["outcome"] == "give_up"
        }

    def _is_inside(self, run_id: str, child: str) -> bool:
        return run_id == child or run_id.startswith(child_run_id(child, ""))

    def _name_step(self, entry: RowOfRun) -> str:
        """Return a step's name among those of all runs: ``pay/refund``."""
        inside = entry["run_id"].removeprefix(self.run_id).strip("~").replace("~", "/")
        return f"{inside}/{entry['step_id']}".removeprefix("/")

    def _name_entry(self, entry: RowOfRun) -> str:
        return f"{entry['tool']} of {self._name_step(entry)} ({entry['key']}) is {entry['state']}"
