"""The shapes of ``plan check``, ``plan graph`` and ``simulate``; others: ``cli/verb/shapes.py``."""

from __future__ import annotations

from typing import Any, Literal

from surehand.cli.verb.shapes import Shape
from surehand.workflows.plan.plan import Place

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


Outcome = Literal[
    "done",
    "as recorded",
    "would call",
    "would replay",
    "would ask",
    "would wait",
    "would run plan",
    "would skip",
    "would fail",
    "list",
    "unknown",
    "not reached",
]
Asks = Literal["yes", "no", "by its rules"]


class HeldKey(Shape):
    """The ledger's entry of a business key."""

    run_id: str
    step_id: str
    state: str
    same_params: bool
    """True and committed: its receipt is taken, there is no second effect."""


class SimulatedStep(Shape):
    """What a plan would do with one step, or one item of its list."""

    id: str
    does: str
    outcome: Outcome
    """``unknown``: whether it is done at all depends on what is not known."""
    why: str = ""
    """For people: why, and what differs from the recorded run."""
    depends_on: list[str] = []
    """Steps whose outputs decide on it, and are not known."""
    output: Literal["recorded", "unknown", "none"] = "none"
    params: Any = None
    """Of a call: as the tool's model has them, where the tool is loaded; null: not known."""
    params_hash: str | None = None
    """What an approval would be bound to; null where the tool is not loaded."""
    approval: Asks | None = None
    """Whether the call needs one; ``by its rules``: these are not evaluated here. Null: no call."""
    approval_text: str = ""
    looked_at: list[Place] = []
    """Where a human looks at it."""
    key: str | None = None
    """A write's business key, where its tool names one and is loaded."""
    held: HeldKey | None = None
    """What the ledger has under that key now."""


class Simulation(Shape):
    """``simulate``."""

    run_id: str
    seq: int
    plan: str
    plan_version: int
    changed: list[str]
    """The ``--set`` changes."""
    tools_loaded: bool
    """False: params are compared as the plan has them, and no rule, hash or key is worked out."""
    steps: list[SimulatedStep]
    ends: str | None
    """Why the run would go no further; null: it would come to its end, as far as is known."""
