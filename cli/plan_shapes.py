"""The shapes of ``plan check`` and ``plan graph``, as ``cli/shapes.py`` has the others."""

from __future__ import annotations

from typing import Literal

from cli.shapes import Shape

Kind = Literal["read", "write", "tool", "ask", "wait", "plan"]


class PlanChecked(Shape):
    """``plan check`` of a plan that is valid; what is wrong with others is an ``ErrorReport``."""

    file: str
    plan: str
    steps: int
    """Those of plans inside it included."""
    tools_checked: bool
    """False: no tools are named here, and the worker's tools may still refuse it."""


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
