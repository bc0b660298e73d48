"""The activities that touch tools: describing them, and calling one or several after another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Final, assert_never

import structlog
from structlog.contextvars import bound_contextvars
from temporalio import activity
from temporalio.exceptions import ApplicationError

from surehand.activities.effects import prepare, recorder
from surehand.activities.effects.drafts import follow_progress
from surehand.activities.effects.leases import hold_resources
from surehand.activities.effects.read import ReadCall, input_needed
from surehand.activities.effects.write import CallResult, EffectCall
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects import reconcile
from surehand.activities.ledger.halts import Halted
from surehand.activities.ledger.history.run_display import read_recovery
from surehand.activities.ledger.quotas import OverQuota, add_spent
from surehand.activities.ledger.steps import acting, entries
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.entries import ClaimRequest, Entry
from surehand.activities.tools.call_reports import Meter, measure_usage
from surehand.activities.tools.describing import define, describe_plan
from surehand.activities.tools.tool import Tool
from surehand.activities.worker.context import Attempt, WorkerContext, again, log_failure, stop
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.telemetry import note_effect, note_report
from surehand.workflows.contracts import tools as contracts
from surehand.workflows.contracts.base import ForeignContent, TimelineLine, Usage
from surehand.workflows.contracts.tools import Batch, BatchReport, Effect, ToolCall, ToolReport
from surehand.workflows.names import ErrorType

log = structlog.get_logger()

#: How often a step looks whether the question it has joined is settled: a human takes minutes.
_JOINED_PAUSE: Final = timedelta(seconds=5)


class ToolActivities:
    """``describe_tools`` and ``execute_tools``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="describe_tools")
    async def describe_tools(self, asked: contracts.DescribeTools) -> contracts.ToolsDescribed:
        """Return the specs of a plan's tools, and what in the plan does not fit them.

        If a run asks for definitions, these are returned, and nothing of the plan.
        """
        if asked.defined:
            return define(self._worker.toolbox, asked.defined)
        return await asyncio.to_thread(describe_plan, self._worker.toolbox, asked.plan)

    @activity.defn(name="execute_tools")
    async def execute_tools(self, batch: Batch) -> BatchReport:
        """Make calls one after another, each checked, claimed, called and recorded.

        It ends at a call that does not simply succeed, or about which the run has to be asked. A
        failure that is tried again is raised: the next attempt finds what is done in the ledger.
        """
        own = attempt = Attempt.current()
        if batch.number is not None:
            attempt = await self._begin_batch(batch, batch.number, attempt)
            own = attempt.of_next_step(unacknowledged=batch.again)
        done: list[contracts.StepReport] = []
        facts = dict(batch.facts)
        call: ToolCall | None = batch.first
        prepared: recorder.NextWrite | None = None
        # Between an outcome and the next claim, and nowhere else.
        while call is not None and (
            (prepared is not None and prepared.claimed) or await self._may_begin(batch, call)
        ):
            ahead = None
            if batch.number is not None:
                attempt.doing.text = call.step_id
                following = attempt.of_next_step(unacknowledged=batch.again)
                ahead = recorder.Ahead(self._worker, following, batch, len(done), facts)
            with bound_contextvars(step_id=call.step_id):
                try:
                    made = self.call_tool(call, own, ahead, prepared)
                    report = await self.report_call(call, own, made)
                except ApplicationError as error:
                    if not error.non_retryable or not done:
                        raise
                    log_failure(log, error)
                    return BatchReport(steps=done, failed=_failed_step(call, error))
            done.append(contracts.StepReport(step_id=call.step_id, report=report))
            if ahead is None or not isinstance(report.outcome, contracts.Succeeded):
                break
            facts[call.step_id] = report.outcome.output
            own, prepared = ahead.attempt, ahead.next
            call = prepared.call if prepared else ahead.make_call(facts)
        return BatchReport(steps=done)

    async def _begin_batch(self, batch: Batch, number: int, attempt: Attempt) -> Attempt:
        """Make a batch this attempt's own, so that no other goes on with it."""
        info, call = activity.info(), batch.first
        execution = info.workflow_run_id or ""
        scheduled_ms = int(info.current_attempt_scheduled_time.timestamp() * 1000)
        mine = acting.Holding(scheduled_ms, execution, number, attempt.holder)

        def begin(tx: Transaction) -> bool:
            if batch.follows is not None:
                before = contracts.batch_name(execution, batch.follows)
                acting.revoke_batches(tx, call.run_id, [before])
            return acting.begin_batch(tx, call.run_id, mine)

        try:
            others = await self._worker.ledger.transact(call.tenant, begin)
        except acting.Revoked as error:
            raise stop(ErrorType.STEP_BARRED, str(error)) from error
        except acting.Overtaken as error:
            raise again(ErrorType.LEASE_HELD, str(error)) from error
        return replace(attempt, batch=mine.token, unacknowledged=attempt.unacknowledged or others)

    async def _may_begin(self, batch: Batch, call: ToolCall) -> bool:
        """Return whether a call of a batch is to be begun; one that is alone is."""
        if batch.number is not None and activity.is_cancelled():
            return False
        if call.step_id == batch.first.step_id or batch.follows is None:
            return True
        ledger, step = self._worker.ledger, (call.run_id, call.step_id)
        return await ledger.transact(call.tenant, step_rows.has_begun, *step)

    async def report_call(
        self, call: ToolCall, attempt: Attempt, made: Awaitable[ToolReport]
    ) -> ToolReport:
        """Make a call, measure it, and report it as its run takes it."""
        with self._worker.spans.call(call, attempt.number), measure_usage() as meter:
            try:
                report = await made
            except ApplicationError as error:
                limited = error.type == ErrorType.RATE_LIMITED
                pause = error.next_retry_delay if limited else None
                if pause is None and not error.non_retryable:
                    await self._keep_usage(call, attempt, meter.usage())
                    raise
                heard = error.type in (ErrorType.TOOL_FAILED, ErrorType.NOT_AS_REVIEWED)
                used = contracts.AttemptsUsed(
                    attempts=call.attempts_before + attempt.number,
                    foreign=self._foreign_content(call) if heard else None,
                    usage=await self._count_usage(call, attempt, meter),
                )
                if pause is None:
                    raise ApplicationError(
                        error.message, used, type=error.type, non_retryable=True
                    ) from error
                # A rate limit is an answer: the run waits for its end, and says so.
                outcome = contracts.RateLimited(
                    pause=pause, reason=error.message, attempts=used.attempts
                )
                report = ToolReport(outcome=outcome, usage=used.usage)
            else:
                heard = isinstance(
                    report.outcome,
                    contracts.Succeeded | contracts.AnsweredNo | contracts.InputNeeded,
                )
                said = {
                    "usage": await self._count_usage(call, attempt, meter),
                    "foreign": report.foreign or (self._foreign_content(call) if heard else None),
                }
                report = report.model_copy(update=said)
            note_report(report)
            return report

    def _foreign_content(self, call: ToolCall) -> ForeignContent | None:
        """Return what the run has got from outside by a call that it has heard of."""
        tool = self._worker.toolbox.get(call.tool.name)  # A model is none.
        if not call.tool.foreign and (tool is None or not tool.foreign):
            return None
        return ForeignContent(tool=call.tool.name, step_id=call.step_id)

    async def call_tool(
        self,
        call: ToolCall,
        attempt: Attempt,
        ahead: recorder.Ahead | None = None,
        next_write: recorder.NextWrite | None = None,
    ) -> ToolReport:
        """Make one tool call.

        ``ahead`` is what a batch does after it, and ``next_write`` the call itself, if it was
        prepared with the outcome of the write before.
        """
        worker = self._worker
        if next_write is None:
            call = await prepare.complete(worker.artifacts, call)
            prepared = await worker.ledger.with_keys(
                lambda: prepare.prepare_here(worker, call), call.params
            )
            tool, changed = prepared.tool, prepare.drift(call, prepared.tool)
            if call.params_hash not in (None, prepared.params_hash) and changed is None:
                # The hash covers the version: a newer tool is asked about again, at the claim.
                await self._refuse_changed_params(call, prepared)
            if changed and tool.effect is Effect.READ:
                raise stop(ErrorType.TOOL_CHANGED, changed)
            request = await worker.ledger.with_keys(
                lambda: prepare.claim_request(worker, call, prepared, attempt), prepared.plain
            )
            request = await prepare.to_call_with(worker.watchdog, request, prepared)
        else:
            prepared, request = next_write.prepared, next_write.request
            tool = prepared.tool
        if tool.effect is not Effect.READ:
            note_effect(call.tenant, tool.name, request.key)
        async with (
            follow_progress(worker, call, attempt),
            hold_resources(worker, tool, prepared.resources, call, attempt) as held,
        ):
            given = (worker, tool, prepared.params, request, held, call.answered)
            made: recorder.Recorder
            if tool.effect is Effect.READ:
                made = read = ReadCall(*given, attempt.unacknowledged_holders())
                outcome = await read.run()
            else:
                made = write = EffectCall(*given, ahead)
                outcome = _outcome_of(await write.run(next_write), call, tool, request)
        story: tuple[TimelineLine, ...] = ()
        if made.recovered:  # how that was found out, the run's timeline tells
            step = (call.run_id, call.step_id)
            story = await recorder.write_surely(
                lambda: worker.ledger.transact(call.tenant, read_recovery, *step)
            )
        made.crash(CrashPoint.BEFORE_REPORT)
        return ToolReport(outcome=outcome, foreign=made.heard, story=story, head=made.head)

    async def _keep_usage(self, call: ToolCall, attempt: Attempt, usage: Usage) -> None:
        """Keep what an attempt has used, for a later one that reports, and count it."""
        if usage == Usage():
            return
        ledger, step = self._worker.ledger, (call.run_id, call.step_id)

        def keep(tx: Transaction) -> None:
            if step_rows.keep_usage(tx, *step, usage, attempt.holder):
                add_spent(tx, usage)

        await recorder.write_surely(lambda: ledger.transact(call.tenant, keep))

    async def _count_usage(self, call: ToolCall, attempt: Attempt, meter: Meter) -> Usage:
        """Return what this activity has used, in all of its attempts, and count this one's.

        The day's quotas lose it if the worker dies between the outcome and here, and have it twice
        if the database's answer is lost.
        """
        own, ledger = meter.usage(), self._worker.ledger
        if attempt.batch is not None:
            # It may be tried again because of a later step: then nobody has heard of this one.
            await self._keep_usage(call, attempt, own)
        elif own != Usage():
            await recorder.write_surely(lambda: ledger.transact(call.tenant, add_spent, own))
        if attempt.number > 1:
            whose = (call.run_id, call.step_id, f"{attempt.activity_key}:", attempt.holder)
            earlier = await recorder.write_surely(
                lambda: ledger.transact(call.tenant, step_rows.kept_usage, *whose)
            )
            for one in earlier:
                meter.add(one.tokens, one.money)
        return meter.usage()

    async def _refuse_changed_params(self, call: ToolCall, prepared: prepare.PreparedCall) -> None:
        evidence = f"approved are params {call.params_hash}, to be run {prepared.params_hash}"
        told = {"tool": call.tool.name, "rule": "Mismatch", "evidence": evidence}

        def refuse(tx: Transaction) -> None:
            tx.event(call.run_id, "effect.refused", step_id=call.step_id, **told)

        await self._worker.ledger.transact(call.tenant, refuse)
        raise stop(ErrorType.PARAMS_MISMATCH, f"{call.tool.name}: {evidence}")


def _outcome_of(
    result: CallResult, call: ToolCall, tool: Tool, request: ClaimRequest
) -> contracts.ToolOutcome:
    """Return what a write has come to as its run takes it."""
    attempts = request.attempt

    def is_mine(entry: Entry) -> bool:
        return entry.owned_by(call.run_id, call.step_id)

    match result:
        case recorder.Done(entry, receipt, replayed):
            return contracts.Succeeded(
                output=receipt,
                attempts=attempts,
                replayed=replayed,
                made_by=None if entry.run_id == call.run_id else entry.run_id,
                entry_id=entry.entry_id,
                effect=entry.view(state="committed") if is_mine(entry) else None,
            )
        case recorder.SaidNo(reason, code, replayed):
            return contracts.AnsweredNo(
                reason=reason, code=code, attempts=attempts, replayed=replayed
            )
        case entries.ApprovalRefused(reason):
            return contracts.ApprovalNeeded(reason=reason, attempts=attempts)
        case entries.OverLimit(reason, limit, ask) if ask is not None:
            return contracts.ApprovalNeeded(
                reason=reason, attempts=attempts, policy=ask, over_limit=limit
            )
        case entries.OverLimit(reason):
            raise stop(ErrorType.LIMIT_EXCEEDED, f"{tool.name}: {reason}")
        case entries.Drifted(reason):
            # What was approved is not what would run: the tool as it is now is asked about.
            return contracts.ApprovalNeeded(reason=reason, attempts=attempts, tool=tool.spec())
        case recorder.WantsAnswer(asked):
            return input_needed(asked, attempts)
        case OverQuota():
            return prepare.quota_needed(result, tool.name, attempts)
        case Halted(halt):
            return contracts.CallHalted(wait=halt.as_wait, attempts=attempts)
        case entries.Forbidden(reason):
            return contracts.PermissionNeeded(reason=reason, attempts=attempts)
        case entries.Asked(entry, intervention_id) if intervention_id == call.joined:
            message = f"{tool.name}: run {entry.run_id} waits for a human"
            raise again(ErrorType.LEASE_HELD, message, _JOINED_PAUSE)
        case entries.Asked(entry, intervention_id, question, rule):
            undoes = tool.compensate is not None
            return contracts.HumanNeeded(
                intervention_id=intervention_id,
                question=question,
                answers=reconcile.name_answers(entry, rule, call.run_id, lambda _: undoes),
                attempts=attempts,
                effect=entry.view() if is_mine(entry) else None,
            )
        case entries.Barred(reason, called_off):
            type_ = ErrorType.CALLED_OFF if called_off else ErrorType.STEP_BARRED
            raise stop(type_, f"{tool.name}: {reason}")
        case _:
            assert_never(result)


def _failed_step(call: ToolCall, error: ApplicationError) -> contracts.FailedStep:
    used = error.details[0] if error.details else None
    if not isinstance(used, contracts.AttemptsUsed):
        used = contracts.AttemptsUsed(attempts=0)
    return contracts.FailedStep(
        step_id=call.step_id, type=error.type, message=error.message, used=used
    )
