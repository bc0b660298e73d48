"""The tools of this machine: ``tools``, ``mcp``, and ``plan check``: what does not fit them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import JsonValue

from surehand.cli import options
from surehand.cli.options import Caller, argument
from surehand.cli.printer import Reply, Shape, Table, table_or
from surehand.client.plan_file import load_plan
from surehand.process.exits import ExitCode, PlanRefused, SurehandError, WrongUse
from surehand.process.program import command
from surehand.process.settings import NotLoaded, load_named
from surehand.workflows.contracts.tools import ToolDefinition, ToolSpec
from surehand.workflows.names import MODEL_RUN
from surehand.workflows.plain_text import counted, plain_line, suggest_name
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.references import PlanError

if TYPE_CHECKING:
    from surehand.activities.mcp.calls import Offered, SeenTool
    from surehand.activities.mcp.server_file import Reviewed
    from surehand.activities.tools.toolbox import Toolbox


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


class LoadedTool(ToolSpec, ToolDefinition):
    """A tool as runs record it, and as a model is told of it."""


class ToolList(Shape):
    """``tools``."""

    tools: list[LoadedTool]


class McpToolSeen(Shape):
    """A tool of an MCP server."""

    tool: str
    state: Literal["pinned", "not pinned", "changed", "gone", "refused", "unusable"]
    """``refused``: the file does not name it; ``unusable``: no definition that can be taken."""
    effect: str | None
    pin: str | None
    """Digest of the reviewed definition."""
    offered: str | None
    """Digest of the one that the server has now."""
    description: str
    problem: str | None


class McpChange(Shape):
    """One part of a definition that is not as it was reviewed."""

    tool: str
    part: str
    reviewed: JsonValue
    offered: JsonValue


class McpList(Shape):
    """``mcp list``."""

    tools: list[McpToolSeen]
    changes: list[McpChange]
    silent: dict[str, str]
    """Servers that cannot be asked, with the reason."""


class McpPinned(Shape):
    """``mcp pin``."""

    file: str
    pinned: dict[str, str]
    """Digests by tool."""


#: Names the modules; the worker reads the same setting.
TOOLS_SETTING: Final = "SUREHAND_TOOL_MODULES"
MCP_SETTING: Final = "SUREHAND_MCP"
_WORKFLOWS_SETTING: Final = "SUREHAND_WORKFLOW_MODULES"
_AGENTS_SETTING: Final = "SUREHAND_AGENT_MODULES"


def named_tools(caller: Caller) -> Toolbox | None:
    """Return the tools that this environment names; ``None`` if it names none."""
    modules, mcp = _modules(caller, TOOLS_SETTING), caller.environment.get(MCP_SETTING, "")
    if not modules and not mcp:
        return None
    return options.read_toolbox(modules, mcp)


def problems_of(toolbox: Toolbox | None, plan: Plan) -> list[PlanError]:
    """Return what in a plan does not fit the tools; nothing where there are none."""
    if toolbox is None:
        return []
    from surehand.activities.tools.describing import describe_plan

    return describe_plan(toolbox, plan).problems


def module_problems(caller: Caller, plan: Plan) -> tuple[list[PlanError], list[str]]:
    """Return which workflows and agents of a plan are missing, and which nobody can know here."""
    workflows, agents = _modules(caller, _WORKFLOWS_SETTING), _modules(caller, _AGENTS_SETTING)
    problems, unsure = list[PlanError](), list[str]()
    for where, one in _plans_inside(plan):
        if one.code not in (None, MODEL_RUN):
            if not workflows:
                hint = suggest_name(str(one.code), [MODEL_RUN])
                why = f"{_WORKFLOWS_SETTING} names no modules{hint}"
                unsure.append(f"the workflow {one.code} ({why})")
            elif one.code not in (known := _workflow_names(workflows)):
                there = ", ".join(sorted([*known, MODEL_RUN]))
                reason = f"unknown workflow {one.code!r}; loaded are: {there}"
                problems.append(PlanError(where=f"{where}code", reason=reason))
        if one.agent is not None and not agents:
            unsure.append(f"the agent {one.agent} ({_AGENTS_SETTING} names no modules)")
        elif one.agent is not None and one.agent.partition(":")[0] not in agents:
            reason = f"{one.agent} is in no module of {_AGENTS_SETTING}: {', '.join(agents)}"
            problems.append(PlanError(where=f"{where}agent", reason=reason))
        elif one.agent is not None:
            try:
                load_named(one.agent)
            except NotLoaded as error:
                problems.append(PlanError(where=f"{where}agent", reason=str(error)))
    return problems, unsure


def _workflow_names(modules: list[str]) -> list[str]:
    from surehand.activities.tools.toolbox import load_workflows, workflow_name

    return [str(workflow_name(one)) for one in load_workflows(modules)]


def _plans_inside(plan: Plan, inside: str = "") -> Iterator[tuple[str, Plan]]:
    yield inside, plan
    for index, step in enumerate(plan.steps):
        if step.plan is not None:
            yield from _plans_inside(step.plan, f"{inside}steps.{index} ({step.id}).plan.")


def _modules(caller: Caller, setting: str) -> list[str]:
    parts = (part.strip() for part in caller.environment.get(setting, "").split(","))
    return [part for part in parts if part]


def warnings_of(toolbox: Toolbox | None, names: Iterable[str]) -> list[str]:
    """Return what is odd about these tools, and refuses nothing."""
    if toolbox is None:
        return []
    from surehand.activities.tools.toolbox import lookup_warning

    tools = [tool for name in sorted(set(names)) if (tool := toolbox.get(name))]
    return [warning for tool in tools if (warning := lookup_warning(tool))]


def refuse_unfit(caller: Caller, file: str, plan: Plan) -> None:
    try:
        problems = problems_of(named_tools(caller), plan)
    except SurehandError as error:
        caller.printer.warn(f"the plan is not checked here, but by the worker: {error}")
        return
    if problems:
        raise PlanRefused(file, problems)


async def tools(caller: options.Anybody) -> Reply:
    """Show the tools that a worker with these settings would load.

    Example: surehand tools
    """
    toolbox = named_tools(caller)
    specs = [] if toolbox is None else toolbox.specs()
    rows = [
        [
            spec.name,
            spec.version,
            spec.effect,
            spec.recovery,
            spec.compensation or ("irreversible" if spec.irreversible else ""),
            "needed" if spec.approval else "",
            spec.description,
        ]
        for spec in specs
    ]
    columns = ("tool", "version", "effect", "recovery", "undone by", "approval", "does")
    nothing = "No tools: name their modules in SUREHAND_TOOL_MODULES, or a file in SUREHAND_MCP"
    shown = [
        LoadedTool(**{**dict(spec), **dict(tool.definition())})
        for spec in specs
        if toolbox is not None and (tool := toolbox.get(spec.name)) is not None
    ]
    return Reply(ToolList(tools=shown), table_or(columns, rows, nothing))


_DEFAULT: Final = "surehand.mcp.yaml"
_LONGEST: Final = 100
#: States in which a tool cannot be pinned, and is not called.
_STATES: Final = {
    "gone": "no server that answers offers it",
    "refused": "the file does not name it: say there what it does",
}

Tools = Annotated[
    list[str] | None,
    argument(
        "TOOL",
        "As server.tool, or server.tool@DIGEST to pin just that; default those without a pin.",
    ),
]


async def list_mcp(caller: options.Anybody) -> Reply:
    """Show what servers offer, and what is not as it was reviewed: then its exit code is 3.

    Example: surehand mcp list
    """
    from surehand.activities.mcp.calls import changes, sides

    _, offered = await _ask_servers(caller)
    seen = [_show_tool(one) for one in offered.tools]
    rows = [
        [one.tool, one.state, one.effect or "", one.offered or "", one.problem or one.description]
        for one in seen
    ]
    changed = [
        one
        for one in offered.tools
        if one.pin is not None and one.state in ("changed", "gone", "unusable")
    ]
    found = [
        McpChange(tool=one.full, part=part, reviewed=before, offered=now)
        for one in changed
        for part, before, now in changes(one.reviewed, one.offered)
    ]
    lines = [*table_or(("tool", "state", "effect", "offered", "says of itself"), rows, "No tools")]
    states = {one.state for one in seen}
    lines += [f"{state}: {why}" for state, why in _STATES.items() if state in states]
    if found:
        differ = [[one.tool, one.part, *sides(one.reviewed, one.offered)] for one in found]
        lines += ["", Table(("changed tool", "part", "reviewed", "offered"), differ)]
    pins = [f"{one.full}@{one.digest}" for one in changed if one.digest is not None]
    lines += [f"Accept this definition: {command('mcp', 'pin', pin)}" for pin in pins]
    code = ExitCode.NOT_REACHABLE if offered.silent else ExitCode.DONE
    return Reply(
        McpList(tools=seen, changes=found, silent=dict(offered.silent)),
        [*lines, *_silent_lines(offered)],
        ExitCode.BROKEN if found else code,
    )


async def pin(caller: options.Anybody, tools: Tools = None) -> Reply:
    """Take what servers offer as reviewed: it goes into the file of pins beside the MCP file.

    Servers are asked once more. With a digest, as `mcp list` prints it, nothing is
    pinned that was not shown. A tool that has changed since it was pinned has to be named.

    Example: surehand mcp pin shop.create_refund
    """
    from surehand.activities.mcp.calls import write_pins

    reviewed, offered = await _ask_servers(caller)
    known = {one.full: one for one in offered.tools}
    named = {name: digest for name, _, digest in (one.partition("@") for one in tools or ())}
    for name, wanted in named.items():
        if name not in known:
            raise WrongUse(f"{name}: {_STATES['gone']}{suggest_name(name, known)}")
        if (why := known[name].problem or _STATES.get(known[name].state)) is not None:
            raise WrongUse(f"{name}: {why}")
        if wanted and wanted != known[name].digest:
            raise WrongUse(f"{name}: the server offers {known[name].digest} now, not {wanted}")
    chosen = [
        one
        for one in offered.tools
        if (one.full in named if tools else one.state == "not pinned") and one.state != "pinned"
    ]
    if chosen:
        write_pins(reviewed, chosen)
    for name in (one.full for one in offered.tools if one.state == "gone" and not tools):
        caller.printer.warn(f"{name}: {_STATES['gone']}")
    pinned = {one.full: str(one.digest) for one in chosen}
    lines = [f"Pinned {name}: {digest}" for name, digest in pinned.items()]
    nothing = [f"Nothing to pin: {reviewed.path} names no tool without a pin"]
    return Reply(
        McpPinned(file=str(reviewed.path), pinned=pinned),
        [*(lines or nothing), *_silent_lines(offered)],
        ExitCode.NOT_REACHABLE if offered.silent else ExitCode.DONE,
    )


async def _ask_servers(caller: Caller) -> tuple[Reviewed, Offered]:
    from surehand.activities.mcp.calls import ask_servers
    from surehand.activities.mcp.server_file import read_file

    reviewed = read_file(Path(caller.environment.get(MCP_SETTING) or _DEFAULT))
    return reviewed, await ask_servers(reviewed)


def _show_tool(one: SeenTool) -> McpToolSeen:
    description = "" if one.problem else str((one.offered or {}).get("description", ""))
    return McpToolSeen(
        tool=one.full,
        state=one.state,
        effect=one.said.effect if one.said else None,
        pin=one.pin,
        offered=one.digest,
        description=plain_line(description, _LONGEST),
        problem=one.problem,
    )


def _silent_lines(offered: Offered) -> list[str | Table]:
    return [f"{name} cannot be asked: {reason}" for name, reason in offered.silent.items()]


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
        steps=sum(len(one.steps) for _, one in _plans_inside(parsed)),
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
    for _, one in _plans_inside(plan):
        for step in one.steps:
            yield step.tool
            if step.fallback is not None:
                yield step.fallback.tool
