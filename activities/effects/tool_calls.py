"""The activities that touch tools: describing them and calling them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, assert_never

from temporalio import activity
from temporalio.exceptions import ApplicationError

from surehand.activities.activity_errors import again, stop
from surehand.activities.effects.long_calls import following
from surehand.activities.effects.next_claim import Ahead, Begun
from surehand.activities.effects.preconditions import to_call_with
from surehand.activities.effects.prepare import (
    PreparedCall,
    claim_request,
    complete,
    drift,
    prepare,
)
from surehand.activities.effects.read import ReadCall
from surehand.activities.effects.recorder import Done, SaidNo, WantsAnswer
from surehand.activities.effects.resource_leases import hold_resources
from surehand.activities.effects.write import EffectCall
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.steps.entries import (
    ApprovalRefused,
    Asked,
    Barred,
    Drifted,
    Entry,
    Forbidden,
)
from surehand.activities.tools.describing import describe_plan
from surehand.activities.tools.metering import metering
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.tools import (
    AnsweredNo,
    ApprovalNeeded,
    AttemptsUsed,
    DescribeTools,
    Effect,
    HumanNeeded,
    InputNeeded,
    PermissionNeeded,
    RateLimited,
    Succeeded,
    ToolCall,
    ToolOutcome,
    ToolReport,
    ToolsDescribed,
)
from surehand.workflows.errors import ErrorType

#: How often a step looks whether the question it has joined is settled: a human takes minutes.
JOINED_PAUSE: Final = timedelta(seconds=5)


class ToolActivities:
    """``describe_tools`` and ``execute_tool``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="describe_tools")
    async def describe_tools(self, asked: DescribeTools) -> ToolsDescribed:
        """Return the specs of a plan's tools, and what in the plan does not fit them."""
        return describe_plan(self._worker.toolbox, asked.plan)

    @activity.defn(name="execute_tool")
    async def execute_tool(self, call: ToolCall) -> ToolReport:
        """Make one tool call: checked, claimed, called, recorded."""
        return await self.make(call, Attempt.current())

    async def make(
        self,
        call: ToolCall,
        attempt: Attempt,
        ahead: Ahead | None = None,
        begun: Begun | None = None,
    ) -> ToolReport:
        """Make one tool call in an activity that is kept alive.

        Args:
            call: The call.
            attempt: Who makes it.
            ahead: What a batch does after it.
            begun: A write that is claimed already.

        Raises:
            ApplicationError: Typed as in ``workflows/errors.py``.
        """
        try:
            if begun is None:
                call = await complete(self._worker.artifacts, call)
                prepared = await self._prepared(call)
            else:
                prepared = begun.next.prepared
            async with following(self._worker, call, attempt):
                with metering() as meter:
                    if prepared.tool.effect is Effect.READ:
                        report = await self._read(call, prepared, attempt)
                    else:
                        report = await self._write(call, prepared, attempt, ahead, begun)
            return report.model_copy(update={"usage": meter.usage()})
        except ApplicationError as error:
            if error.type == ErrorType.RATE_LIMITED and error.next_retry_delay is not None:
                return _limited(call, attempt, error)
            if not error.non_retryable:
                raise
            used = AttemptsUsed(attempts=call.attempts_before + attempt.number)
            raise ApplicationError(
                error.message, used, type=error.type, non_retryable=True
            ) from error

    async def _prepared(self, call: ToolCall) -> PreparedCall:
        prepared = prepare(self._worker.toolbox, call)
        changed = call.params_hash is not None and call.params_hash != prepared.params_hash
        # The hash covers the version: a newer tool is asked about again, at the claim.
        if changed and drift(call, prepared.tool) is None:
            await self._refuse_changed_params(call, prepared)
        return prepared

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
            request = claim_request(self._worker, call, prepared, attempt)
            request = await to_call_with(request, prepared)
        else:
            request = begun.next.request
        tool = prepared.tool
        async with hold_resources(self._worker, tool, prepared.resources, call, attempt) as held:
            answers = tuple(call.answers)
            effect = EffectCall(self._worker, tool, prepared.params, request, held, answers, ahead)
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
            case WantsAnswer(question, schema):
                outcome = InputNeeded(
                    question=question, answer_schema=schema, attempts=request.attempt
                )
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
        effect.before_report()
        return ToolReport(outcome=outcome, head=effect.head)

    async def _read(self, call: ToolCall, prepared: PreparedCall, attempt: Attempt) -> ToolReport:
        tool = prepared.tool
        changed = drift(call, tool)
        if changed:
            raise stop(ErrorType.TOOL_CHANGED, changed)
        request = claim_request(self._worker, call, prepared, attempt)
        request = await to_call_with(request, prepared)
        self._worker.crash.at(tool.name, call.step_id, CrashPoint.BEFORE_CLAIM)
        async with hold_resources(self._worker, tool, prepared.resources, call, attempt) as held:
            return await ReadCall(self._worker, call, prepared, request, attempt, held).run()


def _limited(call: ToolCall, attempt: Attempt, error: ApplicationError) -> ToolReport:
    """Return a rate limit as an answer: the run waits for its end, and says so."""
    assert error.next_retry_delay is not None
    attempts = call.attempts_before + attempt.number
    outcome = RateLimited(pause=error.next_retry_delay, reason=error.message, attempts=attempts)
    return ToolReport(outcome=outcome)
