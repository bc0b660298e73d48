"""A plan as a graph: its steps, what waits for what, and where gotos lead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from cli.plan_shapes import GraphEdge, GraphNode, Kind, PlanGraph
from workflows.coherence import ancestors
from workflows.contracts import Effect, ToolSpec
from workflows.plan import Goto, Plan, Step

_PLACES: Final[tuple[Literal["before", "after"], ...]] = ("before", "after")
_End = Literal["on_no", "on_failure", "on_reject"]


def graph_of(plan: Plan, tools: Mapping[str, ToolSpec]) -> PlanGraph:
    """Return the graph of a plan.

    Args:
        plan: The plan.
        tools: The tools that are known here, by name.
    """
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
