"""``simulate``: what a plan would do from an event of a run; nothing is called, nothing written.

It starts from the run's checkpoint at that event. What the steps had given by then are facts. From
there steps become ready as in a run. What a call would give is unknown, and so is all that depends
on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from temporalio.exceptions import ApplicationError

from surehand.activities.effects.prepare import PreparedCall, prepare_params
from surehand.activities.expressions import RuleBroken, condition_holds, holds, of_run
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.recordings import RunAt, find_key_entry, read_run_at
from surehand.activities.ledger.steps.entries import Entry
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.tool import Tool
from surehand.activities.tools.toolbox import Toolbox
from surehand.cli import options
from surehand.cli.options import ledger_of, option, read_settings
from surehand.cli.printer import Lines, Reply, Shape, Table
from surehand.cli.tools import named_tools, problems_of, tools_in
from surehand.client.plan_file import PlanDraft
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import as_artifact
from surehand.workflows.contracts.tools import Effect, ToolSpec
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.plan.plan import MOST_STEPS, Goto, Plan, Step, names_in
from surehand.workflows.plan.policy import combine
from surehand.workflows.plan.references import INPUT, in_words, references
from surehand.workflows.run import step_rules as rules
from surehand.workflows.run.run_records import StepFailed

Outcome = Literal[
    "done",
    "would call",
    "would replay",
    "would ask",
    "would wait",
    "would run plan",
    "would skip",
    "would fail",
    "list",
    "unknown",
]
Asks = Literal["yes", "no", "by its rules"]


class SimulatedStep(Shape):
    """What a plan would do with one step, or one item of its list."""

    id: str
    does: str
    outcome: Outcome
    """``unknown``: whether it is done at all depends on what is not known."""
    why: str = ""
    depends_on: list[str] = []
    """Steps whose outputs decide on it, and are not known."""
    params: Any = None
    """Of a call: as the tool's model has them, where the tool is loaded; null: not known."""
    approval: Asks | None = None
    """Whether the call needs one; ``by its rules``: these are not evaluated here. Null: no call."""


class Simulation(Shape):
    """``simulate``."""

    run_id: str
    seq: int
    plan: str
    plan_version: int
    tools_loaded: bool
    """False: no rule is evaluated, and no key looked up."""
    steps: list[SimulatedStep]
    ends: str | None
    """Why the run would go no further; null: it would come to its end, as far as is known."""


async def simulate_run(
    caller: options.Onlooker,
    run: options.Run,
    seq: Annotated[
        int, option("The event after which the plan goes on.", "--from", metavar="SEQ", min=1)
    ],
    changes: options.Changes = None,
) -> Reply:
    """Say what a plan would do from an event of a run, from its records: nothing is called.

    Example: surehand simulate refund-1 --from 4 --set input.shelf=B
    """
    run_id = caller.run_id(run)
    toolbox = named_tools(caller)
    async with ledger_of(read_settings()) as ledger:
        start = await ledger.transact(caller.tenant, read_run_at, run_id, seq)
        plan = change_plan(start, changes, toolbox)
        walk = PlanWalk(start, plan, ledger, toolbox)
        ends = await walk.run()
    shown = Simulation(
        run_id=run_id,
        seq=seq,
        plan=plan.name,
        plan_version=start.plan_version,
        tools_loaded=toolbox is not None,
        steps=list(walk.rows.values()),
        ends=ends,
    )
    return Reply(shown, _simulation_lines(shown))


def change_plan(start: RunAt, changes: list[str] | None, toolbox: Toolbox | None) -> Plan:
    """Return the plan of that moment, with ``--set`` changes."""
    if start.plan.code is not None:
        raise WrongUse(
            f"run {start.run_id} is made by code ({start.plan.code}): only that knows what it"
            " would do"
        )
    if not changes:
        return start.plan
    plan = PlanDraft.of(start.plan).amending(start.plan, changes)
    problems = problems_of(toolbox, plan)
    if problems:
        raise WrongUse(f"--set: the plan does not fit the tools then: {in_words(problems)}")
    return plan


def _simulation_lines(shown: Simulation) -> Lines:
    yield (
        f"Plan {shown.plan}, version {shown.plan_version}, from event {shown.seq} of {shown.run_id}"
    )
    if not shown.tools_loaded:
        yield "No tools are loaded (SUREHAND_TOOL_MODULES): rules and keys are not known"
    rows = [[one.id, one.does, one.outcome, _explain_step(one)] for one in shown.steps]
    yield Table(("step", "does", "outcome", "why"), rows)
    if shown.ends is not None:
        yield f"It would end there: {shown.ends}"


def _explain_step(step: SimulatedStep) -> str:
    asks = {"yes": "needs an approval", "by its rules": "may need an approval"}
    on = f"depends on {', '.join(step.depends_on)}" if step.depends_on else ""
    return "; ".join(filter(None, (step.why, on, asks.get(step.approval or ""))))


class PlanWalk:
    """Takes the steps of a plan from a run's checkpoint."""

    def __init__(self, start: RunAt, plan: Plan, ledger: Ledger, toolbox: Toolbox | None) -> None:
        self.rows: dict[str, SimulatedStep] = {}
        self.facts: dict[str, Any] = {INPUT: plan.input}
        """``input`` and the outputs that are known."""
        self._start = start
        self._plan = plan
        self._ledger = ledger
        self._hashes = Hashes(ledger.keys)
        self._toolbox = toolbox
        self._unknown: set[str] = set()
        """Steps whose outputs are not known."""
        self._settled: set[str] = set()
        self._foreign = bool(start.past.foreign)
        """Whether the run has read content from outside by the step that is taken next."""

    async def run(self) -> str | None:
        """Take all steps that the run would come to; returns why it would go no further."""
        plan, done = self._plan, self._start.done
        while ready := plan.ready(frozenset(self._settled), frozenset()):
            # What was done is a fact, whatever else comes to nothing beside it.
            step = next((one for one in ready if one.id in done), ready[0])
            self._settled.add(step.id)
            try:
                follows = await self._take_step(step)
            except StepFailed as failed:
                self._add_row(step, "would fail", why=str(failed))
                goes_on = rules.after_failure(plan, step, failed)
                if goes_on is None:
                    pauses = rules.waits_for_a_way_out(plan, step, failed)
                    then = " (the run would pause there)" if pauses else ""
                    return f"step {step.id}: {failed}{then}"
                follows = goes_on.at
            if follows is not None:
                for skipped in plan.skipped_by_goto(step.id, follows.goto) - self._settled:
                    why = f"{step.id} goes on at {follows.goto}"
                    self._add_row(plan.step(skipped), "would skip", why=why)
                    self._settled.add(skipped)
        return None

    async def _take_step(self, step: Step) -> Goto | None:
        """Take one step; returns where the plan goes on, if not at what follows."""
        start = self._start
        if step.id in start.done:
            return self._reuse_output(step)
        rejected = step.id in start.past.rejected
        if rejected or step.id in start.past.failed:
            how = "it was rejected by then" if rejected else "it had failed by then"
            failed = StepFailed(how, rejected=rejected)
            goes_on = rules.after_failure(self._plan, step, failed)
            if goes_on is not None:
                # What they said, or how it failed, is no output of the step.
                self._add_row(step, "done", why="rejected" if rejected else "failed", known=False)
                return goes_on.at
            if not rules.waits_for_a_way_out(self._plan, step, failed):
                raise failed
        if step.when is not None and not self._condition_begins(step, step.when):
            return None
        if step.for_each is not None:
            await self._take_list(step, step.for_each)
        else:
            await self._take_one(step, self.facts)
        return None

    def _reuse_output(self, step: Step) -> Goto | None:
        """Take what a step had given as a fact; returns where its answer has led."""
        given = self._start.given.get(step.id)
        replaced = step.id in self._start.past.replaced
        if given is None or replaced or as_artifact(given.output) is not None:
            self._add_row(step, "done", why="its output is not looked at", known=False)
            return None
        self.facts[step.id] = given.output
        undone = step.id in self._start.past.undone
        why = "its effect had been undone by then" if undone else ""
        if given.no is not None:
            why = f"{step.tool} answered no: {given.no}"
        self._add_row(step, "done", why=why)
        return None if given.no is None else rules.after_no(self._plan, step, given.no)

    def _condition_begins(self, step: Step, when: str) -> bool:
        """Return whether a step's condition is known to hold; it has its row if not."""
        unknown = sorted(names_in(when) & self._unknown)
        if unknown:
            self._add_row(step, "unknown", why=f"only when {when}", on=unknown, known=False)
            return False
        try:
            values = rules.condition_values(when, self.facts)
            begins = condition_holds(when, {**values, **of_run(self._foreign)})
        except RuleBroken as error:
            raise StepFailed(str(error)) from error
        if not begins:
            self.facts[step.id] = rules.skipped(f"when: {when}")
            self._add_row(step, "would skip", why=f"not {when}")
        return begins

    async def _take_list(self, step: Step, reference: str) -> None:
        unknown = self._unknown_in(reference)
        if unknown:
            self._add_row(step, "unknown", why=f"for each of {reference}", on=unknown, known=False)
            return
        items = rules.items_of(self._plan, step, self.facts, None, MOST_STEPS)
        self._add_row(step, "list", why=f"items: {len(items)}")
        each = [step.of_item(number) for number in range(len(items))]
        failed = list[StepFailed]()
        for one, item in zip(each, items, strict=True):
            try:
                if one.id in self._start.done:
                    self._reuse_output(one)
                else:
                    await self._take_one(one, {**self.facts, step.item: item}, step.item)
            except StepFailed as error:
                self._add_row(one, "would fail", why=str(error), known=False)
                failed.append(error)
        if failed:
            raise failed[0]
        if any(one.id in self._unknown for one in each):
            self._unknown.add(step.id)
        else:
            self.facts[step.id] = [self.facts.get(one.id) for one in each]

    async def _take_one(self, step: Step, facts: Mapping[str, Any], local: str = "") -> None:
        """Say what would be done in a step, or in one item of a list."""
        if step.ask is not None:
            on = self._unknown_in(step.ask.question, local)
            asks = step.ask.question if on else rules.question_of(step.ask, facts)
            self._add_row(step, "would ask", why=asks, on=on, known=False)
        elif step.wait is not None:
            on = self._unknown_in(step.wait.about, local)
            about = step.wait.about if on else rules.about_of(step.wait, facts)
            self._add_row(
                step, "would wait", why=f"for {step.wait.event} {about}", on=on, known=False
            )
        elif step.plan is not None:
            on = self._unknown_in(step.params, local)
            self._add_row(step, "would run plan", on=on, known=False)
            self._foreign = self._foreign or any(map(self._brings_foreign, tools_in(step.plan)))
        else:
            on = self._unknown_in(step.params, local)
            await self._foresee_call(step, on, None if on else rules.params_of(step, facts)[0])
            self._foreign = self._foreign or self._brings_foreign(step.tool)

    async def _foresee_call(self, step: Step, on: list[str], params: Any) -> None:
        """Say what a call would be: one whose key is committed is not made again."""
        tools = self._find_tools(step.tool)
        own = [tool.approval for tool in tools if tool.approval is not None]
        policies = [*self._plan.approvals(step), *own]
        loaded = tools[-1] if tools else None
        if params is None or not isinstance(loaded, Tool):
            always = any(not one.rules for one in policies)
            asks: Asks = "yes" if always else "by its rules" if policies else "no"
            self._add_row(step, "would call", on=on, params=params, approval=asks, known=False)
            return
        try:
            call = await self._ledger.with_keys(
                lambda: prepare_params(loaded, self._hashes, params, self._start.run_id, step.id)
            )
            needs = combine(policies, lambda rule: holds(rule, call.params, foreign=self._foreign))
        except ApplicationError as error:
            raise StepFailed(error.message) from error
        except RuleBroken as error:
            raise StepFailed(f"{step.tool}: {error}") from error
        asks = "no" if needs is None else "yes"
        outcome: Outcome = "would call"
        why, known = "", False
        if (found := await self._find_key(call)) is not None:
            held, same = found
            why = f"{held.key} is {held.state} (step {held.step_id}, run {held.run_id})"
            if not same:
                why += " with other params: refused as long as that stands"
            elif held.state == "committed":
                why += ": no second effect, its receipt is taken"
                outcome, known = "would replay", as_artifact(held.receipt) is None
                self._foreign = self._foreign or held.foreign_receipt
                if known:
                    self.facts[step.id] = held.receipt
        self._add_row(step, outcome, why=why, params=call.plain, approval=asks, known=known)

    async def _find_key(self, call: PreparedCall) -> tuple[Entry, bool] | None:
        """Return the entry that holds a call's business key, and whether it is of the same call."""
        tool, tenant = call.tool, tenant_of_run(self._start.run_id)
        if tool.key is None or tool.effect is not Effect.WRITE:
            return None
        held = await self._ledger.transact(tenant, find_key_entry, tool.name, call.key)
        if held is None:
            return None
        same = await self._ledger.with_keys(
            lambda: self._hashes.of_identity(tenant, tool.name, call.plain)
        )
        return held, held.identity_hash in same

    def _find_tools(self, name: str) -> list[ToolSpec | Tool]:
        """Return a tool as it was recorded with the plan, then as it is loaded here."""
        loaded = None if self._toolbox is None else self._toolbox.get(name)
        return [one for one in (self._start.tools.get(name), loaded) if one is not None]

    def _brings_foreign(self, name: str) -> bool:
        return any(tool.foreign for tool in self._find_tools(name))

    def _unknown_in(self, value: Any, local: str = "") -> list[str]:
        """Return the steps that a value refers to and whose outputs are not known."""
        roots = {reference.split(".")[0] for _, reference in references(value)}
        return sorted(roots & self._unknown - {local})

    def _add_row(
        self,
        step: Step,
        outcome: Outcome,
        *,
        on: Sequence[str] = (),
        known: bool = True,
        **more: Any,
    ) -> None:
        """Tell what becomes of a step; ``known``: whether its output is."""
        if not known:
            self._unknown.add(step.id)
        does = step.plan.name if step.plan else step.does
        self.rows[step.id] = SimulatedStep(
            id=step.id, does=does, outcome=outcome, depends_on=list(on), **more
        )
