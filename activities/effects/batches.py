"""The activity that runs a batch: steps one after another, the ledger being their checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars
from temporalio import activity
from temporalio.exceptions import ApplicationError

from surehand.activities.activity_errors import again, stop
from surehand.activities.effects.next_claim import Ahead, Begun
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects.claim_entry import OVERTAKEN_PAUSE
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps import batches
from surehand.activities.ledger.steps.batches import Holding, Overtaken, Revoked
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.telemetry import tell_failure
from surehand.workflows.contracts.batches import (
    Batch,
    BatchReport,
    FailedStep,
    StepReport,
    batch_name,
)
from surehand.workflows.contracts.tools import AttemptsUsed, Succeeded, ToolCall
from surehand.workflows.errors import ErrorType
from surehand.workflows.plan.references import ReferenceUnresolved
from surehand.workflows.steps.deferred import resolve_inline

log = structlog.get_logger()


class BatchActivities:
    """``run_batch``."""

    def __init__(self, worker: WorkerContext, tools: ToolActivities) -> None:
        self._worker = worker
        self._tools = tools

    @activity.defn(name="run_batch")
    async def run_batch(self, batch: Batch) -> BatchReport:
        """Run steps until one does not simply succeed, or the run has to be asked.

        A failure that is tried again is raised: the next attempt finds what is done in the ledger.
        """
        attempt = await self._begin(batch, Attempt.current())
        done: list[StepReport] = []
        facts = dict(batch.facts)
        call: ToolCall | None = batch.first
        own, begun = attempt.of_next_step(unacknowledged=batch.again), None
        # Between an outcome and the next claim, and nowhere else.
        while call is not None and (_is_claimed(begun) or await self._may_begin(batch, call)):
            ahead = self._ahead(batch, attempt, call.step_id, facts, len(done))
            attempt.doing.text = call.step_id
            with bound_contextvars(step_id=call.step_id):
                try:
                    report = await self._tools.make(call, own, ahead, begun)
                except ApplicationError as error:
                    if not error.non_retryable or not done:
                        raise
                    tell_failure(log, error)
                    return BatchReport(steps=done, failed=_failed(call, error))
            done.append(StepReport(step_id=call.step_id, report=report))
            if not isinstance(report.outcome, Succeeded):
                break
            facts[call.step_id] = report.outcome.output
            own, begun = ahead.attempt, ahead.begun
            call = begun.next.call if begun else _call(batch, len(done) - 1, facts)
        return BatchReport(steps=done)

    async def _may_begin(self, batch: Batch, call: ToolCall) -> bool:
        if activity.is_cancelled():
            return False
        first = call.step_id == batch.first.step_id
        if first or batch.follows is None:
            return True
        ledger, step = self._worker.ledger, (call.run_id, call.step_id)
        return await ledger.transact(call.tenant, step_rows.has_begun, *step)

    async def _begin(self, batch: Batch, attempt: Attempt) -> Attempt:
        """Make a batch this attempt's own, so that no other goes on with it.

        Raises:
            ApplicationError: ``StepBarred``: it was revoked. ``LeaseHeld``: a later attempt has
                begun.
        """
        info, call = activity.info(), batch.first
        execution = info.workflow_run_id or ""
        scheduled_ms = int(info.current_attempt_scheduled_time.timestamp() * 1000)
        mine = Holding(scheduled_ms, execution, batch.number, attempt.holder)

        def begin(tx: Transaction) -> bool:
            if batch.follows is not None:
                followed = batch_name(execution, batch.follows)
                batches.revoke(tx, call.run_id, [followed])
            return batches.begin(tx, call.run_id, mine)

        try:
            others = await self._worker.ledger.transact(call.tenant, begin)
        except Revoked as error:
            raise stop(ErrorType.STEP_BARRED, str(error)) from error
        except Overtaken as error:
            raise again(ErrorType.LEASE_HELD, str(error), OVERTAKEN_PAUSE) from error
        return replace(attempt, batch=mine.token, unacknowledged=attempt.unacknowledged or others)

    def _ahead(
        self, batch: Batch, attempt: Attempt, step_id: str, facts: dict[str, Any], number: int
    ) -> Ahead:
        def call_after(output: Any) -> ToolCall | None:
            if activity.is_cancelled() or batch.follows is not None:
                return None
            return _call(batch, number, {**facts, step_id: output})

        next_attempt = attempt.of_next_step(unacknowledged=batch.again)
        return Ahead(self._worker, next_attempt, call_after)


def _call(batch: Batch, number: int, facts: dict[str, Any]) -> ToolCall | None:
    """Return the call of one of the following steps, made of what the ones before have returned.

    ``None`` where there is none, or it refers to what is not there: the run says so itself.
    """
    if number >= len(batch.following):
        return None
    step, first = batch.following[number], batch.first
    try:
        params, late = resolve_inline(step.params, {**facts, **step.own})
    except ReferenceUnresolved:
        return None
    return ToolCall(
        tenant=first.tenant,
        run_id=first.run_id,
        step_id=step.id,
        plan_version=first.plan_version,
        user=first.user,
        tool=batch.tools[step.tool],
        params=params,
        late=late,
        attempts_before=step.attempts_before,
    )


def _is_claimed(begun: Begun | None) -> bool:
    return begun is not None and begun.claimed is not None


def _failed(call: ToolCall, error: ApplicationError) -> FailedStep:
    used = error.details[0] if error.details else None
    if not isinstance(used, AttemptsUsed):
        used = AttemptsUsed(attempts=0)
    return FailedStep(step_id=call.step_id, type=error.type, message=error.message, used=used)
