"""``simulate``: what a plan would do from an event of a run; nothing is called, nothing written.

Steps that were done then are facts. From there steps become ready as in a run. A call that the run
has made later in the same way gives what it gave; what any other call would give is unknown, and so
is all that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer
from temporalio.exceptions import ApplicationError

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.prepare import prepare_params
from surehand.activities.expressions import RuleBroken, condition_holds, holds, of_run
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.recordings import (
    KeyEntry,
    NoSuchEvent,
    RecordedCall,
    Recording,
    find_key_entry,
    read_recording,
)
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.toolbox import Toolbox
from surehand.cli import options
from surehand.cli.options import ledger_of, open_artifacts, read_settings, translated
from surehand.cli.printer import Lines, Reply, Shape, Table
from surehand.cli.tools import named_tools, problems_of
from surehand.client.plan_file import PlanDraft
from surehand.process.ciphers import RememberedKeys
from surehand.process.exits import WrongUse
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
    Plan,
    Step,
    names_in,
)
from surehand.workflows.plan.policy import ApprovalPolicy, Needs, combine
from surehand.workflows.plan.references import INPUT, ReferenceUnresolved, in_words, references
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
    key: str | None = None
    """A write's business key, where its tool names one and is loaded."""


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


async def simulate_run(
    caller: options.Onlooker,
    run: options.Run,
    seq: Annotated[
        int,
        typer.Option(
            "--from", metavar="SEQ", min=1, help="The event after which the plan goes on."
        ),
    ],
    changes: options.Changes = None,
) -> Reply:
    """Say what a plan would do from an event of a run, from its records: nothing is called.

    Example: surehand simulate refund-1 --from 4 --set input.shelf=B
    """
    run_id = caller.run_id(run)
    toolbox, settings = named_tools(caller), read_settings()
    async with ledger_of(settings) as ledger:
        try:
            recording = await ledger.transact(caller.tenant, read_recording, run_id, seq)
        except NoSuchEvent as error:
            raise WrongUse(str(error)) from error
        plan = plan_to_simulate(recording, changes, toolbox)
        records = Records(ledger, open_artifacts(settings, ledger), run_id)
        checks = WorkerChecks(run_id, recording.tools, toolbox, ledger.keys)
        with translated():
            found = await PlanWalk(recording, plan, checks, records).run()
    shown = Simulation(
        run_id=run_id,
        seq=seq,
        plan=plan.name,
        plan_version=recording.plan_version,
        changed=changes or [],
        tools_loaded=toolbox is not None,
        steps=found.steps,
        ends=found.ends,
    )
    return Reply(shown, _lines(shown))


def plan_to_simulate(
    recording: Recording, changes: list[str] | None, toolbox: Toolbox | None
) -> Plan:
    """Return the plan of that moment, with ``--set`` changes."""
    if recording.plan.code is not None:
        raise WrongUse(
            f"run {recording.run_id} is made by code ({recording.plan.code}): only that knows"
            " what it would do"
        )
    if not changes:
        return recording.plan
    plan = PlanDraft.of(recording.plan).amending(recording.plan, changes)
    problems = problems_of(toolbox, plan)
    if problems:
        raise WrongUse(f"--set: the plan does not fit the tools then: {in_words(problems)}")
    return plan


def _lines(shown: Simulation) -> Lines:
    yield (
        f"Plan {shown.plan}, version {shown.plan_version}, from event {shown.seq} of {shown.run_id}"
    )
    if not shown.tools_loaded:
        yield "No tools are loaded (SUREHAND_TOOL_MODULES): rules, hashes and keys are not known"
    rows = [[one.id, one.does, one.outcome, _why(one)] for one in shown.steps]
    yield Table(("step", "does", "outcome", "why"), rows)
    if shown.ends is not None:
        yield f"It would end there: {shown.ends}"


def _why(step: SimulatedStep) -> str:
    parts = [step.why] if step.why else []
    if step.depends_on:
        parts.append(f"depends on {', '.join(step.depends_on)}")
    if step.approval not in (None, "no"):
        needs = step.approval_text or step.approval
        parts.append(f"needs {needs}" if step.approval == "yes" else "may need an approval")
    return "; ".join(parts)


#: What is shown of a call, and the hashes that an entry of its key has if it is of the same call.
CheckedCall = tuple[dict[str, Any], tuple[str, ...]]


class WorkerChecks:
    """The worker's own evaluator, its tools' models, policies and keys."""

    def __init__(
        self,
        run_id: str,
        recorded: Mapping[str, ToolSpec],
        toolbox: Toolbox | None,
        keys: RememberedKeys | None,
    ) -> None:
        self._hashes = Hashes(keys)
        self._run_id = run_id
        self._specs = recorded
        self._toolbox = toolbox

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
        """Return what the worker would make of a call; ``StepFailed``: it would refuse it."""
        recorded = self._specs.get(tool)
        asking = [*policies, *_own(recorded)]
        loaded = None if self._toolbox is None else self._toolbox.get(tool)
        if loaded is None:
            return _without_params(params, asking)
        asking += _own(loaded)
        if params is None:
            return _without_params(params, asking)
        try:
            prepared = prepare_params(loaded, self._hashes, params, self._run_id, step_id)
            needs = combine(asking, lambda rule: holds(rule, prepared.params, foreign=foreign))
        except ApplicationError as error:
            raise StepFailed(error.message) from error
        except RuleBroken as error:
            raise StepFailed(f"{tool}: {error}") from error
        named = loaded.key is not None and loaded.effect is Effect.WRITE
        shown = {
            "params": prepared.plain,
            "params_hash": prepared.params_hash,
            "approval": "no" if needs is None else "yes",
            "approval_text": _as_text(needs),
            "key": prepared.key if named else None,
        }
        tenant = tenant_of_run(self._run_id)
        return shown, self._hashes.of_identity(tenant, loaded.name, prepared.plain)


def _own(tool: Any) -> Iterable[ApprovalPolicy]:
    return () if tool is None or tool.approval is None else (tool.approval,)


def _without_params(params: Any, policies: Sequence[ApprovalPolicy]) -> CheckedCall:
    """Return what holds of a call whatever its params are."""
    always = combine((one for one in policies if not one.rules), lambda _: False)
    by_rules = any(one.rules for one in policies)
    approval = "yes" if always else "by its rules" if by_rules else "no"
    return {"params": params, "approval": approval, "approval_text": _as_text(always)}, ()


def _as_text(needs: Needs | None) -> str:
    return "" if needs is None else " and ".join(one.as_text() for one in needs.requirements)


@dataclass(frozen=True)
class Records:
    """What is looked up while the plan is walked through."""

    ledger: Ledger
    store: ArtifactStore
    run_id: str

    async def check(self, call: Callable[[], CheckedCall]) -> CheckedCall:
        return await self.ledger.with_keys(call)

    async def find_key(self, tool: str, key: str) -> KeyEntry | None:
        tenant = tenant_of_run(self.run_id)
        return await self.ledger.transact(tenant, find_key_entry, tool, key)

    async def read(self, artifact: Artifact) -> Any:
        return await self.store.read(tenant_of_run(self.run_id), self.run_id, artifact)


@dataclass(frozen=True)
class Simulated:
    """What the plan would do."""

    steps: list[SimulatedStep]
    facts: dict[str, Any]
    """``input`` and the outputs that are known."""
    ends: str | None


class PlanWalk:
    """Takes the steps of one simulation."""

    def __init__(
        self, recording: Recording, plan: Plan, checks: WorkerChecks, records: Records
    ) -> None:
        self._recording = recording
        self._plan = plan
        self._checks = checks
        self._records = records
        self._facts: dict[str, Any] = {INPUT: plan.input}
        self._unknown: set[str] = set()
        """Steps whose outputs are not known."""
        self._rows: dict[str, SimulatedStep] = {}
        self._foreign = recording.foreign
        """Whether the run has read content from outside by the step that is taken next."""
        self._settled: set[str] = set()
        self._taken: dict[str, Any] = {}
        """Outputs that come from the run that this one begins from."""

    async def run(self) -> Simulated:
        plan, source, ends = self._plan, self._recording.source, None
        if source is not None:
            taken = await self._settled_facts(source)
            self._taken = {k: v for k, v in taken.items() if k in self._recording.taken_over}
        while ends is None:
            ready = plan.ready(frozenset(self._settled), frozenset())
            if not ready:
                break
            # What was done is a fact, whatever else comes to nothing beside it.
            step = next((one for one in ready if self._was_done(one)), ready[0])
            ends = await self._settle(step)
        for step in plan.steps:
            if step.id not in self._settled:
                self._row(step, "not reached", why=f"the run ends before: {ends}")
        order = {step.id: number for number, step in enumerate(plan.steps)}
        rows = sorted(self._rows.values(), key=lambda row: order[plan.step(row.id).id])
        return Simulated(rows, self._facts, ends)

    async def _settled_facts(self, recording: Recording) -> dict[str, Any]:
        """Return the outputs of a run that has ended, by step."""
        if recording.plan.code is not None:  # which knows its steps alone: all that there were
            return {one.step_id: one.output for one in recording.calls if one.end != "failed"}
        walk = PlanWalk(recording, recording.plan, self._checks, self._records)
        facts = (await walk.run()).facts
        return {name: value for name, value in facts.items() if name != INPUT}

    def _was_done(self, step: Step) -> bool:
        child = self._recording.children.get(step.id)
        return (
            step.id in self._recording.done
            or step.id in self._taken
            or (child is not None and child.before)
        )

    async def _settle(self, step: Step) -> str | None:
        """Take a step and what follows from it; returns why the run ends there, or ``None``."""
        plan = self._plan
        follows: Goto | None = None
        try:
            follows = await self._take(step)
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

    async def _take(self, step: Step) -> Goto | None:
        if step.id in self._taken:
            source = self._recording.source
            why = "" if source is None else f"taken over from run {source.run_id}"
            self._output(step, "done", self._taken[step.id], why=why)
            return None
        if not self._was_done(step):
            gone = self._find_way_on(step)
            if gone is not None:
                return gone.at
            if step.when is not None and not self._begins(step, step.when):
                return None
        if step.for_each is not None:
            await self._each(step, step.for_each)
            return None
        return await self._one(step, self._facts)

    def _find_way_on(self, step: Step) -> rules.GoesOn | None:
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
            holds = condition_holds(when, {**values, **of_run(self._foreign)})
        except RuleBroken as error:
            raise StepFailed(str(error)) from error
        if not holds:
            self._facts[step.id] = rules.skipped(f"when: {when}")
            done = any(call.step_id == step.id for call in self._recording.calls)
            differs = ", the run has done it" if done else ""
            self._row(step, "would skip", why=f"not {when}{differs}")
        return holds

    async def _each(self, step: Step, reference: str) -> None:
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
                await self._one(one, rules.item_facts(step, item, self._facts), step.item)
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

    async def _one(self, step: Step, facts: Mapping[str, Any], local: str = "") -> Goto | None:
        """Take one step, or one item of a list; returns where to go on, if its answer says so."""
        if step.plan is not None:
            await self._child(step, step.plan, facts, local)
            self._foreign = self._foreign or self._reads_foreign(step.plan)
            return None
        if step.id in self._recording.done:
            call = self._find_recorded(step.id, lambda one: one.before)
            if call is not None:
                return self._end(step, "done", call)
        said: dict[str, Any]
        if step.ask is not None:
            said = {"question": step.ask.question, "answer": step.ask.answer}
            unknown = self._unknown_in(step.ask.question, local)
            if not unknown:
                said["question"] = rules.question_of(step.ask, facts)
            return self._take_question(step, "would ask", said, unknown)
        if step.wait is not None:
            unknown, about = self._unknown_in(step.wait.about, local), step.wait.about
            if not unknown:
                about = rules.about_of(step.wait, facts)
            said = {"question": event_question(step.wait.event, about)}
            return self._take_question(step, "would wait", said, unknown)
        follows = await self._call(step, facts, local)
        self._foreign = self._foreign or self._checks.brings_foreign(step.tool)
        return follows

    def _reads_foreign(self, plan: Plan) -> bool:
        """Return whether any step of a child run may bring in content from outside."""
        return any(
            self._reads_foreign(step.plan) if step.plan else self._checks.brings_foreign(tool)
            for step in plan.steps
            for tool in (step.tool, step.fallback.tool if step.fallback else step.tool)
        )

    async def _child(self, step: Step, plan: Plan, facts: Mapping[str, Any], local: str) -> None:
        child = self._recording.children.get(step.id)
        unknown = self._unknown_in(step.params, local)
        started = None if unknown else rules.child_plan(plan, rules.params_of(step, facts)[0])
        if child is not None and (child.before or child.plan == started):
            given = await self._settled_facts(child.recording)
            output = {**{one.id: None for one in child.recording.plan.steps}, **given}
            outcome: Outcome = "done" if child.before else "as recorded"
            self._output(step, outcome, output, why=f"child run {child.run_id}")
            return
        self._unknown.add(step.id)
        why = f"plan {plan.name}"
        if child is not None and not unknown:
            why += ": the run has started it with another input or plan"
        self._row(step, "would run plan", why=why, depends_on=unknown, output="unknown")

    def _take_question(
        self, step: Step, would: Outcome, said: dict[str, Any], unknown: list[str]
    ) -> Goto | None:
        """Take a question or an event, as it was answered if the run has asked the same."""
        does = ASKING if would == "would ask" else WAITING

        def fits(one: RecordedCall) -> bool:
            same = said.items() <= one.params.items()
            return one.tool == does and one.end == "succeeded" and same

        call = None if unknown else self._find_recorded(step.id, fits)
        if call is not None:
            return self._end(step, "as recorded", call)
        self._unknown.add(step.id)
        why = str(said["question"])
        self._row(step, would, why=why, depends_on=unknown, output="unknown")
        return None

    async def _call(self, step: Step, facts: Mapping[str, Any], local: str) -> Goto | None:
        policies = self._plan.approvals(step)
        unknown = self._unknown_in(step.params, local)
        params = None if unknown else await self._params(step, facts)
        check = partial(
            self._checks.call, step.id, step.tool, params, policies, foreign=self._foreign
        )
        shown, identities = await self._records.check(check)
        if params is None:
            self._unknown.add(step.id)
            self._row(step, "would call", depends_on=unknown, output="unknown", **shown)
            return None
        same = self._find_recorded(
            step.id, lambda one: one.tool == step.tool and one.params == shown["params"]
        )
        if same is not None and same.end != "failed":
            return self._end(step, "as recorded", same, **shown)
        why = self._differs(step, same, shown)
        key = shown.get("key")
        held = key and await self._records.find_key(step.tool, key)
        if held:
            same_params = held.identity_hash in identities
            text = f"{key} is {held.state} (step {held.step_id}, run {held.run_id})"
            if same_params and held.state == "committed":
                why = f"{text}: no second effect, its receipt is taken"
                self._foreign = self._foreign or held.foreign_receipt
                self._output(step, "would replay", held.receipt, why=why, **shown)
                return None
            if not same_params:
                text += " with other params: refused as long as that stands"
            why = f"{why}; {text}" if why else text
        instead = rules.fallback_of(step)
        if same is not None and instead is not None:
            return await self._call(instead, facts, local)
        on_no = self._plan.on_no(step)
        if isinstance(on_no, Goto):
            why = f"{why}; goes on at {on_no.goto} if it answers no".removeprefix("; ")
        self._unknown.add(step.id)
        self._row(step, "would call", why=why, output="unknown", **shown)
        return None

    async def _params(self, step: Step, facts: Mapping[str, Any]) -> Any:
        params, late = rules.params_of(step, facts)
        wanted = {name: one for item in late for name, one in item.artifacts.items()}
        contents = {name: await self._records.read(one) for name, one in wanted.items()}
        try:
            fill_in(params, late, contents)
        except ReferenceUnresolved as error:
            raise StepFailed(str(error)) from error
        return params

    def _differs(self, step: Step, same: RecordedCall | None, shown: dict[str, Any]) -> str:
        """Return how a call differs from what the run has done in this step."""
        if same is not None:
            return f"it failed in the run: {same.error}"
        call = self._find_recorded(step.id, lambda one: True)
        if call is None:
            return "the run has not done it"
        if call.tool != step.tool:
            return f"the run has called {call.tool}"
        there = call.params if isinstance(call.params, dict) else {}
        params = shown["params"]
        # Without the tool's model nothing fills in what the plan leaves out.
        names = sorted({*params} if shown.get("params_hash") is None else {*there, *params})
        names = [name for name in names if there.get(name) != params.get(name)]
        if not names:
            return "its tool is not loaded: whether these are the run's params is not known"
        return f"the run has called it with another {', '.join(names)}"

    def _end(self, step: Step, outcome: Outcome, call: RecordedCall, **shown: Any) -> Goto | None:
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
        if step.id in self._recording.replaced:
            self._unknown.add(step.id)
            why = "a human has not accepted its output, and what they gave is not recorded"
            self._row(step, outcome, why=why, output="unknown", **shown)
            return
        self._facts[step.id] = output
        self._row(step, outcome, why=why, output="recorded", **shown)

    def _find_recorded(
        self, step_id: str, fits: Callable[[RecordedCall], bool]
    ) -> RecordedCall | None:
        """Return the newest fitting call of a step; one that has succeeded or said no first."""
        calls = [one for one in self._recording.calls if one.step_id == step_id and fits(one)]
        newest = [one for one in calls if one.end != "failed"] or calls
        return newest[-1] if newest else None

    def _unknown_in(self, value: Any, local: str = "") -> list[str]:
        """Return the steps that a value refers to and whose outputs are not known."""
        roots = {reference.split(".")[0] for _, reference in references(value)}
        return sorted(roots & self._unknown - {local})

    def _row(self, step: Step, outcome: Outcome, **shown: Any) -> None:
        does = step.plan.name if step.does == CHILD_PLAN and step.plan else step.does
        self._rows[step.id] = SimulatedStep(id=step.id, does=does, outcome=outcome, **shown)
