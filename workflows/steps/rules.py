"""What a plan makes of its steps: the rules of a run, and of ``simulate``, as pure functions.

Given a plan, what its steps have returned and how a step has ended, they say what is next. Nothing
is called here, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from surehand.workflows.contracts.artifacts import Late
from surehand.workflows.plan.plan import Ask, Goto, Plan, Step, Wait, names_in
from surehand.workflows.plan.references import ReferenceUnresolved, resolve
from surehand.workflows.plan.size import too_many_items
from surehand.workflows.state.step_failure import StepFailed, StepRefused
from surehand.workflows.steps.deferred import resolve_inline

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
        plan: The plan.
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
