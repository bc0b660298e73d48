"""Starting a run, and continuing it in another execution."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field, JsonValue, model_validator

from surehand.workflows.contracts.base import LONGEST_NAME, Message, Recorded, is_storable
from surehand.workflows.contracts.foreign import ForeignContent
from surehand.workflows.contracts.quotas import QuotaWait
from surehand.workflows.contracts.tools import ToolSpec
from surehand.workflows.contracts.unreadable import readable
from surehand.workflows.identity import tenant_of_run, tenant_problem
from surehand.workflows.plan.durability import Durability
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.size import MOST_STEPS


class Parent(Message):
    """The run and the step that a child run was started by."""

    run_id: str
    step_id: str


class Linked(Message):
    """The run that another one begins from, with what it takes over.

    Example:
        >>> Linked(run_id="refund-7", outputs={"order": {"order_id": "order-7"}}).run_id
        'refund-7'
    """

    run_id: str
    outputs: dict[str, JsonValue] = {}
    """Steps that are facts here, with what they have returned there; they are not done again."""


class StartRun(Message):
    """Starts a run: of a plan, of code, or of a model's turns.

    Example:
        >>> class Greetings(CodeRun):
        ...     async def run(self, request: StartRun) -> RunResult:
        ...         return await self.drive_code(self.steps)
        ...     async def steps(self, steps: StepMaker) -> None:
        ...         await steps.ask("Hello?")
    """

    run_id: str
    tenant: str
    user: str
    """Whom the run acts for."""
    started_by: str | None = None
    """Who starts it; ``None``: the user. A child run is started by whoever has its parent."""
    signature: str | None = None
    """Compact JWS over ``StartClaims``, by a key of whoever starts it."""
    plan: Plan
    parent: Parent | None = None
    carried: dict[str, Any] | None = None
    """The state in which the execution before has left it; only Temporal itself continues a run."""
    continue_after: int | None = Field(default=None, ge=1)
    """Events of history after which the run continues as new; ``None``: as many as are usual."""
    linked: Linked | None = None
    durability: Durability | None = None
    """When its progress is written to history; ``None``: as the plan says, else ``sync``."""
    level: int = 0
    """Of a child run: how many runs it is inside of."""
    room: int = MOST_STEPS
    """How many steps it may have, with all runs inside it (``workflows/plan/size.py``)."""

    @model_validator(mode="before")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        return readable(value)

    def content(self) -> dict[str, Any]:
        """Return what is signed, in JSON form: all that a person starts, without defaults."""
        not_signed = {"signature", "parent", "carried"}
        return self.model_dump(mode="json", exclude=not_signed, exclude_defaults=True)

    def problem(self) -> str | None:
        """Return what is wrong with the names in it, as one clause, or ``None``."""
        names = {"user": self.user, "started_by": self.started_by or self.user}
        for what, name in names.items():
            if not is_storable(name) or not 0 < len(name) <= LONGEST_NAME:
                return f"{what} has to be 1 to {LONGEST_NAME} characters of plain text"
        problem = tenant_problem(self.tenant)
        if problem is not None:
            return f"tenant {self.tenant[:80]!r}: {problem}"
        if tenant_of_run(self.run_id) != self.tenant:
            return f"run {self.run_id[:200]!r} is not one of tenant {self.tenant!r}"
        return None

    @property
    def mode(self) -> Durability:
        """The durability that holds: the run's own wins over the plan's."""
        mode = self.durability or self.plan.durability or Durability.SYNC
        # A batch is known before it begins; what code does next is not.
        code = self.plan.code is not None
        return Durability.ASYNC if code and mode.in_batches else mode


class RunOpened(Recorded):
    """A run is recorded."""

    tools: dict[str, ToolSpec] = {}
    """Of a run that begins: the specs of the tools that its plan names, and what undoes them."""
    foreign: tuple[ForeignContent, ...] = ()
    """What has brought it content from outside: from its parent, say, or before a reset."""
    queued: QuotaWait | None = None
    """What keeps it from its first step; ``None``: nothing."""
    weight: float = 1.0
    """Its tenant's, where tenants take turns."""


class OpenRun(Message):
    """Records a run and its plan before step one."""

    request: StartRun
    execution: str
    """Temporal's id of the run's first execution: of one that was reset, or continued, too."""
    continues: bool = False
    """Whether another execution has opened the run."""
    started_at: datetime | None = None
    """When the server took the start: until then its signature had to count."""
