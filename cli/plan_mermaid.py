"""A plan as a Mermaid flowchart: Markdown on most forges and wikis draws it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cli.plan_shapes import GraphNode, Kind, PlanGraph
from cli.text import plain

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
    text = plain(" ".join(text.split()))
    return (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…").translate(_CODES)
