"""The tools of this machine; a plan is checked against them before anything is started.

What counts are the worker's tools, and the run asks the worker again; but a plan that is refused
here leaves no failed run behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from surehand.cli.verb.caller import Caller
from surehand.cli.verb.ledger_door import translated
from surehand.process.exits import PlanRefused, SurehandError, WrongUse
from surehand.process.settings import NotLoaded, load_named
from surehand.workflows.contracts.tools import PlanError
from surehand.workflows.names import MODEL_RUN
from surehand.workflows.plan.plan import Plan

if TYPE_CHECKING:
    from surehand.activities.tools.toolbox import Toolbox

#: Names the modules; the worker reads the same setting.
TOOLS_SETTING: Final = "SUREHAND_TOOL_MODULES"
MCP_SETTING: Final = "SUREHAND_MCP"
_WORKFLOWS_SETTING: Final = "SUREHAND_WORKFLOW_MODULES"
_AGENTS_SETTING: Final = "SUREHAND_AGENT_MODULES"


def named_tools(caller: Caller) -> Toolbox | None:
    """Return the tools that this environment names; ``None`` if it names none.

    Raises:
        WrongUse: A tool module cannot be used.
    """
    modules, mcp = _modules(caller, TOOLS_SETTING), caller.environment.get(MCP_SETTING, "")
    if not modules and not mcp:
        return None
    with translated():
        from surehand.activities.mcp.tools import mcp_tools
        from surehand.activities.tools.toolbox import load_toolbox

        return load_toolbox(modules, mcp_tools(mcp))


def problems_of(toolbox: Toolbox | None, plan: Plan) -> list[PlanError]:
    """Return what in a plan does not fit the tools; nothing where there are none."""
    if toolbox is None:
        return []
    from surehand.activities.tools.describing import describe_plan

    return describe_plan(toolbox, plan).problems


def workflow_problems(caller: Caller, plan: Plan) -> tuple[list[PlanError], list[str]]:
    """Return which workflows of a plan, and of plans in it, there are not; and what is not known.

    Raises:
        WrongUse: A workflow module cannot be used.
    """
    wanted = {
        f"{where}code": one.code
        for where, one in _plans(plan)
        if one.code is not None and one.code != MODEL_RUN
    }
    modules = _modules(caller, _WORKFLOWS_SETTING)
    if not wanted:
        return [], []
    if not modules:
        near = (
            "" if not get_close_matches(code, [MODEL_RUN]) else f"; did you mean {MODEL_RUN}?"
            for code in wanted.values()
        )
        return [], [
            f"the workflow {code} ({_WORKFLOWS_SETTING} names no modules{hint})"
            for code, hint in zip(wanted.values(), near, strict=True)
        ]
    from surehand.activities.tools.workflow_modules import (
        WorkflowModulesError,
        load_workflows,
        workflow_name,
    )

    try:
        known = [str(workflow_name(one)) for one in load_workflows(modules)]
    except WorkflowModulesError as error:
        raise WrongUse(str(error)) from error
    there = ", ".join(sorted([*known, MODEL_RUN]))
    return [
        PlanError(where=where, reason=f"unknown workflow {code!r}; loaded are: {there}")
        for where, code in wanted.items()
        if code not in known
    ], []


def agent_problems(caller: Caller, plan: Plan) -> tuple[list[PlanError], list[str]]:
    """Return which agents of a plan, and of plans in it, there are not; and what is not known."""
    modules = _modules(caller, _AGENTS_SETTING)
    problems, unsure = list[PlanError](), list[str]()
    for where, one in _plans(plan):
        if one.agent is None:
            continue
        if not modules:
            unsure.append(f"the agent {one.agent} ({_AGENTS_SETTING} names no modules)")
        elif one.agent.partition(":")[0] not in modules:
            reason = f"{one.agent} is in no module of {_AGENTS_SETTING}: {', '.join(modules)}"
            problems.append(PlanError(where=f"{where}agent", reason=reason))
        else:
            try:
                load_named(one.agent)
            except NotLoaded as error:
                problems.append(PlanError(where=f"{where}agent", reason=str(error)))
    return problems, unsure


def _plans(plan: Plan, inside: str = "") -> Iterator[tuple[str, Plan]]:
    """Yield a plan and those in it, each with where it stands."""
    yield inside, plan
    for index, step in enumerate(plan.steps):
        if step.plan is not None:
            yield from _plans(step.plan, f"{inside}steps.{index} ({step.id}).plan.")


def _modules(caller: Caller, setting: str) -> list[str]:
    parts = (part.strip() for part in caller.environment.get(setting, "").split(","))
    return [part for part in parts if part]


def warnings_of(toolbox: Toolbox | None, names: Iterable[str]) -> list[str]:
    """Return what is odd about these tools, and refuses nothing."""
    if toolbox is None:
        return []
    from surehand.activities.tools.lookup_keys import lookup_warning

    tools = [tool for name in sorted(set(names)) if (tool := toolbox.get(name))]
    return [warning for tool in tools if (warning := lookup_warning(tool))]


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
        problems = problems_of(named_tools(caller), plan)
    except SurehandError as error:
        caller.printer.warn(f"the plan is not checked here, but by the worker: {error}")
        return
    if problems:
        raise PlanRefused(file, problems)
