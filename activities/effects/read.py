"""One read, from its start to its end: it changes nothing, so it is simply made again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import structlog

from surehand.activities.effects.drafts import KeptDraft, Writer
from surehand.activities.effects.leases import HeldResources, call_within
from surehand.activities.effects.prepare import (
    STILL_DOWN,
    PreparedCall,
    is_healthy,
    quota_needed,
    tool_context,
)
from surehand.activities.effects.recorder import written
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.store import Transaction, Turn
from surehand.activities.ledger.effects.claim_entry import OVERTAKEN_PAUSE
from surehand.activities.ledger.effects.claims import note as note_claim
from surehand.activities.ledger.outbox.notification_rows import write_pause
from surehand.activities.ledger.people.starts import why_forbidden
from surehand.activities.ledger.quotas import OverQuota, QuotaUsedUp, require_unspent
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps import foreign as foreign_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.attempts import StepAttempt, Stored
from surehand.activities.ledger.steps.entries import (
    ApprovalRefused,
    ClaimRequest,
    Mismatch,
    milliseconds,
)
from surehand.activities.tools.call_reports import Answers, NeedsAnswer
from surehand.activities.tools.classify import classify_call
from surehand.activities.tools.failures import Failure, FailureClass
from surehand.activities.tools.output_json import make_json
from surehand.activities.tools.tool import No
from surehand.activities.worker.attempt import Attempt, NobodyWaits, again, stop
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.watchdog import GRACE
from surehand.process import clock
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.tools import (
    AnsweredNo,
    ApprovalNeeded,
    InputNeeded,
    PermissionNeeded,
    Succeeded,
    ToolCall,
    ToolOutcome,
    ToolReport,
)
from surehand.workflows.names import ErrorType

T = TypeVar("T")
log = structlog.get_logger()

_NOTHING: Final = Kept(None)
_DOWN: Final = FailureClass.DEPENDENCY_DOWN.value


@dataclass(frozen=True)
class _Begun:
    """A read that may be called, unless something speaks against it."""

    lacking: str | None
    """What its user may not."""
    refused: ApprovalRefused | Mismatch | None
    was_down: bool
    """An earlier attempt has found its service down."""
    now_ms: int


@dataclass(frozen=True)
class ReadCall:
    """One attempt at one read."""

    worker: WorkerContext
    call: ToolCall
    prepared: PreparedCall
    request: ClaimRequest
    """What its approval is bound to, as a write's claim is."""
    attempt: Attempt
    held: HeldResources
    keeps: tuple[Kept, ...] = ()
    """Artifacts that its step refers to from its beginning on."""

    async def run(self) -> ToolReport:
        """Call and record.

        Raises:
            ApplicationError: Typed as in ``workflows/names.py``; retryable ones carry their delay.
        """
        call, tool = self.call, self.prepared.tool
        outcome: ToolOutcome
        row, ledger = self._row(), self.worker.ledger
        try:
            begun = await ledger.transact(call.tenant, self._begin, row)
        except QuotaUsedUp as used_up:
            return await self._over(used_up.found)
        if isinstance(begun, ToolReport):
            return begun
        lacking, refused = begun.lacking, begun.refused
        if lacking is not None:
            head = await self._finish(
                row, "failed", error="not called", class_="refused", paused=lacking
            )
            outcome = PermissionNeeded(reason=lacking, attempts=self._number)
            return ToolReport(outcome=outcome, head=head)
        if isinstance(refused, Mismatch):
            await self._finish(row, "failed", error="not called", class_="refused")
            raise stop(ErrorType.PARAMS_MISMATCH, f"{tool.name}: {refused.reason}")
        if refused is not None:
            head = await self._finish(row, "failed", error="not called", class_="refused")
            outcome = ApprovalNeeded(reason=refused.reason, attempts=self._number)
            return ToolReport(outcome=outcome, head=head)
        if begun.was_down and not await is_healthy(self.worker.watchdog, tool):
            raise await self._failed(row, STILL_DOWN)
        try:
            answer = await self._answer()
        except NeedsAnswer as asked:
            head = await self._finish(
                row, "failed", error=f"asks: {asked.question}", class_="asked"
            )
            return ToolReport(outcome=input_needed(asked, self._number), head=head)
        except NobodyWaits as error:
            ended = "cancelled before it had an answer"
            await self._finish(row, "failed", error=ended, class_="cancelled")
            raise stop(ErrorType.TOOL_FAILED, f"{tool.name}: {ended}") from error
        except (Exception, asyncio.CancelledError) as error:
            self._crash(CrashPoint.AFTER_CALL)
            failed = await self._failed(row, self._classified(error))
            self._crash(CrashPoint.BEFORE_REPORT)
            raise failed from error
        self._crash(CrashPoint.AFTER_CALL)
        if isinstance(answer, No):
            answer = answer.cleaned()
            said = Kept({"no": {"reason": answer.reason, "code": answer.code}})
            head = await self._finish(
                row, "failed", output=said, error=answer.reason, class_=step_rows.NO
            )
            outcome = AnsweredNo(reason=answer.reason, code=answer.code, attempts=self._number)
        else:
            kept = await self.worker.artifacts.keep(
                call.tenant, call.run_id, await make_json(answer)
            )
            head = await self._finish(row, "succeeded", output=kept)
            outcome = Succeeded(output=kept.value, attempts=self._number, read_ms=begun.now_ms)
        self._crash(CrashPoint.BEFORE_REPORT)
        return ToolReport(outcome=outcome, head=head)

    def _begin(self, tx: Transaction, row: StepAttempt) -> _Begun | ToolReport:
        """Begin the read, or say what it has come to already."""
        call, request = self.call, self.request
        if request.if_foreign is not None:
            request = request.in_run(foreign=bool(foreign_rows.content_of(tx, row.run_id)))
        # Its row is locked before the run's, as wherever people decide.
        refused = approval_rows.refusal(tx, request) if request.gated else None
        for kept in self.keeps:
            artifact_rows.record(tx, row.run_id, row.step_id, kept)
        known = step_rows.begin_read(
            tx, row, after=call.attempts_before, holders=self.attempt.unacknowledged_holders()
        )
        if known is not None:
            self._mark_foreign(tx)
            return _as_stored(known)
        lacking = why_forbidden(
            *(tx, call.run_id, call.user, request.permissions, request.assurance)
        )
        down = self._number > 1 and step_rows.failures(tx, row, _DOWN)
        if lacking is None and refused is not None:
            note_claim(tx, request, refused)
        if lacking is None and refused is None:
            require_unspent(tx)
        return _Begun(lacking, refused, bool(down), tx.now_ms)

    async def _over(self, found: OverQuota) -> ToolReport:
        """Say what the read waits for; nothing else of it is recorded."""
        call, ledger = self.call, self.worker.ledger
        where = (call.run_id, call.step_id)
        _, head = await ledger.record(call.tenant, call.run_id, found.note, *where)
        outcome = quota_needed(found, self.prepared.tool.name, self._number)
        return ToolReport(outcome=outcome, head=head)

    def _row(self) -> StepAttempt:
        call, attempt = self.call, self.attempt
        return StepAttempt(
            call.run_id,
            call.step_id,
            self._number,
            self.prepared.tool.name,
            self.prepared.plain,
            attempt.holder,
            attempt.batch,
        )

    @cached_property
    def _draft(self) -> KeptDraft:
        call, ours = self.call, partial(step_rows.still_ours, attempt=self._row())
        writer = Writer(
            *(call.tenant, call.run_id, call.step_id, self.prepared.params_hash),
            first=self._number == 1,
            still_ours=ours,
            only_reads=True,
        )
        return KeptDraft(self.worker, writer)

    @property
    def _number(self) -> int:
        return self.call.attempts_before + self.attempt.number

    def _crash(self, point: CrashPoint) -> None:
        self.worker.crash.at(self.prepared.tool.name, self.call.step_id, point)

    async def _answer(self) -> Any:
        tool, watchdog = self.prepared.tool, self.worker.watchdog
        what = f"{tool.name} of run {self.call.run_id}"
        if not self.held.kept:
            async with watchdog.watched(what, tool.timeout):
                return await self._called()
        must_end = clock.now() + (tool.timeout + GRACE).total_seconds()

        async def watched() -> Any:
            with watchdog.watching(what, partial(self.held.must_end, must_end)):
                return await self._called()

        # While it still runs, its resources are not given to others.
        return await call_within(
            watched(), self.held.kept, timeout=tool.timeout, stopped_within=None
        )

    async def _called(self) -> Any:
        call, tool = self.call, self.prepared.tool
        context = tool_context(call, self._number, self.held, answers=Answers(call.answered))
        await self._draft.open()
        context = replace(context, artifact=self._draft)
        with self.worker.crash.during(tool.name, call.step_id):
            return await tool.fn(self.prepared.params, context)

    def _classified(self, error: BaseException) -> Failure:
        tool = self.prepared.tool
        return classify_call(error, tool.name, tool.fn.__module__, tool.errors)

    async def _failed(self, row: StepAttempt, failure: Failure) -> BaseException:
        if failure.failure_class is FailureClass.IN_DOUBT:
            # A read changes nothing, so it may simply be asked again.
            failure = Failure(FailureClass.TRANSIENT, failure.message)
        class_ = failure.failure_class.value

        def end(tx: Transaction) -> timedelta | None:
            delay = self.worker.retries.delay(failure, step_rows.failures(tx, row, class_))
            self._end(tx, row, "failed", error=failure.message, class_=class_, delay=delay)
            return delay

        delay, _ = await self._write(row, end)
        message = f"{row.tool}: {failure.message}"
        if delay is None:
            return stop(failure.for_good, message)
        return again(ErrorType.for_failure(class_), message, delay)

    async def _finish(self, row: StepAttempt, state: str, **how: Any) -> ChainHead:
        _, head = await self._write(row, lambda tx: self._end(tx, row, state, **how))
        return head

    async def _write(
        self, row: StepAttempt, end: Callable[[Transaction], T]
    ) -> tuple[T, ChainHead]:
        """Write the end of an attempt as that of a write is written: it is not asked for again."""

        def watched(tx: Transaction) -> T:
            tx.watch(row.run_id)
            return end(tx)

        ledger, tenant = self.worker.ledger, self.call.tenant
        result, tx = await written(lambda: ledger.run_transaction(tenant, watched, Turn.OUTCOME))
        return result, tx.heads[row.run_id]

    def _end(
        self,
        tx: Transaction,
        row: StepAttempt,
        state: str,
        *,
        output: Kept = _NOTHING,
        error: str | None = None,
        class_: str | None = None,
        delay: timedelta | None = None,
        paused: str | None = None,
    ) -> None:
        if not step_rows.finish(
            tx, row, state, output=output.value, error=error, error_class=class_
        ):
            if step_rows.has_ended(tx, row):
                return
            message = f"{row.tool}: another worker has taken this read over"
            raise again(ErrorType.LEASE_HELD, message, OVERTAKEN_PAUSE)
        artifact_rows.record(tx, row.run_id, row.step_id, output)
        if state == "succeeded":
            self._draft.end(tx)
        retry_ms = None if delay is None else milliseconds(delay)
        step_rows.tell_ended(tx, row, state, failure_class=class_, retry_ms=retry_ms)
        self.held.mark(tx, row.run_id)
        if class_ != "refused":  # the run may hear of it
            self._mark_foreign(tx)
        if paused is not None:
            first = self.call.attempts_before + 1
            step = (row.run_id, row.step_id, first)
            write_pause(tx, *step, tool=row.tool, reason=paused)

    def _mark_foreign(self, tx: Transaction) -> None:
        """Mark the run, in the transaction of what it hears, if that comes from outside."""
        if self.request.foreign:
            foreign_rows.mark(tx, self.request.run_id, [self.request.content])


def input_needed(asked: NeedsAnswer, attempts: int) -> InputNeeded:
    """Return the outcome of a call that has asked."""
    return InputNeeded(
        question=asked.question,
        answer_schema=asked.schema,
        digest=asked.digest,
        before=asked.before,
        attempts=attempts,
    )


def _as_stored(known: Stored) -> ToolReport:
    outcome: ToolOutcome
    if known.no is None:
        outcome = Succeeded(
            output=known.output,
            attempts=known.attempt,
            replayed=True,
            read_ms=known.started_ms,
        )
    else:
        outcome = AnsweredNo(**known.no, attempts=known.attempt, replayed=True)
    return ToolReport(outcome=outcome)
