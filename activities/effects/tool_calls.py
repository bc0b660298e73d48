"""The activities that touch tools: describing them, and calling one or several after another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, assert_never

import structlog
from structlog.contextvars import bound_contextvars
from temporalio import activity
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.leases import hold_resources
from surehand.activities.effects.prepare import (
    PreparedCall,
    claim_request,
    complete,
    drift,
    prepare_here,
    quota_needed,
    to_call_with,
)
from surehand.activities.effects.progress_checkpoints import following
from surehand.activities.effects.read import ReadCall, input_needed
from surehand.activities.effects.recorder import Ahead, Begun, Done, SaidNo, WantsAnswer, written
from surehand.activities.effects.write import EffectCall
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects.claim_entry import OVERTAKEN_PAUSE
from surehand.activities.ledger.history.run_display import read_recovery
from surehand.activities.ledger.quotas import OverQuota, add_spent
from surehand.activities.ledger.steps import acting
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.acting import Holding, Overtaken, Revoked
from surehand.activities.ledger.steps.entries import (
    ApprovalRefused,
    Asked,
    Barred,
    ClaimRequest,
    Drifted,
    Entry,
    Forbidden,
)
from surehand.activities.tools.call_reports import Meter, metering
from surehand.activities.tools.describing import define, describe_plan
from surehand.activities.worker.attempt import Attempt, again, stop, tell_failure
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.spans import note_effect, note_report
from surehand.workflows.contracts.base import ForeignContent, TimelineLine, Usage
from surehand.workflows.contracts.tools import (
    AnsweredNo,
    ApprovalNeeded,
    AttemptsUsed,
    Batch,
    BatchReport,
    DescribeTools,
    Effect,
    FailedStep,
    HumanNeeded,
    InputNeeded,
    PermissionNeeded,
    RateLimited,
    StepReport,
    Succeeded,
    ToolCall,
    ToolOutcome,
    ToolReport,
    ToolsDescribed,
    batch_name,
)
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.references import ReferenceUnresolved
from surehand.workflows.run.step_rules import resolve_inline

log = structlog.get_logger()

#: How often a step looks whether the question it has joined is settled: a human takes minutes.
JOINED_PAUSE: Final = timedelta(seconds=5)


class ToolActivities:
    """``describe_tools`` and ``execute_tools``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="describe_tools")
    async def describe_tools(self, asked: DescribeTools) -> ToolsDescribed:
        """Return the specs of a plan's tools, and what in the plan does not fit them.

        Where a run asks for definitions, these are returned, and nothing of the plan.
        """
        if asked.defined:
            return define(self._worker.toolbox, asked.defined)
        return await asyncio.to_thread(describe_plan, self._worker.toolbox, asked.plan)

    @activity.defn(name="execute_tools")
    async def execute_tools(self, batch: Batch) -> BatchReport:
        """Make calls one after another, each checked, claimed, called and recorded.

        It ends where a call does not simply succeed, or the run has to be asked. A failure that is
        tried again is raised: the next attempt finds what is done in the ledger.

        Raises:
            ApplicationError: Typed as in ``workflows/names.py``.
        """
        own = attempt = Attempt.current()
        if batch.number is not None:
            attempt = await self._begin_batch(batch, batch.number, attempt)
            own = attempt.of_next_step(unacknowledged=batch.again)
        done: list[StepReport] = []
        facts = dict(batch.facts)
        call: ToolCall | None = batch.first
        begun: Begun | None = None
        # Between an outcome and the next claim, and nowhere else.
        while call is not None and (_is_claimed(begun) or await self._may_begin(batch, call)):
            ahead = self._ahead(batch, attempt, call.step_id, facts, len(done))
            with bound_contextvars(step_id=call.step_id):
                try:
                    report = await self.report_call(
                        call, own, self.call_tool(call, own, ahead, begun)
                    )
                except ApplicationError as error:
                    if not error.non_retryable or not done:
                        raise
                    tell_failure(log, error)
                    return BatchReport(steps=done, failed=_failed(call, error))
            done.append(StepReport(step_id=call.step_id, report=report))
            if ahead is None or not isinstance(report.outcome, Succeeded):
                break
            facts[call.step_id] = report.outcome.output
            own, begun = ahead.attempt, ahead.begun
            call = begun.next.call if begun else _next_call(batch, len(done) - 1, facts)
        return BatchReport(steps=done)

    async def _begin_batch(self, batch: Batch, number: int, attempt: Attempt) -> Attempt:
        """Make a batch this attempt's own, so that no other goes on with it.

        Raises:
            ApplicationError: ``StepBarred``: it was revoked. ``LeaseHeld``: a later attempt has
                begun.
        """
        info, call = activity.info(), batch.first
        execution = info.workflow_run_id or ""
        scheduled_ms = int(info.current_attempt_scheduled_time.timestamp() * 1000)
        mine = Holding(scheduled_ms, execution, number, attempt.holder)

        def begin(tx: Transaction) -> bool:
            if batch.follows is not None:
                acting.revoke_batches(tx, call.run_id, [batch_name(execution, batch.follows)])
            return acting.begin_batch(tx, call.run_id, mine)

        try:
            others = await self._worker.ledger.transact(call.tenant, begin)
        except Revoked as error:
            raise stop(ErrorType.STEP_BARRED, str(error)) from error
        except Overtaken as error:
            raise again(ErrorType.LEASE_HELD, str(error), OVERTAKEN_PAUSE) from error
        return replace(attempt, batch=mine.token, unacknowledged=attempt.unacknowledged or others)

    async def _may_begin(self, batch: Batch, call: ToolCall) -> bool:
        """Return whether a call of a batch is to be begun; one that is alone is."""
        if batch.number is not None and activity.is_cancelled():
            return False
        if call.step_id == batch.first.step_id or batch.follows is None:
            return True
        ledger, step = self._worker.ledger, (call.run_id, call.step_id)
        return await ledger.transact(call.tenant, step_rows.has_begun, *step)

    def _ahead(
        self, batch: Batch, attempt: Attempt, step_id: str, facts: dict[str, Any], number: int
    ) -> Ahead | None:
        """Return what a batch does after a call; ``None``: the call is alone."""
        if batch.number is None:
            return None

        def call_after(output: Any) -> ToolCall | None:
            if activity.is_cancelled() or batch.follows is not None:
                return None
            return _next_call(batch, number, {**facts, step_id: output})

        attempt.doing.text = step_id
        next_attempt = attempt.of_next_step(unacknowledged=batch.again)
        return Ahead(self._worker, next_attempt, call_after)

    async def report_call(
        self, call: ToolCall, attempt: Attempt, made: Awaitable[ToolReport]
    ) -> ToolReport:
        """Make a call that is measured, and told of as its run takes it.

        Raises:
            ApplicationError: Typed as in ``workflows/names.py``.
        """
        with self._worker.spans.call(call, attempt.number), metering() as meter:
            try:
                report = await made
            except ApplicationError as error:
                limited = error.type == ErrorType.RATE_LIMITED
                pause = error.next_retry_delay if limited else None
                if pause is None and not error.non_retryable:
                    await self._keep_usage(call, attempt, meter.usage())
                    raise
                heard = error.type in (ErrorType.TOOL_FAILED, ErrorType.NOT_AS_REVIEWED)
                used = AttemptsUsed(
                    attempts=call.attempts_before + attempt.number,
                    foreign=self._foreign(call) if heard else None,
                    usage=await self._usage(call, attempt, meter),
                )
                if pause is None:
                    raise ApplicationError(
                        error.message, used, type=error.type, non_retryable=True
                    ) from error
                report = _limited(pause, error.message, used)
            else:
                heard = isinstance(report.outcome, Succeeded | AnsweredNo | InputNeeded)
                said = {
                    "usage": await self._usage(call, attempt, meter),
                    "foreign": report.foreign or (self._foreign(call) if heard else None),
                }
                report = report.model_copy(update=said)
            note_report(report)
            return report

    def _foreign(self, call: ToolCall) -> ForeignContent | None:
        """Return what the run has got from outside by a call that it has heard of."""
        tool = self._worker.toolbox.get(call.tool.name)  # A model is none.
        if not call.tool.foreign and (tool is None or not tool.foreign):
            return None
        return ForeignContent(tool=call.tool.name, step_id=call.step_id)

    async def call_tool(
        self,
        call: ToolCall,
        attempt: Attempt,
        ahead: Ahead | None = None,
        begun: Begun | None = None,
    ) -> ToolReport:
        """Make one tool call.

        Args:
            ahead: What a batch does after it.
            begun: A write that is claimed already.

        Raises:
            ApplicationError: Typed as in ``workflows/names.py``.
        """
        if begun is None:
            call = await complete(self._worker.artifacts, call)
            prepared = await self._prepared(call)
        else:
            prepared = begun.next.prepared
        async with following(self._worker, call, attempt):
            if prepared.tool.effect is Effect.READ:
                return await self._read(call, prepared, attempt)
            return await self._write(call, prepared, attempt, ahead, begun)

    async def _keep_usage(self, call: ToolCall, attempt: Attempt, usage: Usage) -> None:
        """Keep what an attempt has used, for a later one that reports, and count it."""
        if usage == Usage():
            return
        ledger, step = self._worker.ledger, (call.run_id, call.step_id)

        def keep(tx: Transaction) -> None:
            if step_rows.keep_usage(tx, *step, usage, attempt.holder):
                add_spent(tx, usage)

        await written(lambda: ledger.transact(call.tenant, keep))

    async def _usage(self, call: ToolCall, attempt: Attempt, meter: Meter) -> Usage:
        """Return what this activity has used, in all of its attempts, and count this one's.

        The day's quotas lose it if the worker dies between the outcome and here, and have it twice
        if the database's answer is lost.
        """
        own, ledger = meter.usage(), self._worker.ledger
        if attempt.batch is not None:
            # It may be tried again because of a later step: then nobody has heard of this one.
            await self._keep_usage(call, attempt, own)
        elif own != Usage():
            await written(lambda: ledger.transact(call.tenant, add_spent, own))
        if attempt.number > 1:
            earlier = await written(
                lambda: ledger.transact(
                    call.tenant,
                    step_rows.kept_usage,
                    *(call.run_id, call.step_id, f"{attempt.activity_key}:", attempt.holder),
                )
            )
            for one in earlier:
                meter.add(one.tokens, one.money)
        return meter.usage()

    async def _prepared(self, call: ToolCall) -> PreparedCall:
        worker = self._worker
        prepared = await worker.ledger.with_keys(lambda: prepare_here(worker, call), call.params)
        changed = call.params_hash is not None and call.params_hash != prepared.params_hash
        # The hash covers the version: a newer tool is asked about again, at the claim.
        if changed and drift(call, prepared.tool) is None:
            await self._refuse_changed_params(call, prepared)
        return prepared

    async def _request(
        self, call: ToolCall, prepared: PreparedCall, attempt: Attempt
    ) -> ClaimRequest:
        worker = self._worker
        return await worker.ledger.with_keys(
            lambda: claim_request(worker, call, prepared, attempt), prepared.plain
        )

    async def _refuse_changed_params(self, call: ToolCall, prepared: PreparedCall) -> None:
        evidence = f"approved are params {call.params_hash}, to be run {prepared.params_hash}"

        def refuse(tx: Transaction) -> None:
            tx.event(
                call.run_id,
                "effect.refused",
                step_id=call.step_id,
                tool=call.tool.name,
                rule="Mismatch",
                evidence=evidence,
            )

        await self._worker.ledger.transact(call.tenant, refuse)
        raise stop(ErrorType.PARAMS_MISMATCH, f"{call.tool.name}: {evidence}")

    async def _write(
        self,
        call: ToolCall,
        prepared: PreparedCall,
        attempt: Attempt,
        ahead: Ahead | None,
        begun: Begun | None,
    ) -> ToolReport:
        if begun is None:
            request = await self._request(call, prepared, attempt)
            request = await to_call_with(self._worker.watchdog, request, prepared)
        else:
            request = begun.next.request
        tool = prepared.tool
        note_effect(call.tenant, tool.name, request.key)
        async with hold_resources(self._worker, tool, prepared.resources, call, attempt) as held:
            answered = call.answered
            effect = EffectCall(self._worker, tool, prepared.params, request, held, answered, ahead)
            result = await effect.run(begun)
        outcome: ToolOutcome

        def mine(entry: Entry) -> bool:
            return entry.owned_by(call.run_id, call.step_id)

        match result:
            case Done(entry, receipt, replayed):
                outcome = Succeeded(
                    output=receipt,
                    attempts=request.attempt,
                    replayed=replayed,
                    made_by=None if entry.run_id == call.run_id else entry.run_id,
                    entry_id=entry.entry_id,
                    effect=entry.view(state="committed") if mine(entry) else None,
                )
            case SaidNo(reason, code, replayed):
                outcome = AnsweredNo(
                    reason=reason, code=code, attempts=request.attempt, replayed=replayed
                )
            case ApprovalRefused(reason):
                outcome = ApprovalNeeded(reason=reason, attempts=request.attempt)
            case Drifted(reason):
                # What was approved is not what would run: the tool as it is now is asked about.
                now = tool.spec()
                outcome = ApprovalNeeded(reason=reason, attempts=request.attempt, tool=now)
            case WantsAnswer(asked):
                outcome = input_needed(asked, request.attempt)
            case OverQuota():
                outcome = quota_needed(result, prepared.tool.name, request.attempt)
            case Forbidden(reason):
                outcome = PermissionNeeded(reason=reason, attempts=request.attempt)
            case Asked(entry, intervention_id) if intervention_id == call.joined:
                message = f"{prepared.tool.name}: run {entry.run_id} waits for a human"
                raise again(ErrorType.LEASE_HELD, message, JOINED_PAUSE)
            case Asked(entry, intervention_id, question):
                outcome = HumanNeeded(
                    intervention_id=intervention_id,
                    question=question,
                    attempts=request.attempt,
                    effect=entry.view() if mine(entry) else None,
                )
            case Barred(reason, called_off):
                type_ = ErrorType.CALLED_OFF if called_off else ErrorType.STEP_BARRED
                raise stop(type_, f"{prepared.tool.name}: {reason}")
            case _:
                assert_never(result)
        story = await self._recovery(call) if effect.recovered else ()
        effect.before_report()
        return ToolReport(outcome=outcome, foreign=effect.heard, story=story, head=effect.head)

    async def _recovery(self, call: ToolCall) -> tuple[TimelineLine, ...]:
        """Return how the call's outcome was found out: the run's timeline tells it."""
        ledger, step = self._worker.ledger, (call.run_id, call.step_id)
        return await written(lambda: ledger.transact(call.tenant, read_recovery, *step))

    async def _read(self, call: ToolCall, prepared: PreparedCall, attempt: Attempt) -> ToolReport:
        tool = prepared.tool
        changed = drift(call, tool)
        if changed:
            raise stop(ErrorType.TOOL_CHANGED, changed)
        request = await self._request(call, prepared, attempt)
        request = await to_call_with(self._worker.watchdog, request, prepared)
        self._worker.crash.at(tool.name, call.step_id, CrashPoint.BEFORE_CLAIM)
        async with hold_resources(self._worker, tool, prepared.resources, call, attempt) as held:
            return await ReadCall(self._worker, call, prepared, request, attempt, held).run()


def _next_call(batch: Batch, number: int, facts: dict[str, Any]) -> ToolCall | None:
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


def _limited(pause: timedelta, reason: str, used: AttemptsUsed) -> ToolReport:
    """Return a rate limit as an answer: the run waits for its end, and says so."""
    outcome = RateLimited(pause=pause, reason=reason, attempts=used.attempts)
    return ToolReport(outcome=outcome, usage=used.usage)
