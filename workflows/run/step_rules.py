"""What a plan decides about its steps: params, conditions, items, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from surehand.workflows.contracts.base import Artifact, Late, as_artifact
from surehand.workflows.plan.plan import Ask, Goto, Plan, Step, Wait, names_in, why_too_many_items
from surehand.workflows.plan.references import (
    INPUT,
    ReferenceUnresolved,
    look_up,
    references,
    resolve,
    resolve_text,
)
from surehand.workflows.run.run_records import StepFailed, StepRefused


def resolve_inline(params: dict[str, Any], facts: Mapping[str, Any]) -> tuple[Any, list[Late]]:
    """Resolve a step's params as far as history has their values: large outputs are references.

    Texts that refer to artifacts stay as they are written, and are returned beside the params.
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
    """Put the values of late texts into the params of ``resolve_inline``, in place.

    ``contents`` has the artifacts' values by step id. What a value contains is never read as a
    reference: only texts of the plan are.
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
    return {name: facts[name] for name in sorted(names_in(when) & facts.keys())}


def skipped(reason: str) -> dict[str, Any]:
    """Return what later steps find of one that was skipped."""
    return {"skipped": {"reason": reason}}


def items_of(
    plan: Plan, step: Step, facts: Mapping[str, Any], known: list[Any] | None, room: int
) -> list[Any]:
    """Return the items that a step of a list is done for, ``known`` if they are known already."""
    try:
        items = resolve(step.for_each, facts) if known is None else known
    except ReferenceUnresolved as error:
        raise StepRefused(str(error), called=False) from error
    if not isinstance(items, list) or len(items) > MOST_ITEMS:
        reason = f"{step.for_each} is no list of at most {MOST_ITEMS} items"
        raise StepRefused(reason, called=False)
    if (much := why_too_many_items(plan, room, step, len(items))) is not None:
        raise StepRefused(much, called=False)
    return items


def params_of(step: Step, facts: Mapping[str, Any]) -> tuple[Any, list[Late]]:
    """Return a step's params, and which of their texts wait for an artifact."""
    try:
        params, late = resolve_inline(step.params, facts)
    except ReferenceUnresolved as error:
        raise StepRefused(str(error)) from error
    if late and step.plan is not None:
        raise StepRefused("the input of a child run cannot reach into an artifact")
    return params, late


def question_of(ask: Ask, facts: Mapping[str, Any]) -> str:
    try:
        return str(resolve(ask.question, facts))
    except ReferenceUnresolved as error:
        raise StepRefused(str(error)) from error


def about_of(wait: Wait, facts: Mapping[str, Any]) -> str:
    try:
        return str(resolve(wait.about, facts))
    except ReferenceUnresolved as error:
        raise StepRefused(str(error), called=False) from error


def fallback_of(step: Step) -> Step | None:
    """Return the step with the tool that is asked instead once its own has failed permanently."""
    if step.fallback is None:
        return None
    instead = {"tool": step.fallback.tool, "params": step.fallback.params, "fallback": None}
    return step.model_copy(update=instead)


def after_no(plan: Plan, step: Step, reason: str) -> Goto | None:
    """Return where a plan goes on after a step's tool has answered no; ``None``: at what follows.

    ``StepFailed``: nowhere, that is a failure.
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
    """Return how a plan goes on after a step has failed permanently; ``None``: it does not."""
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
