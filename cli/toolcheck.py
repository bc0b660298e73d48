"""Checks a plan against the tools of this machine, before anything is started.

What counts are the worker's tools, and the run asks the worker again; but a plan that is refused
here leaves no failed run behind.
"""

from __future__ import annotations

from cli.caller import Caller
from cli.exits import PlanRefused, StarterError
from cli.ledger_door import translated
from workflows.plan import Plan

#: Names the modules; the worker reads the same setting.
_SETTING = "SUREHAND_TOOL_MODULES"


def refuse_unfit(caller: Caller, file: str, plan: Plan) -> None:
    """Check a plan against the tools that this environment names; without any, nothing is checked.

    Args:
        caller: Whose environment, and where to say that its tools cannot be loaded.
        file: Where the plan comes from.
        plan: The plan.

    Raises:
        PlanRefused: With each problem.
    """
    modules = [part.strip() for part in caller.environment.get(_SETTING, "").split(",")]
    modules = [part for part in modules if part]
    if not modules:
        return
    try:
        with translated():
            from activities.toolbox import load_toolbox
            from activities.tools import describe_plan

            problems = describe_plan(load_toolbox(modules), plan).problems
    except StarterError as error:
        caller.printer.warn(f"the plan is not checked here, but by the worker: {error}")
        return
    if problems:
        raise PlanRefused(file, problems)
