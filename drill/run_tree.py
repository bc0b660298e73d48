"""What remains of a run and its child runs, and whether anybody was told of it (guarantee G4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.reads import (
    effects_of,
    events_of,
    interventions_of,
)
from surehand.workflows.contracts.maintenance import Unwound
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import RunState, StepState
from surehand.workflows.identity import child_run_id

Row = dict[str, Any]

#: An entry in one of these may have happened and is not undone.
_REMAINING: Final = frozenset({"claimed", "committed", "in_doubt", "partial", "compensating"})
#: An entry in one of these has had its effect, undone later or not.
_APPLIED: Final = frozenset({"committed", "compensating", "compensated"})


@dataclass
class RunTree:
    """The rows of a run and of its child runs, and of theirs."""

    run_id: str
    entries: list[Row] = field(default_factory=list)
    """Each with its ``run_id``."""
    interventions: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)

    async def add(self, ledger: Ledger, tenant: str, run_id: str) -> None:
        """Read one run."""
        entries = await ledger.transact(tenant, effects_of, run_id)
        self.entries += [{**entry, "run_id": run_id} for entry in entries]
        self.interventions += await ledger.transact(tenant, interventions_of, run_id)
        self.events += await ledger.transact(tenant, events_of, run_id)

    def effects_by_tool(self) -> dict[str, int]:
        """Return how many effects each tool has had."""
        return Counter(entry["tool"] for entry in self.entries if entry["state"] in _APPLIED)

    def described(self) -> list[str]:
        """Return all entries, in words that are the same of every run."""
        return self._described(self.entries)

    def remaining(self) -> list[str]:
        """Return those that stand, in the same words."""
        return self._described(self._remaining())

    def unreported(self, result: RunResult) -> Iterator[str]:
        """Yield what stands that a run's end does not account for, and nobody was told of.

        In a completed run one effect of each succeeded step may stand, and what that step's child
        run has left.
        """
        succeeded = {view.id for view in result.steps if view.state is StepState.SUCCEEDED}
        children = {view.child for view in result.steps if view.id in succeeded and view.child}
        told = self._asked() | {view.entry_id for view in result.uncompensated}
        accounted: set[tuple[str, str]] = set()
        for entry in self._remaining():
            if entry["entry_id"] in told:
                continue
            place = (entry["run_id"], entry["step_id"])
            if entry["run_id"] == self.run_id:
                of_result = entry["step_id"] in succeeded
            else:
                of_result = any(self._inside(entry["run_id"], child) for child in children)
            if result.state is RunState.COMPLETED and of_result and place not in accounted:
                accounted.add(place)
            else:
                yield f"{self._named(entry)}, and the run, {result.state}, says nothing of it"

    def not_unwound(self, unwound: Unwound) -> Iterator[str]:
        """Yield what stands of a run that was unwound from outside, and nobody was told of."""
        left = {one.step_id for one in unwound.left}
        for entry in self._remaining():
            own = entry["run_id"] == self.run_id
            step = entry["step_id"] if own else f"{entry['run_id']}/{entry['step_id']}"
            if entry["entry_id"] not in self._asked() and step not in left:
                yield f"{self._named(entry)}, and whoever unwound the run was told nothing of it"

    def out_of_order(self) -> Iterator[str]:
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
                    first, then = (entries[undo["undoes"]] for undo in (earlier, later))
                    yield f"{self._step(then)} came after {self._step(first)}, and was undone later"

    def clock_jumps(self) -> Iterator[str]:
        """Yield where the ledger has taken a deadline or a lease for a clock that was set back."""
        for event in self.events:
            if event["type"] == "clock.set_back":
                yield f"{event['step_id']}: a clock is said to be set back, and none was"

    def _described(self, entries: list[Row]) -> list[str]:
        return sorted(f"{self._step(e)}: {e['tool']} {e['state']}" for e in entries)

    def _remaining(self) -> list[Row]:
        return [e for e in self.entries if e["undoes"] is None and e["state"] in _REMAINING]

    def _asked(self) -> set[str]:
        """Return the entries that a human is asked about, or has given up."""
        return {
            row["entry_id"]
            for row in self.interventions
            if row["state"] == "open" or row["outcome"] == "give_up"
        }

    def _inside(self, run_id: str, child: str) -> bool:
        return run_id == child or run_id.startswith(child_run_id(child, ""))

    def _step(self, entry: Row) -> str:
        """Return a step's name among those of all runs: ``pay/refund``."""
        inside = entry["run_id"].removeprefix(self.run_id).strip("~").replace("~", "/")
        return f"{inside}/{entry['step_id']}".removeprefix("/")

    def _named(self, entry: Row) -> str:
        return f"{entry['tool']} of {self._step(entry)} ({entry['key']}) is {entry['state']}"
