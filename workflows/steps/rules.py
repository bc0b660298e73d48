"""What a plan decides about its steps: params, conditions, items, freshness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from temporalio import workflow

from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.tools import Effect
from surehand.workflows.contracts.values import Artifact, Late, as_artifact
from surehand.workflows.control.interrupts import Decisions
from surehand.workflows.plan.plan import Ask, Goto, Plan, Step, Wait, names_in
from surehand.workflows.plan.references import (
    INPUT,
    ReferenceUnresolved,
    look_up,
    references,
    resolve,
    resolve_text,
)
from surehand.workflows.plan.size import too_many_items
from surehand.workflows.plan.validation import ancestors, descendants
from surehand.workflows.state.records import StepFailed, StepRefused
from surehand.workflows.state.run_state import WAITING, RunData


def resolve_inline(params: dict[str, Any], facts: Mapping[str, Any]) -> tuple[Any, list[Late]]:
    """Resolve a step's params as far as history has their values.

    Args:
        params: As the plan has them.
        facts: ``input`` and the outputs of finished steps; large ones as references.

    Returns:
        The params, in which texts that refer to artifacts stand as written, and those texts.

    Raises:
        ReferenceUnresolved: If a field is missing.
    """
    late: list[Late] = []

    def large(name: str) -> Artifact | None:
        # The plan's input is whatever its author wrote: it refers to nothing.
        return None if name == INPUT else as_artifact(facts.get(name))

    def walk(value: Any, path: list[str | int]) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, [*path, key]) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, [*path, index]) for index, item in enumerate(value)]
        named = [reference for _, reference in references(value, "")]
        roots = sorted({reference.split(".")[0] for reference in named})
        artifacts = {root: artifact for root in roots if (artifact := large(root)) is not None}
        if not artifacts:
            return resolve(value, facts)
        others = [name for name in named if name.split(".")[0] not in artifacts]
        values = {name: look_up(name, facts) for name in others}
        late.append(Late(path=path, artifacts=artifacts, values=values))
        return value

    return walk(params, []), late


def fill_in(params: dict[str, Any], late: list[Late], contents: Mapping[str, Any]) -> None:
    """Put the values of late texts into the params, in place.

    What a value contains is never read as a reference: only texts of the plan are.

    Args:
        params: As ``resolve_inline`` returned them.
        late: The texts to fill in.
        contents: The artifacts' values by step id.

    Raises:
        ReferenceUnresolved: If a field is missing.
    """
    for item in late:
        holder: Any = params
        for part in item.path[:-1]:
            holder = holder[part]

        def value_of(reference: str, values: Mapping[str, Any] = item.values) -> Any:
            return values[reference] if reference in values else look_up(reference, contents)

        holder[item.path[-1]] = resolve_text(holder[item.path[-1]], value_of)


#: Items of one list: each is a call, and a run's history has an end.
MOST_ITEMS: Final = 1000


def condition_values(when: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a condition is evaluated with."""
    return {name: facts[name] for name in sorted(names_in(when) & facts.keys())}


def skipped(reason: str) -> dict[str, Any]:
    """Return what later steps find of one that was skipped."""
    return {"skipped": {"reason": reason}}


def items_of(
    plan: Plan, step: Step, facts: Mapping[str, Any], known: list[Any] | None, room: int
) -> list[Any]:
    """Return the items that a step is done for.

    Args:
        step: A step of a list.
        facts: ``input`` and the outputs of finished steps.
        known: The items, where they are known already.
        room: How many steps the run may have.

    Raises:
        StepRefused: It is no list, or one of too many items.
    """
    try:
        items = resolve(step.for_each, facts) if known is None else known
    except ReferenceUnresolved as error:
        raise StepRefused(str(error), called=False) from error
    if not isinstance(items, list) or len(items) > MOST_ITEMS:
        reason = f"{step.for_each} is no list of at most {MOST_ITEMS} items"
        raise StepRefused(reason, called=False)
    if (much := too_many_items(plan, room, step, len(items))) is not None:
        raise StepRefused(much, called=False)
    return items


def item_facts(step: Step, item: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the references of an item's step mean."""
    return {**facts, step.item: item}


def output_of_list(steps: Iterable[Step], facts: Mapping[str, Any]) -> list[Any]:
    """Return what a list has returned: the outputs of its items."""
    return [facts.get(one.id) for one in steps]


def params_of(step: Step, facts: Mapping[str, Any]) -> tuple[Any, list[Late]]:
    """Return a step's params, and which of their texts wait for an artifact.

    Raises:
        StepRefused: A reference leads nowhere, or from a child run's input into an artifact.
    """
    try:
        params, late = resolve_inline(step.params, facts)
    except ReferenceUnresolved as error:
        raise StepRefused(str(error)) from error
    if late and step.plan is not None:
        raise StepRefused("the input of a child run cannot reach into an artifact")
    return params, late


def child_plan(plan: Plan, params: Mapping[str, Any]) -> Plan:
    """Return the plan of a child run as it is started."""
    return plan.model_copy(update={"input": {**plan.input, **params}})


def question_of(ask: Ask, facts: Mapping[str, Any]) -> str:
    """Return what a human is asked.

    Raises:
        StepRefused: A reference leads nowhere.
    """
    try:
        return str(resolve(ask.question, facts))
    except ReferenceUnresolved as error:
        raise StepRefused(str(error)) from error


def about_of(wait: Wait, facts: Mapping[str, Any]) -> str:
    """Return what an event has to be about.

    Raises:
        StepRefused: A reference leads nowhere.
    """
    try:
        return str(resolve(wait.about, facts))
    except ReferenceUnresolved as error:
        raise StepRefused(str(error), called=False) from error


def fallback_of(step: Step) -> Step | None:
    """Return the step with the tool that is asked instead once its own has failed for good."""
    if step.fallback is None:
        return None
    instead = {"tool": step.fallback.tool, "params": step.fallback.params, "fallback": None}
    return step.model_copy(update=instead)


def after_no(plan: Plan, step: Step, reason: str) -> Goto | None:
    """Return where a plan goes on after a step's tool has answered no; ``None``: at what follows.

    Raises:
        StepFailed: Nowhere: that is a failure.
    """
    follows = plan.on_no(step)
    if follows == "fail":
        raise StepFailed(f"{step.tool} answered no: {reason}")
    return follows if isinstance(follows, Goto) else None


@dataclass(frozen=True)
class GoesOn:
    """A plan goes on after a step."""

    at: Goto | None
    """Where; ``None``: at what follows."""


def after_failure(plan: Plan, step: Step, failed: StepFailed) -> GoesOn | None:
    """Return how a plan goes on after a step has failed for good; ``None``: it does not."""
    after = plan.on_reject(step) if failed.rejected else plan.on_failure(step)
    if failed.unsettled or failed.given_up or after in ("compensate", "pause", "replan"):
        return None
    return GoesOn(after if isinstance(after, Goto) else None)


def waits_for_a_way_out(plan: Plan, step: Step, failed: StepFailed) -> bool:
    """Return whether a step that has failed waits until somebody says how it goes on."""
    # A rejection with `replan` waits for another plan, or for somebody who gives the step up.
    if failed.rejected:
        return plan.on_reject(step) == "replan"
    return failed.unreviewed or plan.on_failure(step) == "pause"


def left_out(plan: Plan, origin: Step, target: Goto, settled: Set[str]) -> frozenset[str]:
    """Return the steps that are skipped where a plan goes on at a later step."""
    return plan.skipped_by_goto(origin.id, target.goto) - settled


class Freshness:
    """Has one run look again at what it has read."""

    def __init__(self, data: RunData, decisions: Decisions) -> None:
        self._data = data
        self._decisions = decisions

    def look(self) -> list[str]:
        """Hold back what rests on stale outputs; returns the reads that are to be made again."""
        data, plan = self._data, self._data.request.plan
        ahead = {step.id for step in plan.steps if self._is_ahead(step)}
        stale = [one for one in ancestors(plan.uses, *ahead) if self._is_stale(one)]
        for step_id in stale:
            data.stale[step_id] = self._data.facts.get(step_id)
        self._hold(ahead)
        return sorted(stale)

    def due(self) -> bool:
        """Return whether reads wait to be made again."""
        return not self._data.settled.isdisjoint(self._data.stale)

    def begin(self) -> None:
        """Have the stale reads made again, as steps that are not done."""
        for step_id in sorted(self._data.settled & self._data.stale.keys()):
            self._read_again(step_id)

    async def ended(self, step: Step, running: dict[str, asyncio.Task[Any]]) -> None:
        """Take note of the end of a step: if it was read again, of what follows from it.

        Args:
            running: The steps under way; those that are given up are taken out.
        """
        data = self._data
        if step.id not in data.stale:
            return
        before = data.stale.pop(step.id)
        if self._data.facts.get(step.id) == before:
            data.add_line(workflow.now(), "read again: as before", step.id)
        else:
            data.add_line(
                workflow.now(), "read again: changed; what rests on it begins anew", step.id
            )
            await self._begin_anew(step.id, running)
        self._hold(data.held)

    async def _begin_anew(self, changed: str, running: dict[str, asyncio.Task[Any]]) -> None:
        data, plan = self._data, self._data.request.plan
        to_follow, seen = [changed], {changed}
        while to_follow:
            one = to_follow.pop()
            for step in plan.steps:
                if one not in plan.uses[step.id] or step.id in seen | data.stale.keys():
                    continue
                seen.add(step.id)
                if step.id in data.settled and self._is_read(step):
                    data.stale[step.id] = self._data.facts.get(step.id)
                    self._read_again(step.id)
                elif step.id in data.settled:
                    # Nothing makes it again; who approves what rests on it is to know all the same.
                    to_follow.append(step.id)
                elif step.id in running and self._is_ahead(step) and not self._goes_on(step.id):
                    await self._give_up(step.id, running.pop(step.id))

    async def _give_up(self, step_id: str, task: asyncio.Task[Any]) -> None:
        task.cancel()
        await workflow.wait_condition(task.done)
        for approval_id in self._data.gate.standing_of(step_id):
            await self._decisions.close(approval_id, expired=False)
        self._data.set_step(step_id, StepState.PENDING)

    def _hold(self, steps: Set[str]) -> None:
        """Hold back those of these steps that rest on what is still to be read again."""
        data = self._data
        data.held = set(steps & descendants(data.request.plan.uses, *data.stale))

    def _read_again(self, step_id: str) -> None:
        self._data.settled.discard(step_id)
        self._data.facts.pop(step_id, None)
        self._data.set_step(step_id, StepState.PENDING)

    def _is_ahead(self, step: Step) -> bool:
        """Return whether a step can be held back: nothing of it may have happened yet."""
        state = self._data.steps[step.id].state
        if step.id in self._data.unacknowledged:
            return False
        if state is StepState.PENDING:
            return True
        if state not in WAITING or step.for_each is not None or step.plan is not None:
            return False
        if self._data.progress_of(step.id).outcome is not None:
            return False  # It has been called, and waits for what follows from it.
        return step.id not in self._data.saga.unsettled()

    def _goes_on(self, step_id: str) -> bool:
        """Return whether somebody has said how a step goes on: its params are resolved then."""
        at = self._data.progress_of(step_id)
        return at.step is not None and at.call is None

    def _is_read(self, step: Step) -> bool:
        spec = self._data.tools.get(step.tool)
        done = self._data.steps[step.id].state is StepState.SUCCEEDED
        return done and step.for_each is None and spec is not None and spec.effect is Effect.READ

    def _is_stale(self, step_id: str) -> bool:
        data = self._data
        step, read_at = data.request.plan.step(step_id), data.of_step(step_id).read_at
        if read_at is None or not self._is_read(step) or step_id in data.stale:
            return False
        fresh_for = self._data.tools[step.tool].fresh_for
        return fresh_for is not None and workflow.now() - read_at >= fresh_for
