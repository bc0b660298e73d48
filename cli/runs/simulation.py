"""What a plan would do from a moment of a recorded run; nothing is called and nothing written.

Steps that were done then are facts. From there steps become ready as in a run. A call that the run
has made later in the same way gives what it gave; what any other call would give is unknown, and so
is all that depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surehand.cli.runs.simulated_steps import (
    NOTHING_KNOWN,
    CannotHold,
    Checks,
    Known,
    Simulated,
    Steps,
)
from surehand.workflows.plan.plan import Goto, Plan, Step, names_in
from surehand.workflows.plan.references import INPUT
from surehand.workflows.plan.size import MOST_STEPS
from surehand.workflows.state.step_failure import StepFailed
from surehand.workflows.steps import rules

if TYPE_CHECKING:
    from surehand.activities.ledger.history.recorded import Recording


def simulate(
    recording: Recording, plan: Plan, checks: Checks, known: Known = NOTHING_KNOWN
) -> Simulated:
    """Return what a plan would do.

    Args:
        recording: The run, seen from the moment to begin from.
        plan: The run's plan of that moment, or what was made of it.
        checks: Conditions and tools.
        known: What was looked up in the ledger and the artifact store.
    """
    return _Simulation(recording, plan, checks, known).run()


def settled_facts(recording: Recording, checks: Checks) -> dict[str, Any]:
    """Return the outputs of a run that has ended, by step."""
    if recording.plan.code is not None:  # which knows its steps alone: all that there were
        return {one.step_id: one.output for one in recording.calls if one.end != "failed"}
    facts = simulate(recording, recording.plan, checks).facts
    return {name: value for name, value in facts.items() if name != INPUT}


class _Simulation:
    def __init__(self, recording: Recording, plan: Plan, checks: Checks, known: Known) -> None:
        self._recording = recording
        self._plan = plan
        self._checks = checks
        self._steps = Steps(
            recording, plan, checks, known, lambda other: settled_facts(other, checks)
        )
        self._settled: set[str] = set()
        source = recording.source
        taken = {} if source is None else settled_facts(source, checks)
        self._taken = {k: v for k, v in taken.items() if k in recording.taken_over}

    def run(self) -> Simulated:
        plan, ends = self._plan, None
        while ends is None:
            ready = plan.ready(frozenset(self._settled), frozenset())
            if not ready:
                break
            # What was done is a fact, whatever else comes to nothing beside it.
            step = next((one for one in ready if self._was_done(one)), ready[0])
            ends = self._settle(step)
        for step in plan.steps:
            if step.id not in self._settled:
                self._steps.row(step, "not reached", why=f"the run ends before: {ends}")
        order = {step.id: number for number, step in enumerate(plan.steps)}
        rows = sorted(self._steps.rows.values(), key=lambda row: order[plan.step(row.id).id])
        return Simulated(
            rows, self._steps.facts, ends, frozenset(self._steps.keys), self._steps.artifacts
        )

    def _was_done(self, step: Step) -> bool:
        child = self._recording.children.get(step.id)
        return (
            step.id in self._recording.done
            or step.id in self._taken
            or (child is not None and child.before)
        )

    def _settle(self, step: Step) -> str | None:
        """Take a step and what follows from it; returns why the run ends there, or ``None``."""
        plan = self._plan
        follows: Goto | None = None
        try:
            follows = self._take(step)
        except StepFailed as failed:
            if step.id not in self._steps.rows:
                self._steps.row(step, "would fail", why=str(failed))
            goes_on = rules.after_failure(plan, step, failed)
            if goes_on is None:
                self._settled.add(step.id)
                pauses = rules.waits_for_a_way_out(plan, step, failed)
                return f"step {step.id}: {failed}{' (the run would pause there)' if pauses else ''}"
            follows = goes_on.at
        self._settled.add(step.id)
        if follows is not None:
            for skipped in rules.left_out(plan, step, follows, self._settled):
                why = f"{step.id} goes on at {follows.goto}"
                self._steps.row(plan.step(skipped), "would skip", why=why)
                self._settled.add(skipped)
        return None

    def _take(self, step: Step) -> Goto | None:
        if step.id in self._taken:
            source = self._recording.source
            why = "" if source is None else f"taken over from run {source.run_id}"
            self._steps.output(step, "done", self._taken[step.id], why=why)
            return None
        if not self._was_done(step):
            gone = self._gone(step)
            if gone is not None:
                return gone.at
            if step.when is not None and not self._begins(step, step.when):
                return None
        if step.for_each is not None:
            self._each(step, step.for_each)
            return None
        return self._steps.one(step, self._steps.facts)

    def _gone(self, step: Step) -> rules.GoesOn | None:
        """Return how the run went on after a step that had failed or was rejected by then."""
        recording, plan = self._recording, self._plan
        rejected = step.id in recording.rejected
        if not (rejected or step.id in recording.failed):
            return None
        goes_on = rules.after_failure(plan, step, StepFailed("", rejected=rejected))
        if goes_on is None:
            return None
        # What they said, or how it failed, is no output of the step.
        self._steps.unknown.add(step.id)
        self._steps.row(step, "done", why="rejected" if rejected else "failed")
        return goes_on

    def _begins(self, step: Step, when: str) -> bool:
        """Return whether a step's condition is known to hold; it has its row if not."""
        names = names_in(when)
        unknown = sorted(names & self._steps.unknown)
        if unknown:
            self._steps.unknown.add(step.id)
            self._steps.row(step, "unknown", why=f"only when {when}", depends_on=unknown)
            return False
        try:
            values = rules.condition_values(when, self._steps.facts)
            holds = self._checks.holds(when, values, foreign=self._steps.foreign)
        except CannotHold as error:
            raise StepFailed(str(error)) from error
        if not holds:
            self._steps.facts[step.id] = rules.skipped(f"when: {when}")
            differs = ", the run has done it" if self._has_done(step.id) else ""
            self._steps.row(step, "would skip", why=f"not {when}{differs}")
        return holds

    def _has_done(self, step_id: str) -> bool:
        return any(call.step_id == step_id for call in self._recording.calls)

    def _each(self, step: Step, reference: str) -> None:
        unknown = self._steps.unknown_in(reference)
        if unknown:
            self._steps.unknown.add(step.id)
            self._steps.row(step, "unknown", why=f"for each of {reference}", depends_on=unknown)
            return
        items = rules.items_of(self._plan, step, self._steps.facts, None, MOST_STEPS)
        self._steps.row(step, "list", why=f"items: {len(items)}")
        each = [step.of_item(number) for number in range(len(items))]
        failed: list[StepFailed] = []
        for one, item in zip(each, items, strict=True):
            try:
                self._steps.one(one, rules.item_facts(step, item, self._steps.facts), step.item)
            except StepFailed as error:
                failed.append(error)
                if one.id not in self._steps.rows:
                    self._steps.row(one, "would fail", why=str(error))
        if failed:
            raise failed[0]
        if any(one.id in self._steps.unknown for one in each):
            self._steps.unknown.add(step.id)
        else:
            self._steps.facts[step.id] = rules.output_of_list(each, self._steps.facts)
