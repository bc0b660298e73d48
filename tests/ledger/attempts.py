"""Attempts at one write, one after the other as Temporal makes them, without its pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel, JsonValue
from sqlalchemy import update
from temporalio.exceptions import ApplicationError

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.compensation import UndoAttempt
from surehand.activities.effects.reconcile import settle_stale
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.effects.write import CallResult, EffectCall
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.steps.entries import ClaimRequest, Entry
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, Toolbox, tool
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.effects import Compensate, Reconciled
from surehand.workflows.contracts.tools import ToolCall, ToolReport
from tests.ledger.scene import LEASE, RUN, STEP, Scene

#: More than any class of failure is retried: a write that needs them all is retried for ever.
MOST_ATTEMPTS: Final = 20
FIRST_LOOK: Final = Attempt(1, "look", "look:1")


class Payment(BaseModel):
    order: str = "1001"
    amount: str = "120.00"


@dataclass
class Provider:
    """An outside system that answers as it is told; the last answer stays."""

    answers: list[Any]
    keys: list[str] = field(default_factory=list)
    """The idempotency key of each call that it got."""

    async def pay(self, params: Payment, ctx: ToolContext) -> Any:
        """Take a payment."""
        self.keys.append(ctx.idempotency_key)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def tool(self, *, name: str = "payments.refund", **options: Any) -> Tool:
        undoable = "compensate" in options
        return tool(name, effect=WRITE, irreversible=not undoable, **options)(self.pay)


def worker_of(
    scene: Scene,
    *tools: Tool,
    lease: timedelta = LEASE,
    artifacts: ArtifactStore | None = None,
    **more: Any,
) -> WorkerContext:
    """A worker that has these tools."""
    every, store = timedelta(seconds=1), artifacts or scene.artifacts
    return WorkerContext(scene.ledger, Toolbox(tools), store, Crash(), lease, every, **more)


def looked_up(answer: Any) -> Callable[..., Awaitable[Any]]:
    """Return a lookup that answers so, or raises it."""

    async def lookup(params: Payment, ctx: ToolContext) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return lookup


def undo_attempt(
    worker: WorkerContext, tenant: str, entry: Entry, number: int = 1, **how: Any
) -> UndoAttempt:
    """An attempt at undoing an effect for its run."""
    asked = Compensate(
        tenant=tenant,
        run_id=entry.run_id,
        step_id=entry.step_id,
        entry_id=entry.entry_id,
        user="ada",
        **how,
    )
    return UndoAttempt(worker, asked, Attempt(number, "undo", f"undo:{number}"))


def effect_call(
    scene: Scene, loaded: Tool, request: ClaimRequest, params: BaseModel | None = None, **how: Any
) -> EffectCall:
    given = params or Payment(**request.params)
    return EffectCall(worker_of(scene, loaded, **how), loaded, given, request)


async def read_once(
    scene: Scene,
    loaded: Tool,
    attempt: Attempt = FIRST_LOOK,
    params: dict[str, JsonValue] | None = None,
) -> ToolReport:
    """Make one attempt at a read: this step's first, unless it is said."""
    call = ToolCall(
        tenant=scene.tenant,
        run_id=RUN,
        step_id=STEP,
        plan_version=1,
        user="ada",
        tool=loaded.spec(),
        params=params or {},
    )
    tools = ToolActivities(worker_of(scene, loaded))
    return await tools.report_call(call, attempt, tools.call_tool(call, attempt))


def request_for(scene: Scene, loaded: Tool, **changes: Any) -> ClaimRequest:
    window = loaded.repeatable_for
    values = {"recovery": loaded.recovery, "window": window, "timeout": loaded.timeout}
    return scene.call(**{**values, "settle": loaded.settle, **changes})


def time_passes(scene: Scene) -> None:
    """Let every lease, deadline and settle time be over."""
    with scene.tx() as tx:
        tx.execute(
            update(effects)
            .where(effects.c.tenant_id == tx.tenant, effects.c.deadline_ms.is_not(None))
            .values(deadline_ms=0)
        )


async def last_of(
    scene: Scene, loaded: Tool, *, between: Callable[[Scene], None] = time_passes, **changes: Any
) -> CallResult:
    """Return what the attempts at a call come to.

    Raises:
        ApplicationError: A failure that Temporal does not retry.
    """
    for attempt in range(1, MOST_ATTEMPTS + 1):
        request = request_for(scene, loaded, attempt=attempt, **changes)
        try:
            return await effect_call(scene, loaded, request).run()
        except ApplicationError as error:
            if error.non_retryable:
                raise
        between(scene)
    raise AssertionError(f"still being retried after {MOST_ATTEMPTS} attempts")


async def reconciled(scene: Scene, *tools: Tool, alive: bool = False, **how: Any) -> Reconciled:
    """Have the reaper settle what is left behind by runs that go on, or do not."""

    async def goes_on(run_id: str) -> bool:
        return alive

    asked = {"quiet": -timedelta(seconds=1), "limit": 10, **how}
    return await settle_stale(worker_of(scene, *tools), scene.tenant, goes_on, **asked)
