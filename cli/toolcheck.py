"""The tools of this machine; a plan is checked against them before anything is started.

What counts are the worker's tools, and the run asks the worker again; but a plan that is refused
here leaves no failed run behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cli.caller import Caller
from cli.exits import PlanRefused, StarterError
from cli.ledger_door import translated
from workflows.contracts import PlanError
from workflows.plan import Plan

if TYPE_CHECKING:
    from activities.toolbox import Toolbox

#: Names the modules; the worker reads the same setting.
_SETTING = "SUREHAND_TOOL_MODULES"


def named_tools(caller: Caller) -> Toolbox | None:
    """Return the tools that this environment names; ``None`` if it names none.

    Raises:
        WrongUse: A tool module cannot be used.
    """
    modules = [part.strip() for part in caller.environment.get(_SETTING, "").split(",")]
    modules = [part for part in modules if part]
    if not modules:
        return None
    with translated():
        from activities.toolbox import load_toolbox

        return load_toolbox(modules)


def problems_of(caller: Caller, plan: Plan) -> list[PlanError] | None:
    """Return what in a plan does not fit the tools; ``None`` if this environment names none.

    Raises:
        WrongUse: A tool module cannot be used.
    """
    toolbox = named_tools(caller)
    if toolbox is None:
        return None
    with translated():
        from activities.describing import describe_plan

        return describe_plan(toolbox, plan).problems


def warnings_of(caller: Caller, names: Iterable[str] | None = None) -> list[str]:
    """Return what is odd about tools, and refuses nothing.

    Args:
        caller: Whose environment names the modules.
        names: Those tools only; ``None``: all that are loaded.

    Raises:
        WrongUse: A tool module cannot be used.
    """
    toolbox = named_tools(caller)
    if toolbox is None:
        return []
    with translated():
        from activities.lookup_keys import lookup_warning

        wanted = toolbox.names() if names is None else sorted(set(names))
        tools = (toolbox.get(name) for name in wanted)
        found = (lookup_warning(tool) for tool in tools if tool is not None)
        return [warning for warning in found if warning is not None]


def refuse_unfit(caller: Caller, file: str, plan: Plan) -> None:
    """Check a plan against the tools that this environment names; without any, nothing is checked.

    Args:
        caller: Whose environment, and where to say that its tools cannot be loaded.
        file: Where the plan comes from.
        plan: The plan.

    Raises:
        PlanRefused: With each problem.
    """
    try:
        problems = problems_of(caller, plan)
    except StarterError as error:
        caller.printer.warn(f"the plan is not checked here, but by the worker: {error}")
        return
    if problems:
        raise PlanRefused(file, problems)
