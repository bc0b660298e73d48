"""A plan as a picture for the terminal: layers of what runs together, from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size

from cli.plan_mermaid import notes
from cli.plan_shapes import GraphNode, PlanGraph
from cli.text import plain

#: Columns: a box is never wider, and a terminal never taken for narrower.
_WIDEST: Final = 44
_NARROWEST: Final = 24


def picture(graph: PlanGraph, width: int) -> list[str]:
    """Return the lines of a picture.

    Args:
        graph: The plan.
        width: Columns there are.
    """
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
