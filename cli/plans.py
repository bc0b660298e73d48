"""``plan check``: looking at a plan without a server."""

from __future__ import annotations

from collections.abc import Iterator

from surehand.cli import options
from surehand.cli.printer import Reply, Shape, counted
from surehand.cli.tools import TOOLS_SETTING, module_problems, named_tools, problems_of, warnings_of
from surehand.client.plan_file import load_plan
from surehand.process.exits import PlanRefused
from surehand.workflows.plan.plan import Plan


class PlanChecked(Shape):
    """``plan check`` of a plan that is valid; what is wrong with others is an ``ErrorReport``."""

    file: str
    plan: str
    steps: int
    """Those of plans inside it included."""
    tools_checked: bool
    """False: no tools are named here, and the worker's tools may still refuse it."""
    not_checked: list[str] = []
    """What only a worker can tell, and why."""
    warnings: list[str] = []
    """What is odd about its tools, and refuses nothing."""


def check(
    caller: options.Anybody, plan: options.PlanFile, changes: options.Changes = None
) -> Reply:
    """Validate a plan as `start` does, and start nothing; with tools where they are named.

    Example: surehand plan check examples/refund.yaml
    """
    toolbox = named_tools(caller)
    tools = None if toolbox is None else toolbox.names()
    parsed = load_plan(plan, changes or [], tools)
    missing, not_checked = module_problems(caller, parsed)
    problems = [*missing, *problems_of(toolbox, parsed)]
    if problems:
        raise PlanRefused(plan, problems)
    if tools is None:
        not_checked.append(f"its tools and params ({TOOLS_SETTING} names none)")
    checked = PlanChecked(
        file=plan,
        plan=parsed.name,
        steps=_count_steps(parsed),
        tools_checked=tools is not None,
        not_checked=not_checked,
        warnings=warnings_of(toolbox, tools_in(parsed)),
    )
    for warning in checked.warnings:
        caller.printer.warn(warning)
    steps = counted(checked.steps, "step")
    made = steps if parsed.code is None else f"its steps are made by the workflow {parsed.code}"
    said = [f"Not checked: {one}" for one in checked.not_checked]
    return Reply(checked, [f"{plan}: valid: plan {parsed.name}, {made}", *said])


def tools_in(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        if step.plan is not None:
            yield from tools_in(step.plan)
        yield step.tool


def _count_steps(plan: Plan) -> int:
    return sum(1 + (_count_steps(step.plan) if step.plan else 0) for step in plan.steps)
