"""Starting a run, and continuing it in another execution."""

from __future__ import annotations

from pydantic import Field, JsonValue

from workflows.contracts.base import Message
from workflows.contracts.carried import Carried
from workflows.contracts.tools import ToolSpec
from workflows.durability import Durability
from workflows.plan import Plan


class Parent(Message):
    """The run and the step that a child run was started by."""

    run_id: str
    step_id: str


class Linked(Message):
    """The run that another one begins from, with what it takes over."""

    run_id: str
    outputs: dict[str, JsonValue] = {}
    """Steps that are facts here, with what they have returned there; they are not done again."""


class StartRun(Message):
    """Starts ``AgentRun``."""

    run_id: str
    tenant: str
    user: str
    plan: Plan
    parent: Parent | None = None
    carried: Carried | None = None
    """What the execution before has left; only Temporal itself continues a run."""
    continue_after: int | None = Field(default=None, ge=1)
    """Events of history after which the run continues as new; ``None``: as many as are usual."""
    linked: Linked | None = None
    durability: Durability | None = None
    """When its progress is written to history; ``None``: as the plan says, else ``sync``."""

    @property
    def mode(self) -> Durability:
        """The durability that holds: the run's own wins over the plan's."""
        mode = self.durability or self.plan.durability or Durability.SYNC
        # A stretch is known before it begins; what code does next is not.
        code = self.plan.code is not None
        return Durability.ASYNC if code and mode is Durability.EXIT else mode


class OpenRun(Message):
    """Records a run and its plan before step one."""

    request: StartRun
    tools: dict[str, ToolSpec]
    execution: str
    """Temporal's id of the run's first execution: of one that was reset, or continued, too."""
    continues: bool = False
    """Whether another execution has opened the run."""
