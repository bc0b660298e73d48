"""What a plan's tools are, and what in the plan does not fit them, before its run is opened."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from activities import rules
from activities.json_schemas import schema_problem
from activities.toolbox import Tool, Toolbox
from workflows.contracts import Effect, PlanError, ToolsDescribed
from workflows.identity import NotCanonical, digest
from workflows.plan import Plan, Step
from workflows.references import REFERENCE
from workflows.wording import reason_of


def describe_plan(toolbox: Toolbox, plan: Plan) -> ToolsDescribed:
    """Return the specs of a plan's tools, and what in the plan does not fit them."""
    try:
        digest(plan.model_dump(mode="json"))
    except NotCanonical as error:
        # The ledger keeps its digest: without one, it would be asked for ever.
        return ToolsDescribed(tools={}, problems=[PlanError(where="plan", reason=str(error))])
    specs, problems = {}, []
    for index, step in enumerate(plan.steps):
        where = f"steps.{index} ({step.id})"
        if step.when is not None and (wrong := rules.condition_problem(step.when)) is not None:
            problems.append(PlanError(where=f"{where}.when", reason=wrong))
        if step.wait is not None:
            continue
        if step.plan is not None:
            inside = describe_plan(toolbox, step.plan)
            problems += [
                PlanError(where=f"{where}.plan.{problem.where}", reason=problem.reason)
                for problem in inside.problems
            ]
            continue
        if step.ask is not None:
            reason = schema_problem(step.ask.answer)
            if reason is not None:
                problems.append(PlanError(where=f"{where}.ask.answer", reason=reason))
            continue
        tool = toolbox.get(step.tool)
        if tool is None:
            known = ", ".join(toolbox.names())
            reason = f"unknown tool {step.tool!r}; loaded are: {known}"
            problems.append(PlanError(where=f"{where}.tool", reason=reason))
            continue
        specs[tool.name] = tool.spec()
        if step.fallback is not None:
            instead = toolbox.get(step.fallback.tool)
            if instead is None or {tool.effect, instead.effect} != {Effect.READ}:
                reason = f"{step.fallback.tool!r}: a read that is loaded, in the place of a read"
                problems.append(PlanError(where=f"{where}.fallback.tool", reason=reason))
            else:
                specs[instead.name] = instead.spec()
        problems += [
            PlanError(where=f"{where}.params{path}", reason=reason)
            for path, reason in literal_problems(tool, step)
        ]
        problems += [
            PlanError(where=f"{where}.approval", reason=reason)
            for reason in rules.problems(plan.approvals(step), tool.params_model)
        ]
    return ToolsDescribed(tools=specs, problems=problems)


def literal_problems(tool: Tool, step: Step) -> list[tuple[str, str]]:
    """Return what the tool's model refuses in a step's params, as far as they are written out.

    A value with a reference in it is only known when the step starts, and is checked then.
    """
    try:
        tool.validate(step.params)
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            path = [str(part) for part in item["loc"]]
            if _has_reference(_at(step.params, path)):
                continue
            problems.append(("".join(f".{part}" for part in path), reason_of(item)))
        return problems
    except Exception as error:  # a validator of the user's own
        return [] if _has_reference(step.params) else [("", repr(error))]
    return []


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            # A field that is missing, or a branch of a union: nothing written here can be at fault.
            return None
    return value


def _has_reference(value: Any) -> bool:
    if isinstance(value, str):
        return REFERENCE.search(value) is not None
    if isinstance(value, dict):
        return any(_has_reference(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_reference(item) for item in value)
    return False
