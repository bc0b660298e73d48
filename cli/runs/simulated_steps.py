"""One step of ``simulate``: done, as recorded, or what it would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from surehand.cli.plans.shapes import Asks, HeldKey, Outcome, SimulatedStep
from surehand.workflows.contracts.artifacts import Artifact
from surehand.workflows.contracts.interrupts import event_question
from surehand.workflows.plan.plan import ASKING, CHILD_PLAN, WAITING, Goto, Place, Plan, Step
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.plan.references import INPUT, ReferenceUnresolved, references
from surehand.workflows.state.step_failure import StepFailed
from surehand.workflows.steps import rules
from surehand.workflows.steps.deferred import fill_in

if TYPE_CHECKING:
    from surehand.activities.ledger.history.recorded import KeyEntry, RecordedCall, Recording


class CannotHold(ValueError):
    """A condition cannot be evaluated; the message says which, and why."""


@dataclass(frozen=True)
class CheckedCall:
    """A call as far as it can be looked at without making it."""

    params: Any
    """As the tool's model has them, where the tool is loaded; else as given. Null: not known."""
    params_hash: str | None = None
    approval: Asks = "no"
    approval_text: str = ""
    key: str | None = None
    identities: tuple[str, ...] = ()
    """The hashes that an entry of its key has if it is of the same call."""
    problem: str | None = None
    """Why the call would be refused."""


class Checks(Protocol):
    """What needs the worker's own code."""

    def holds(self, expression: str, values: Mapping[str, Any], *, foreign: bool) -> bool:
        """Return whether a condition is true; raises ``CannotHold``.

        Args:
            expression: The condition.
            values: What it names of steps and input.
            foreign: Whether the run has read content from outside.
        """

    def call(
        self,
        step_id: str,
        tool: str,
        params: Any,
        policies: Sequence[ApprovalPolicy],
        *,
        foreign: bool,
    ) -> CheckedCall:
        """Look at a call; ``params`` is ``None`` where they are not known."""

    def brings_foreign(self, tool: str) -> bool:
        """Return whether what a tool returns is content from outside."""


@dataclass(frozen=True)
class Known:
    """What was looked up: keys by tool and key, contents of artifacts by SHA-256."""

    keys: Mapping[tuple[str, str], KeyEntry | None]
    contents: Mapping[str, Any]


@dataclass(frozen=True)
class Simulated:
    """What the plan would do."""

    steps: list[SimulatedStep]
    facts: dict[str, Any]
    """``input`` and the outputs that are known."""
    ends: str | None
    keys: frozenset[tuple[str, str]]
    """Business keys, by tool, whose entries are not looked up yet: simulate again with them."""
    artifacts: dict[str, Artifact]
    """The same of artifacts that params reach into, by SHA-256."""


NOTHING_KNOWN: Final = Known({}, {})


_PLACES: Final[tuple[Place, ...]] = ("before", "after")


class Steps:
    """Takes the steps of one simulation, under no condition and of no list."""

    def __init__(
        self,
        recording: Recording,
        plan: Plan,
        checks: Checks,
        known: Known,
        outputs_of: Callable[[Recording], dict[str, Any]],
    ) -> None:
        """Begin with the plan's input.

        Args:
            recording: The run.
            plan: The plan, changed or not.
            checks: The tools.
            known: What was looked up.
            outputs_of: Returns the outputs of a run that has ended, by step.
        """
        self._recording = recording
        self._plan = plan
        self._checks = checks
        self._known = known
        self._outputs_of = outputs_of
        self.facts: dict[str, Any] = {INPUT: plan.input}
        self.unknown: set[str] = set()
        """Steps whose outputs are not known."""
        self.rows: dict[str, SimulatedStep] = {}
        self.foreign = recording.foreign
        """Whether the run has read content from outside by the step that is taken next."""
        self.keys: set[tuple[str, str]] = set()
        """Still to be looked up, as ``Simulated`` has them."""
        self.artifacts: dict[str, Artifact] = {}

    def one(self, step: Step, facts: Mapping[str, Any], local: str = "") -> Goto | None:
        """Take one step, or one item of a list; returns where to go on, if its answer says so.

        Args:
            step: The step.
            facts: What its references mean.
            local: The name of the item among them.

        Raises:
            StepFailed: It would fail.
        """
        if step.plan is not None:
            follows = self._child(step, step.plan, facts, local)
            self.foreign = self.foreign or self._reads_foreign(step.plan)
            return follows
        if step.id in self._recording.done:
            call = self._recorded(step.id, lambda one: one.before)
            if call is not None:
                return self._end(step, "done", call)
        said: dict[str, Any]
        if step.ask is not None:
            said = {"question": step.ask.question, "answer": step.ask.answer}
            unknown = self.unknown_in(step.ask.question, local)
            if not unknown:
                said["question"] = rules.question_of(step.ask, facts)
            return self._asked(step, "would ask", said, unknown)
        if step.wait is not None:
            unknown, about = self.unknown_in(step.wait.about, local), step.wait.about
            if not unknown:
                about = rules.about_of(step.wait, facts)
            said = {"question": event_question(step.wait.event, about)}
            return self._asked(step, "would wait", said, unknown)
        follows = self._call(step, facts, local)
        self.foreign = self.foreign or self._checks.brings_foreign(step.tool)
        return follows

    def _reads_foreign(self, plan: Plan) -> bool:
        """Return whether any step of a child run may bring in content from outside."""
        return any(
            self._reads_foreign(step.plan) if step.plan else self._checks.brings_foreign(tool)
            for step in plan.steps
            for tool in (step.tool, step.fallback.tool if step.fallback else step.tool)
        )

    def _child(self, step: Step, plan: Plan, facts: Mapping[str, Any], local: str) -> Goto | None:
        child = self._recording.children.get(step.id)
        unknown = self.unknown_in(step.params, local)
        started = None if unknown else rules.child_plan(plan, rules.params_of(step, facts)[0])
        if child is not None and (child.before or child.plan == started):
            skipped = {one.id: None for one in child.recording.plan.steps}
            output = {**skipped, **self._outputs_of(child.recording)}
            why = f"child run {child.run_id}"
            outcome: Outcome = "done" if child.before else "as recorded"
            self.output(step, outcome, output, why=why)
            return None
        self.unknown.add(step.id)
        why = f"plan {plan.name}"
        if child is not None and not unknown:
            why += ": the run has started it with another input or plan"
        self.row(step, "would run plan", why=why, depends_on=unknown, output="unknown")
        return None

    def _asked(
        self,
        step: Step,
        would: Outcome,
        said: dict[str, Any],
        unknown: list[str],
    ) -> Goto | None:
        if not unknown:
            does = ASKING if would == "would ask" else WAITING
            call = self._recorded(
                step.id,
                lambda one: (
                    one.tool == does
                    and one.end == "succeeded"
                    and said.items() <= one.params.items()
                ),
            )
            if call is not None:
                return self._end(step, "as recorded", call)
        self.unknown.add(step.id)
        why = str(said["question"])
        self.row(step, would, why=why, depends_on=unknown, output="unknown")
        return None

    def _call(self, step: Step, facts: Mapping[str, Any], local: str) -> Goto | None:
        policies = self._plan.approvals(step)
        unknown = self.unknown_in(step.params, local)
        params = None if unknown else self._params(step, facts)
        checked = self._checks.call(*(step.id, step.tool, params, policies), foreign=self.foreign)
        if checked.problem is not None:
            raise StepFailed(checked.problem)
        shown: dict[str, Any] = {
            "params": checked.params,
            "params_hash": checked.params_hash,
            "approval": checked.approval,
            "approval_text": checked.approval_text,
            "key": checked.key,
        }
        if params is None:
            self.unknown.add(step.id)
            why = "" if unknown else "its params reach into an artifact"
            self.row(step, "would call", why=why, depends_on=unknown, output="unknown", **shown)
            return None
        same = self._recorded(
            step.id, lambda one: one.tool == step.tool and one.params == checked.params
        )
        if same is not None and same.end != "failed":
            return self._end(step, "as recorded", same, **shown)
        why = self._differs(step, same, checked)
        held = self._held(step.tool, checked)
        if held is not None:
            entry, shape = held
            shown["held"] = shape
            text = f"{checked.key} is {entry.state} (step {entry.step_id}, run {entry.run_id})"
            if shape.same_params and entry.state == "committed":
                why = f"{text}: no second effect, its receipt is taken"
                self.foreign = self.foreign or entry.foreign_receipt
                self.output(step, "would replay", entry.receipt, why=why, **shown)
                return None
            if not shape.same_params:
                text += " with other params: refused as long as that stands"
            why = f"{why}; {text}" if why else text
        instead = rules.fallback_of(step)
        if same is not None and instead is not None:
            return self._call(instead, facts, local)
        on_no = self._plan.on_no(step)
        if isinstance(on_no, Goto):
            why = f"{why}; goes on at {on_no.goto} if it answers no".removeprefix("; ")
        self.unknown.add(step.id)
        self.row(step, "would call", why=why, output="unknown", **shown)
        return None

    def _params(self, step: Step, facts: Mapping[str, Any]) -> Any:
        """Return a call's params; ``None`` where they reach into an artifact not read yet."""
        params, late = rules.params_of(step, facts)
        try:
            wanted = {name: one for item in late for name, one in item.artifacts.items()}
            unread = {
                one.sha256: one for one in wanted.values() if one.sha256 not in self._known.contents
            }
            self.artifacts |= unread
            if unread:
                return None
            contents = {name: self._known.contents[one.sha256] for name, one in wanted.items()}
            fill_in(params, late, contents)
        except ReferenceUnresolved as error:
            raise StepFailed(str(error)) from error
        return params

    def _differs(self, step: Step, same: RecordedCall | None, checked: CheckedCall) -> str:
        """Return how a call differs from what the run has done in this step."""
        if same is not None:
            return f"it failed in the run: {same.error}"
        call = self._recorded(step.id, lambda one: True)
        if call is None:
            return "the run has not done it"
        if call.tool != step.tool:
            return f"the run has called {call.tool}"
        there = call.params if isinstance(call.params, dict) else {}
        params = checked.params
        # Without the tool's model nothing fills in what the plan leaves out.
        names = sorted({*params} if checked.params_hash is None else {*there, *params})
        names = [name for name in names if there.get(name) != params.get(name)]
        if not names:
            return "its tool is not loaded: whether these are the run's params is not known"
        return f"the run has called it with another {', '.join(names)}"

    def _held(self, tool: str, checked: CheckedCall) -> tuple[KeyEntry, HeldKey] | None:
        if checked.key is None:
            return None
        name = (tool, checked.key)
        if name not in self._known.keys:
            self.keys.add(name)
            return None
        entry = self._known.keys[name]
        if entry is None:
            return None
        shape = HeldKey(
            run_id=entry.run_id,
            step_id=entry.step_id,
            state=entry.state,
            same_params=entry.identity_hash in checked.identities,
        )
        return entry, shape

    def _end(self, step: Step, outcome: Outcome, call: RecordedCall, **shown: Any) -> Goto | None:
        """Take a recorded call's end for the step's."""
        if call.end != "no":
            undone = outcome == "done" and step.id in self._recording.undone
            why = "its effect had been undone by then" if undone else ""
            self.output(step, outcome, call.output, why=why, **shown)
            return None
        reason = call.output["no"]["reason"]
        why = f"{call.tool} answered no: {reason}"
        self.output(step, outcome, call.output, why=why, **shown)
        return rules.after_no(self._plan, step, reason)

    def output(
        self, step: Step, outcome: Outcome, output: Any, *, why: str = "", **shown: Any
    ) -> None:
        """Take an output that is recorded."""
        if step.id in self._recording.replaced:
            self.unknown.add(step.id)
            why = "a human has not accepted its output, and what they gave is not recorded"
            self.row(step, outcome, why=why, output="unknown", **shown)
            return
        self.facts[step.id] = output
        self.row(step, outcome, why=why, output="recorded", **shown)

    def _recorded(self, step_id: str, fits: Callable[[RecordedCall], bool]) -> RecordedCall | None:
        """Return the newest fitting call of a step; one that has succeeded or said no first."""
        calls = [one for one in self._recording.calls if one.step_id == step_id and fits(one)]
        newest = [one for one in calls if one.end != "failed"] or calls
        return newest[-1] if newest else None

    def unknown_in(self, value: Any, local: str = "") -> list[str]:
        """Return the steps that a value refers to and whose outputs are not known."""
        roots = {reference.split(".")[0] for _, reference in references(value)}
        return sorted(roots & self.unknown - {local})

    def row(self, step: Step, outcome: Outcome, **shown: Any) -> None:
        """Write down what becomes of a step."""
        begins = outcome.startswith("would") and outcome not in ("would skip", "would fail")
        looked_at = [
            place
            for place in _PLACES
            if begins and step.does not in (ASKING, WAITING) and self._looks(step, place)
        ]
        does = step.plan.name if step.does == CHILD_PLAN and step.plan else step.does
        self.rows[step.id] = SimulatedStep(
            id=step.id, does=does, outcome=outcome, looked_at=looked_at, **shown
        )

    def _looks(self, step: Step, place: Place) -> bool:
        if place == "after" and not step.tool:
            return False
        return self._plan.interrupted(step, place)
