"""A run's plan as a graph with the state of each step: what a page lists, and where it draws it.

It is laid out here, and a script makes its elements: no script may make markup of text
(``headers.py``), and a drawing that follows its run would be such markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from surehand.cli.plans import GraphEdge, GraphNode, PlanGraph, graph_of
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.plan.plan import Plan

#: Of the drawing, in its own units: a box, and the gaps beside and below it.
_WIDTH: Final = 160
_HEIGHT: Final = 48
_BESIDE: Final = 16
_BELOW: Final = 36
#: Beyond that nobody reads a drawing: the list is there in any case.
MOST_DRAWN: Final = 60
WIDEST_DRAWN: Final = 6


def run_graph(plan: Plan, steps: Sequence[StepView]) -> dict[str, Any]:
    """Return a run's steps with what each waits for, and a drawing of them.

    Steps that no plan names (those of code, of lists) come behind the others.

    Args:
        plan: As the run has it now.
        steps: As the run has them now.
    """
    graph = graph_of(plan, {})
    views = {one.id: one for one in steps}
    named = [_listed(node, graph, views.get(node.id)) for node in graph.nodes]
    known = {node.id for node in graph.nodes}
    others = [_line(one.id, one.tool, one) for one in steps if one.id not in known]
    return {"steps": [*named, *others], "drawing": _drawing(graph, views)}


def _listed(node: GraphNode, graph: PlanGraph, view: StepView | None) -> dict[str, Any]:
    waits = [edge.source for edge in graph.edges if edge.target == node.id and not edge.on]
    jumps = [
        {"to": edge.target, "on": list(edge.on)}
        for edge in graph.edges
        if edge.source == node.id and edge.on
    ]
    return {**_line(node.id, node.does, view), "after": waits, "jumps": jumps, "when": node.when}


def _line(step_id: str, does: str, view: StepView | None) -> dict[str, Any]:
    state = StepState.PENDING if view is None else view.state
    return {
        "id": step_id,
        "does": does,
        "state": state.value,
        "error": None if view is None else view.error,
        "undone": None if view is None else view.undone,
        "child": None if view is None else view.child,
        "after": None,
        "jumps": [],
        "when": None,
    }


def _drawing(graph: PlanGraph, views: dict[str, StepView]) -> dict[str, Any] | None:
    """Return where boxes and lines are; ``None``: there is nothing to draw, or too much."""
    in_layer = Counter(node.layer for node in graph.nodes)
    widest = max(in_layer.values(), default=0)
    if len(graph.nodes) not in range(2, MOST_DRAWN + 1) or widest > WIDEST_DRAWN:
        return None
    width = widest * (_WIDTH + _BESIDE) + _BESIDE
    places, seen = dict[str, tuple[int, int]](), Counter[int]()
    for node in graph.nodes:
        # Each layer in the middle.
        left = (width - in_layer[node.layer] * (_WIDTH + _BESIDE) + _BESIDE) // 2
        x = left + seen[node.layer] * (_WIDTH + _BESIDE)
        places[node.id] = (x, _BESIDE + (node.layer - 1) * (_HEIGHT + _BELOW))
        seen[node.layer] += 1
    states = {name: view.state.value for name, view in views.items()}
    pending = StepState.PENDING.value
    boxes = [
        {"id": name, "state": states.get(name, pending), "x": x, "y": y}
        for name, (x, y) in places.items()
    ]
    height = max(in_layer) * (_HEIGHT + _BELOW) - _BELOW + 2 * _BESIDE
    lines = [_edge(edge, places) for edge in graph.edges]
    box = {"width": _WIDTH, "height": _HEIGHT}
    return {"width": width, "height": height, "box": box, "boxes": boxes, "lines": lines}


def _edge(edge: GraphEdge, places: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Return a line from the foot of one box to the head of another one."""
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    half = _WIDTH // 2
    return {"from": [x1 + half, y1 + _HEIGHT], "to": [x2 + half, y2], "jump": bool(edge.on)}
