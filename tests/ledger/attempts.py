"""Attempts at one write, one after the other as Temporal makes them, without its pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel, JsonValue
from sqlalchemy import update
from temporalio.exceptions import ApplicationError

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.effects.write import CallResult, EffectCall
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, Toolbox, tool
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import Crash
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


def effect_call(
    scene: Scene,
    loaded: Tool,
    request: ClaimRequest,
    *,
    lease: timedelta = LEASE,
    artifacts: ArtifactStore | None = None,
) -> EffectCall:
    every, store = timedelta(seconds=1), artifacts or scene.artifacts
    context = WorkerContext(scene.ledger, Toolbox([loaded]), store, Crash(), lease, every)
    return EffectCall(context, loaded, Payment(**request.params), request)


async def read_once(
    scene: Scene,
    loaded: Tool,
    attempt: Attempt = FIRST_LOOK,
    params: dict[str, JsonValue] | None = None,
) -> ToolReport:
    """Make one attempt at a read: this step's first, unless it is said."""
    second = timedelta(seconds=1)
    context = WorkerContext(
        scene.ledger, Toolbox([loaded]), scene.artifacts, Crash(), 3 * second, second
    )
    call = ToolCall(
        tenant=scene.tenant,
        run_id=RUN,
        step_id=STEP,
        plan_version=1,
        user="ada",
        tool=loaded.spec(),
        params=params or {},
    )
    tools = ToolActivities(context)
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
