"""``plan check``, ``plan graph`` and ``plan schema``: looking at plans without a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Final, Literal

import typer
from rich.cells import cell_len, chop_cells, set_cell_size

from surehand.cli import options
from surehand.cli.plan_schema import plan_schema
from surehand.cli.printer import Reply, counted
from surehand.cli.shapes import Shape
from surehand.cli.tools import (
    TOOLS_SETTING,
    agent_problems,
    named_tools,
    problems_of,
    warnings_of,
    workflow_problems,
)
from surehand.client.plan_file import load_plan
from surehand.process.exits import ExitCode, PlanRefused, WrongUse
from surehand.workflows.contracts.tools import Effect, ToolSpec
from surehand.workflows.plain_text import plain, plain_line
from surehand.workflows.plan.plan import Goto, Plan, Step
from surehand.workflows.plan.references import ancestors

Kind = Literal["read", "write", "tool", "ask", "wait", "plan"]


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


class GraphEdge(Shape):
    """What follows what."""

    source: str
    target: str
    on: list[Literal["on_no", "on_failure", "on_reject"]] = []
    """The ends of ``source`` at which the run goes on there; nothing: ``target`` waits for it."""


class GraphNode(Shape):
    """One step."""

    id: str
    kind: Kind
    """``tool``: of a tool that is not known here, so nobody can say whether it reads or writes."""
    does: str
    """The tool's name, the question, the event or the inner plan's name."""
    layer: int
    """Counts from 1: those of one layer run together, as far as their steps take equally long."""
    approval: bool
    """Whether the plan or the tool, where it is known, asks for an approval, maybe by its rules."""
    when: str | None
    for_each: str | None
    parallel: int
    interrupts: list[Literal["before", "after"]]
    fallback: str | None
    plan: PlanGraph | None
    """The plan that the step is."""


class PlanGraph(Shape):
    """``plan graph``."""

    name: str
    goal: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    """Waits that others imply are left out."""


_PLACES: Final[tuple[Literal["before", "after"], ...]] = ("before", "after")
_End = Literal["on_no", "on_failure", "on_reject"]


def graph_of(plan: Plan, tools: Mapping[str, ToolSpec]) -> PlanGraph:
    """Return the graph of a plan."""
    layers = _layers(plan)
    return PlanGraph(
        name=plan.name,
        goal=plan.goal,
        nodes=[_node(plan, step, layers[step.id], tools) for step in plan.steps],
        edges=[*_waits(plan), *(edge for step in plan.steps for edge in _gotos(plan, step))],
    )


def _node(plan: Plan, step: Step, layer: int, tools: Mapping[str, ToolSpec]) -> GraphNode:
    tool = tools.get(step.tool)
    asked = bool(step.tool) and (
        bool(plan.approvals(step)) or (tool is not None and tool.approval is not None)
    )
    return GraphNode(
        id=step.id,
        kind=_kind(step, tool),
        does=_does(step),
        layer=layer,
        approval=asked,
        when=step.when,
        for_each=step.for_each,
        parallel=step.parallel,
        interrupts=[place for place in _PLACES if plan.interrupted(step, place)],
        fallback=step.fallback.tool if step.fallback else None,
        plan=graph_of(step.plan, tools) if step.plan else None,
    )


def _kind(step: Step, tool: ToolSpec | None) -> Kind:
    if step.plan is not None:
        return "plan"
    if step.ask is not None:
        return "ask"
    if step.wait is not None:
        return "wait"
    if tool is None:
        return "tool"
    return "read" if tool.effect is Effect.READ else "write"


def _does(step: Step) -> str:
    if step.plan is not None:
        return step.plan.name
    if step.ask is not None:
        return step.ask.question
    return step.tool if step.wait is None else step.wait.event


def _layers(plan: Plan) -> dict[str, int]:
    """Return for each step how many others come one after another up to it, itself included."""
    waiting, layers = dict(plan.dependencies), dict[str, int]()
    while waiting:  # a plan has no cycles
        for step_id in [key for key, needs in waiting.items() if needs <= layers.keys()]:
            layers[step_id] = 1 + max((layers[need] for need in waiting.pop(step_id)), default=0)
    return layers


def _waits(plan: Plan) -> list[GraphEdge]:
    found = []
    for step in plan.steps:
        needs = plan.dependencies[step.id]
        implied = ancestors(plan.dependencies, *needs)
        direct = [other.id for other in plan.steps if other.id in needs - implied]
        found += [GraphEdge(source=other, target=step.id) for other in direct]
    return found


def _gotos(plan: Plan, step: Step) -> list[GraphEdge]:
    targets: dict[str, list[_End]] = {}
    ends: dict[_End, object] = {
        "on_no": plan.on_no(step),
        "on_failure": plan.on_failure(step),
        "on_reject": plan.on_reject(step),
    }
    for end, follows in ends.items():
        if isinstance(follows, Goto):
            targets.setdefault(follows.goto, []).append(end)
    return [GraphEdge(source=step.id, target=to, on=on) for to, on in targets.items()]


#: The shape of each kind, around its label.
_SHAPES: Final[dict[Kind, tuple[str, str]]] = {
    "read": ("[/", "/]"),
    "write": ("[", "]"),
    "tool": ("[", "]"),
    "ask": ("{{", "}}"),
    "wait": ("([", "])"),
    "plan": ("[[", "]]"),
}
#: Characters that mean something to Mermaid, or to the HTML that it becomes.
_CODES: Final = {ord(sign): f"#{ord(sign)};" for sign in "#&<>\"'`\\"}
_LONGEST: Final = 60


def mermaid(graph: PlanGraph) -> list[str]:
    """Return the lines of a flowchart."""
    return [
        "flowchart TD",
        *_part(graph, "s", "  "),
        "  classDef approval stroke-width:4px",
        "  classDef human stroke-dasharray:6 3",
    ]


def _part(graph: PlanGraph, prefix: str, indent: str) -> Iterator[str]:
    # Numbers, because an id such as `end` is a word of Mermaid's.
    names = {node.id: f"{prefix}{number}" for number, node in enumerate(graph.nodes, start=1)}
    for node in graph.nodes:
        yield from _drawn(node, names[node.id], indent)
    for edge in graph.edges:
        arrow = f"-. {' / '.join(edge.on)} .->" if edge.on else "-->"
        yield f"{indent}{names[edge.source]} {arrow} {names[edge.target]}"


def _drawn(node: GraphNode, name: str, indent: str) -> Iterator[str]:
    label = "<br/>".join(_label(text) for text in [node.id, *notes(node)])
    if node.plan is not None:
        yield f'{indent}subgraph {name}["{label}"]'
        yield from _part(node.plan, f"{name}_", f"{indent}  ")
        yield f"{indent}end"
    else:
        before, behind = _SHAPES[node.kind]
        yield f'{indent}{name}{before}"{label}"{behind}'
    if node.approval:
        yield f"{indent}class {name} approval"
    elif node.interrupts:
        yield f"{indent}class {name} human"


def notes(node: GraphNode) -> list[str]:
    """Return what there is to be said of a step beside its id, a line each."""
    lines = [f"{node.kind}: {node.does}"]
    if node.when is not None:
        lines.append(f"when {node.when}")
    if node.for_each is not None:
        at_once = f", {node.parallel} at a time" if node.parallel > 1 else ""
        lines.append(f"for each of {node.for_each}{at_once}")
    if node.fallback is not None:
        lines.append(f"else {node.fallback}")
    if node.approval:
        lines.append("needs an approval")
    if node.interrupts:
        lines.append(f"a human looks {' and '.join(node.interrupts)}")
    return lines


def _label(text: str) -> str:
    return plain_line(text, _LONGEST).translate(_CODES)


#: Columns: a box is never wider, and a terminal never taken for narrower.
_WIDEST: Final = 44
_NARROWEST: Final = 24


def picture(graph: PlanGraph, width: int) -> list[str]:
    """Return the lines of a picture."""
    width = max(width, _NARROWEST)
    goal = f": {graph.goal}" if graph.goal else ""
    lines = _wrapped(f"{graph.name}{goal}", width)
    above: frozenset[str] = frozenset()
    inner: list[GraphNode] = []
    by_layer = sorted(graph.nodes, key=lambda node: node.layer)
    for layer, found in groupby(by_layer, key=lambda node: node.layer):
        nodes = list(found)
        lines += [] if layer == 1 else ["  |", "  v"]
        lines += _side_by_side([_box(_said(node, graph, above), width) for node in nodes], width)
        above = frozenset(node.id for node in nodes)
        inner += [node for node in nodes if node.plan is not None]
    for node in inner:
        assert node.plan is not None
        lines += ["", f"step {plain(node.id)} is this plan:"]
        lines += [f"  {line}" for line in picture(node.plan, width - 2)]
    return lines


def _said(node: GraphNode, graph: PlanGraph, above: frozenset[str]) -> Iterator[str]:
    yield node.id
    yield from notes(node)
    waits = [e.source for e in graph.edges if e.target == node.id and not e.on]
    # What the picture shows by itself is not said: a step waits for the whole layer above it.
    if frozenset(waits) != above:
        yield f"after {', '.join(waits)}" if waits else "starts at once"
    for edge in graph.edges:
        if edge.source == node.id and edge.on:
            yield f"{', '.join(edge.on)} ..> {edge.target}"


def _box(texts: Iterator[str], width: int) -> list[str]:
    room = min(width, _WIDEST) - 4
    lines = [line for text in texts for line in _wrapped(text, room)]
    inside = max(cell_len(line) for line in lines)
    edge = f"+{'-' * (inside + 2)}+"
    return [edge, *(f"| {set_cell_size(line, inside)} |" for line in lines), edge]


def _wrapped(text: str, room: int) -> list[str]:
    lines = [""]
    for word in plain(" ".join(text.split())).split(" "):
        # A word that is longer than a line is cut.
        for part in chop_cells(word, room):
            joined = f"{lines[-1]} {part}" if lines[-1] else part
            if cell_len(joined) <= room:
                lines[-1] = joined
            else:
                lines.append(part)
    return lines


def _side_by_side(boxes: Sequence[list[str]], width: int) -> list[str]:
    """Return boxes in rows as wide as there is room."""
    rows: list[list[list[str]]] = []
    used = 0
    for box in boxes:
        needed = cell_len(box[0]) + 2
        if not rows or used + needed - 2 > width:
            rows.append([])
            used = 0
        rows[-1].append(box)
        used += needed
    lines = []
    for row in rows:
        for number in range(max(len(box) for box in row)):
            cells = (box[number] if number < len(box) else " " * cell_len(box[0]) for box in row)
            lines.append("  ".join(cells).rstrip())
    return lines


class Format(StrEnum):
    """How ``plan graph`` draws."""

    TEXT = "text"
    MERMAID = "mermaid"


def check(
    caller: options.Anybody,
    plan: options.PlanFile,
    changes: options.Changes = None,
) -> Reply:
    """Validate a plan as `start` does, and start nothing; with tools where they are named.

    Example: python starter.py plan check examples/refund.yaml
    """
    toolbox = named_tools(caller)
    tools = None if toolbox is None else toolbox.names()
    parsed = load_plan(plan, changes or [], tools)
    unknown, not_checked = workflow_problems(caller, parsed)
    no_agents, unsure = agent_problems(caller, parsed)
    not_checked += unsure
    problems = [*unknown, *no_agents, *problems_of(toolbox, parsed)]
    if problems:
        raise PlanRefused(plan, problems)
    if tools is None:
        not_checked.append(f"its tools and params ({TOOLS_SETTING} names none)")
    checked = PlanChecked(
        file=plan,
        plan=parsed.name,
        steps=_steps(parsed),
        tools_checked=tools is not None,
        not_checked=not_checked,
        warnings=warnings_of(toolbox, _tools(parsed)),
    )
    for warning in checked.warnings:
        caller.printer.warn(warning)
    steps = counted(checked.steps, "step")
    made = steps if parsed.code is None else f"its steps are made by the workflow {parsed.code}"
    said = [f"Not checked: {one}" for one in checked.not_checked]
    return Reply(checked, [f"{plan}: valid: plan {parsed.name}, {made}", *said])


def graph(
    caller: options.Anybody,
    plan: options.PlanFile,
    changes: options.Changes = None,
    form: Annotated[
        Format, typer.Option("--format", help="A picture as text, or a Mermaid flowchart.")
    ] = Format.TEXT,
) -> Reply:
    """Draw a plan: what waits for what, what needs a human, and where gotos lead.

    Example: python starter.py plan graph examples/refund.yaml --format mermaid
    """
    parsed = load_plan(plan, changes or [])
    if parsed.code is not None:
        raise WrongUse(f"{plan}: the workflow {parsed.code} makes its steps: nothing to draw")
    toolbox = named_tools(caller)
    known = {} if toolbox is None else {spec.name: spec for spec in toolbox.specs()}
    drawn = graph_of(parsed, known)
    width = caller.printer.console.width
    return Reply(drawn, mermaid(drawn) if form is Format.MERMAID else picture(drawn, width))


def schema(
    caller: options.Anybody,
) -> ExitCode:
    """Print the JSON Schema of plan files, always as JSON; editors complete plans with it.

    Example: python starter.py plan schema > plan.schema.json
    """
    caller.printer.document(plan_schema())
    return ExitCode.DONE


def _tools(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        if step.plan is not None:
            yield from _tools(step.plan)
        yield step.tool


def _steps(plan: Plan) -> int:
    return sum(1 + (_steps(step.plan) if step.plan else 0) for step in plan.steps)
