"""What a plan would do from a moment of a recorded run; nothing is called and nothing written.

Steps that were done then are facts. From there steps become ready as in a run. A call that the run
has made later in the same way gives what it gave; what any other call would give is unknown, and so
is all that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from surehand.activities.effects.prepare import PreparedCall, prepare_params
from surehand.activities.expressions import RuleBroken, condition_holds, holds, of_run
from surehand.activities.ledger.history.recordings import KeyEntry, RecordedCall, Recording
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.toolbox import Toolbox
from surehand.cli.shapes import Shape
from surehand.process.ciphers import RememberedKeys
from surehand.workflows.contracts.base import Artifact
from surehand.workflows.contracts.steering import event_question
from surehand.workflows.contracts.tools import Effect, ToolSpec
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.plan.plan import (
    ASKING,
    CHILD_PLAN,
    MOST_STEPS,
    WAITING,
    Goto,
    Place,
    Plan,
    Step,
    names_in,
)
from surehand.workflows.plan.policy import ApprovalPolicy, Needs, combine
from surehand.workflows.plan.references import INPUT, ReferenceUnresolved, references
from surehand.workflows.run import step_rules as rules
from surehand.workflows.run.run_records import StepFailed
from surehand.workflows.run.step_rules import fill_in

Outcome = Literal[
    "done",
    "as recorded",
    "would call",
    "would replay",
    "would ask",
    "would wait",
    "would run plan",
    "would skip",
    "would fail",
    "list",
    "unknown",
    "not reached",
]


Asks = Literal["yes", "no", "by its rules"]


class HeldKey(Shape):
    """The ledger's entry of a business key."""

    run_id: str
    step_id: str
    state: str
    same_params: bool
    """True and committed: its receipt is taken, there is no second effect."""


class SimulatedStep(Shape):
    """What a plan would do with one step, or one item of its list."""

    id: str
    does: str
    outcome: Outcome
    """``unknown``: whether it is done at all depends on what is not known."""
    why: str = ""
    """For people: why, and what differs from the recorded run."""
    depends_on: list[str] = []
    """Steps whose outputs decide on it, and are not known."""
    output: Literal["recorded", "unknown", "none"] = "none"
    params: Any = None
    """Of a call: as the tool's model has them, where the tool is loaded; null: not known."""
    params_hash: str | None = None
    """What an approval would be bound to; null where the tool is not loaded."""
    approval: Asks | None = None
    """Whether the call needs one; ``by its rules``: these are not evaluated here. Null: no call."""
    approval_text: str = ""
    looked_at: list[Place] = []
    """Where a human looks at it."""
    key: str | None = None
    """A write's business key, where its tool names one and is loaded."""
    held: HeldKey | None = None
    """What the ledger has under that key now."""


class Simulation(Shape):
    """``simulate``."""

    run_id: str
    seq: int
    plan: str
    plan_version: int
    changed: list[str]
    """The ``--set`` changes."""
    tools_loaded: bool
    """False: params are compared as the plan has them, and no rule, hash or key is worked out."""
    steps: list[SimulatedStep]
    ends: str | None
    """Why the run would go no further; null: it would come to its end, as far as is known."""


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


class WorkerChecks:
    """The worker's own evaluator, its tools' models, policies and keys."""

    def __init__(
        self,
        run_id: str,
        recorded: Mapping[str, ToolSpec],
        toolbox: Toolbox | None,
        keys: RememberedKeys | None,
    ) -> None:
        """Look at calls."""
        self._hashes = Hashes(keys)
        self._run_id = run_id
        self._specs = recorded
        self._toolbox = toolbox

    def holds(self, expression: str, values: Mapping[str, Any], *, foreign: bool) -> bool:
        """Return whether a condition is true."""
        try:
            return condition_holds(expression, {**values, **of_run(foreign)})
        except RuleBroken as error:
            raise CannotHold(str(error)) from error

    def brings_foreign(self, tool: str) -> bool:
        """Return whether what a tool returns is content from outside: as recorded, or as loaded."""
        loaded = None if self._toolbox is None else self._toolbox.get(tool)
        return any(one is not None and one.foreign for one in (self._specs.get(tool), loaded))

    def call(
        self,
        step_id: str,
        tool: str,
        params: Any,
        policies: Sequence[ApprovalPolicy],
        *,
        foreign: bool,
    ) -> CheckedCall:
        """Return what the worker would make of a call before it makes it."""
        recorded = self._specs.get(tool)
        asking = [*policies, *_own(recorded)]
        loaded = None if self._toolbox is None else self._toolbox.get(tool)
        if loaded is None:
            return _without_params(params, asking)
        asking += _own(loaded)
        if params is None:
            return _without_params(params, asking)
        from temporalio.exceptions import ApplicationError

        try:
            prepared = prepare_params(loaded, self._hashes, params, self._run_id, step_id)
            needs = _needs(asking, prepared, foreign=foreign)
        except (ApplicationError, CannotHold) as error:
            return CheckedCall(params, problem=getattr(error, "message", str(error)))
        named = loaded.key is not None and loaded.effect is Effect.WRITE
        return CheckedCall(
            params=prepared.plain,
            params_hash=prepared.params_hash,
            approval="no" if needs is None else "yes",
            approval_text=_as_text(needs),
            key=prepared.key if named else None,
            identities=self._hashes.of_identity(
                tenant_of_run(self._run_id), loaded.name, prepared.plain
            ),
        )


def _own(tool: Any) -> Iterable[ApprovalPolicy]:
    return () if tool is None or tool.approval is None else (tool.approval,)


def _needs(
    policies: Sequence[ApprovalPolicy], prepared: PreparedCall, *, foreign: bool
) -> Needs | None:

    def fits(expression: str) -> bool:
        return holds(expression, prepared.params, foreign=foreign)

    try:
        return combine(policies, fits)
    except RuleBroken as error:
        raise CannotHold(f"{prepared.tool.name}: {error}") from error


def _without_params(params: Any, policies: Sequence[ApprovalPolicy]) -> CheckedCall:
    """Return what holds of a call whatever its params are."""
    always = combine((one for one in policies if not one.rules), lambda _: False)
    by_rules = any(one.rules for one in policies)
    return CheckedCall(
        params=params,
        approval="yes" if always else "by its rules" if by_rules else "no",
        approval_text=_as_text(always),
    )


def _as_text(needs: Needs | None) -> str:
    return "" if needs is None else " and ".join(one.as_text() for one in needs.requirements)


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


def simulate(
    recording: Recording, plan: Plan, checks: WorkerChecks, known: Known = NOTHING_KNOWN
) -> Simulated:
    """Return what a plan would do."""
    return _Walk(recording, plan, checks, known).run()


def settled_facts(recording: Recording, checks: WorkerChecks) -> dict[str, Any]:
    """Return the outputs of a run that has ended, by step."""
    if recording.plan.code is not None:  # which knows its steps alone: all that there were
        return {one.step_id: one.output for one in recording.calls if one.end != "failed"}
    facts = simulate(recording, recording.plan, checks).facts
    return {name: value for name, value in facts.items() if name != INPUT}


class _Walk:
    """Takes the steps of one simulation."""

    def __init__(
        self, recording: Recording, plan: Plan, checks: WorkerChecks, known: Known
    ) -> None:
        self._recording = recording
        self._plan = plan
        self._checks = checks
        self._known = known
        self._facts: dict[str, Any] = {INPUT: plan.input}
        self._unknown: set[str] = set()
        """Steps whose outputs are not known."""
        self._rows: dict[str, SimulatedStep] = {}
        self._foreign = recording.foreign
        """Whether the run has read content from outside by the step that is taken next."""
        self._keys: set[tuple[str, str]] = set()
        """Still to be looked up, as ``Simulated`` has them."""
        self._artifacts: dict[str, Artifact] = {}
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
                self._row(step, "not reached", why=f"the run ends before: {ends}")
        order = {step.id: number for number, step in enumerate(plan.steps)}
        rows = sorted(self._rows.values(), key=lambda row: order[plan.step(row.id).id])
        return Simulated(rows, self._facts, ends, frozenset(self._keys), self._artifacts)

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
            if step.id not in self._rows:
                self._row(step, "would fail", why=str(failed))
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
                self._row(plan.step(skipped), "would skip", why=why)
                self._settled.add(skipped)
        return None

    def _take(self, step: Step) -> Goto | None:
        if step.id in self._taken:
            source = self._recording.source
            why = "" if source is None else f"taken over from run {source.run_id}"
            self._output(step, "done", self._taken[step.id], why=why)
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
        return self._one(step, self._facts)

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
        self._unknown.add(step.id)
        self._row(step, "done", why="rejected" if rejected else "failed")
        return goes_on

    def _begins(self, step: Step, when: str) -> bool:
        """Return whether a step's condition is known to hold; it has its row if not."""
        names = names_in(when)
        unknown = sorted(names & self._unknown)
        if unknown:
            self._unknown.add(step.id)
            self._row(step, "unknown", why=f"only when {when}", depends_on=unknown)
            return False
        try:
            values = rules.condition_values(when, self._facts)
            holds = self._checks.holds(when, values, foreign=self._foreign)
        except CannotHold as error:
            raise StepFailed(str(error)) from error
        if not holds:
            self._facts[step.id] = rules.skipped(f"when: {when}")
            differs = ", the run has done it" if self._has_done(step.id) else ""
            self._row(step, "would skip", why=f"not {when}{differs}")
        return holds

    def _has_done(self, step_id: str) -> bool:
        return any(call.step_id == step_id for call in self._recording.calls)

    def _each(self, step: Step, reference: str) -> None:
        unknown = self._unknown_in(reference)
        if unknown:
            self._unknown.add(step.id)
            self._row(step, "unknown", why=f"for each of {reference}", depends_on=unknown)
            return
        items = rules.items_of(self._plan, step, self._facts, None, MOST_STEPS)
        self._row(step, "list", why=f"items: {len(items)}")
        each = [step.of_item(number) for number in range(len(items))]
        failed: list[StepFailed] = []
        for one, item in zip(each, items, strict=True):
            try:
                self._one(one, rules.item_facts(step, item, self._facts), step.item)
            except StepFailed as error:
                failed.append(error)
                if one.id not in self._rows:
                    self._row(one, "would fail", why=str(error))
        if failed:
            raise failed[0]
        if any(one.id in self._unknown for one in each):
            self._unknown.add(step.id)
        else:
            self._facts[step.id] = rules.output_of_list(each, self._facts)

    def _one(self, step: Step, facts: Mapping[str, Any], local: str = "") -> Goto | None:
        """Take one step, or one item of a list; returns where to go on, if its answer says so."""
        if step.plan is not None:
            follows = self._child(step, step.plan, facts, local)
            self._foreign = self._foreign or self._reads_foreign(step.plan)
            return follows
        if step.id in self._recording.done:
            call = self._recorded(step.id, lambda one: one.before)
            if call is not None:
                return self._end(step, "done", call)
        said: dict[str, Any]
        if step.ask is not None:
            said = {"question": step.ask.question, "answer": step.ask.answer}
            unknown = self._unknown_in(step.ask.question, local)
            if not unknown:
                said["question"] = rules.question_of(step.ask, facts)
            return self._asked(step, "would ask", said, unknown)
        if step.wait is not None:
            unknown, about = self._unknown_in(step.wait.about, local), step.wait.about
            if not unknown:
                about = rules.about_of(step.wait, facts)
            said = {"question": event_question(step.wait.event, about)}
            return self._asked(step, "would wait", said, unknown)
        follows = self._call(step, facts, local)
        self._foreign = self._foreign or self._checks.brings_foreign(step.tool)
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
        unknown = self._unknown_in(step.params, local)
        started = None if unknown else rules.child_plan(plan, rules.params_of(step, facts)[0])
        if child is not None and (child.before or child.plan == started):
            skipped = {one.id: None for one in child.recording.plan.steps}
            output = {**skipped, **settled_facts(child.recording, self._checks)}
            why = f"child run {child.run_id}"
            outcome: Outcome = "done" if child.before else "as recorded"
            self._output(step, outcome, output, why=why)
            return None
        self._unknown.add(step.id)
        why = f"plan {plan.name}"
        if child is not None and not unknown:
            why += ": the run has started it with another input or plan"
        self._row(step, "would run plan", why=why, depends_on=unknown, output="unknown")
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
        self._unknown.add(step.id)
        why = str(said["question"])
        self._row(step, would, why=why, depends_on=unknown, output="unknown")
        return None

    def _call(self, step: Step, facts: Mapping[str, Any], local: str) -> Goto | None:
        policies = self._plan.approvals(step)
        unknown = self._unknown_in(step.params, local)
        params = None if unknown else self._params(step, facts)
        checked = self._checks.call(*(step.id, step.tool, params, policies), foreign=self._foreign)
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
            self._unknown.add(step.id)
            why = "" if unknown else "its params reach into an artifact"
            self._row(step, "would call", why=why, depends_on=unknown, output="unknown", **shown)
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
                self._foreign = self._foreign or entry.foreign_receipt
                self._output(step, "would replay", entry.receipt, why=why, **shown)
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
        self._unknown.add(step.id)
        self._row(step, "would call", why=why, output="unknown", **shown)
        return None

    def _params(self, step: Step, facts: Mapping[str, Any]) -> Any:
        """Return a call's params; ``None`` where they reach into an artifact not read yet."""
        params, late = rules.params_of(step, facts)
        try:
            wanted = {name: one for item in late for name, one in item.artifacts.items()}
            unread = {
                one.sha256: one for one in wanted.values() if one.sha256 not in self._known.contents
            }
            self._artifacts |= unread
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
            self._keys.add(name)
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
            self._output(step, outcome, call.output, why=why, **shown)
            return None
        reason = call.output["no"]["reason"]
        why = f"{call.tool} answered no: {reason}"
        self._output(step, outcome, call.output, why=why, **shown)
        return rules.after_no(self._plan, step, reason)

    def _output(
        self, step: Step, outcome: Outcome, output: Any, *, why: str = "", **shown: Any
    ) -> None:
        """Take an output that is recorded."""
        if step.id in self._recording.replaced:
            self._unknown.add(step.id)
            why = "a human has not accepted its output, and what they gave is not recorded"
            self._row(step, outcome, why=why, output="unknown", **shown)
            return
        self._facts[step.id] = output
        self._row(step, outcome, why=why, output="recorded", **shown)

    def _recorded(self, step_id: str, fits: Callable[[RecordedCall], bool]) -> RecordedCall | None:
        """Return the newest fitting call of a step; one that has succeeded or said no first."""
        calls = [one for one in self._recording.calls if one.step_id == step_id and fits(one)]
        newest = [one for one in calls if one.end != "failed"] or calls
        return newest[-1] if newest else None

    def _unknown_in(self, value: Any, local: str = "") -> list[str]:
        """Return the steps that a value refers to and whose outputs are not known."""
        roots = {reference.split(".")[0] for _, reference in references(value)}
        return sorted(roots & self._unknown - {local})

    def _row(self, step: Step, outcome: Outcome, **shown: Any) -> None:
        """Write down what becomes of a step."""
        begins = outcome.startswith("would") and outcome not in ("would skip", "would fail")
        looked_at = [
            place
            for place in _PLACES
            if begins and step.does not in (ASKING, WAITING) and self._looks(step, place)
        ]
        does = step.plan.name if step.does == CHILD_PLAN and step.plan else step.does
        self._rows[step.id] = SimulatedStep(
            id=step.id, does=does, outcome=outcome, looked_at=looked_at, **shown
        )

    def _looks(self, step: Step, place: Place) -> bool:
        if place == "after" and not step.tool:
            return False
        return self._plan.interrupted(step, place)
