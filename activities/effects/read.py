"""One read: a write without a claim. It changes nothing, so it is simply made again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Final

from surehand.activities.effects.drafts import KeptDraft
from surehand.activities.effects.prepare import STILL_DOWN, is_healthy, quota_needed
from surehand.activities.effects.recorder import Recorder
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects.claims import note_claim
from surehand.activities.ledger.halts import Halted, HaltStands, require_may_read
from surehand.activities.ledger.outbox.notification_rows import write_pause
from surehand.activities.ledger.people.starts import why_forbidden
from surehand.activities.ledger.quotas import QuotaUsedUp
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps import foreign as foreign_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.attempts import StepAttempt, Stored
from surehand.activities.ledger.steps.entries import ApprovalRefused, Mismatch, milliseconds
from surehand.activities.tools.call_reports import NeedsAnswer, make_json
from surehand.activities.tools.failures import Failure, FailureClass
from surehand.activities.tools.tool import No
from surehand.activities.worker.context import NobodyWaits, again, stop
from surehand.activities.worker.crash_points import CrashPoint
from surehand.process import clock
from surehand.workflows.contracts import tools as contracts
from surehand.workflows.names import ErrorType

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


@dataclass
class ReadCall(Recorder):
    """One attempt at one read."""

    holders: str | None = None
    """How the names of those begin whose recorded answer it takes; ``None``: it takes none."""
    keeps: tuple[Kept, ...] = ()
    """Artifacts that its step refers to from its beginning on."""

    @cached_property
    def _row(self) -> StepAttempt:
        request = self.request
        return replace(request.step_attempt, holder=request.holder, batch=request.batch)

    @cached_property
    def _draft(self) -> KeptDraft:
        still_ours = partial(step_rows.still_ours, attempt=self._row)
        return KeptDraft(self.worker, self.request, still_ours, only_reads=True)

    async def run(self) -> contracts.ToolOutcome:
        """Call and record; a failure that is tried again is raised with its pause."""
        request, name = self.request, self.tool.name
        self.crash(CrashPoint.BEFORE_CLAIM)
        try:
            begun = await self.in_ledger(self._begin)
        except (QuotaUsedUp, HaltStands) as error:
            over = error.found

            def note(tx: Transaction) -> None:
                tx.watch(request.run_id)
                over.note(tx, request.run_id, request.step_id)

            await self.in_ledger(note)
            if isinstance(over, Halted):
                return contracts.CallHalted(wait=over.halt.as_wait, attempts=request.attempt)
            return quota_needed(over, name, request.attempt)
        if isinstance(begun, Stored):
            return _as_stored(begun)
        if begun.lacking is not None:
            await self._end("failed", "not called", class_="refused", paused=begun.lacking)
            return contracts.PermissionNeeded(reason=begun.lacking, attempts=request.attempt)
        if begun.refused is not None:
            await self._end("failed", "not called", class_="refused")
            if isinstance(begun.refused, Mismatch):
                raise stop(ErrorType.PARAMS_MISMATCH, f"{name}: {begun.refused.reason}")
            return contracts.ApprovalNeeded(reason=begun.refused.reason, attempts=request.attempt)
        if begun.was_down and not await is_healthy(self.worker.watchdog, self.tool):
            raise await self._fail(STILL_DOWN)
        try:
            since = clock.now()
            answer = await self.limit_call(self._call(since), since)
        except NeedsAnswer as asked:
            await self._end("failed", f"asks: {asked.question}", class_="asked")
            return input_needed(asked, request.attempt)
        except NobodyWaits as error:
            ended = "cancelled before it had an answer"
            await self._end("failed", ended, class_="cancelled")
            raise stop(ErrorType.TOOL_FAILED, f"{name}: {ended}") from error
        except (Exception, asyncio.CancelledError) as error:
            self.crash(CrashPoint.AFTER_CALL)
            failed = await self._fail(self.classify(error))
            self.crash(CrashPoint.BEFORE_REPORT)
            raise failed from error
        self.crash(CrashPoint.AFTER_CALL)
        if isinstance(answer, No):
            no = answer.cleaned()
            said = Kept({"no": {"reason": no.reason, "code": no.code}})
            await self._end("failed", no.reason, class_=step_rows.NO, output=said)
            return contracts.AnsweredNo(reason=no.reason, code=no.code, attempts=request.attempt)
        whose = (request.tenant, request.run_id)
        kept = await self.worker.artifacts.keep(*whose, await make_json(answer))
        await self._end("succeeded", output=kept)
        return contracts.Succeeded(
            output=kept.value, attempts=request.attempt, read_ms=begun.now_ms
        )

    def _begin(self, tx: Transaction) -> Stored | _Begun:
        """Record that the read runs; an answer that is recorded already is the answer."""
        request, row = self.request, self._row
        tx.share_calls()
        if request.if_foreign is not None:
            request = request.in_run(foreign=bool(foreign_rows.foreign_content(tx, row.run_id)))
        # Its row is locked before the run's, as wherever people decide.
        refused = approval_rows.refuse_read(tx, request) if request.gated else None
        for kept in self.keeps:
            artifact_rows.record_artifact(tx, row.run_id, row.step_id, kept)
        after = request.first_attempt - 1
        known = step_rows.begin_read(tx, row, after=after, holders=self.holders)
        if known is not None:
            self.mark_foreign(tx)
            return known
        who = (request.run_id, request.user)
        lacking = why_forbidden(tx, *who, request.permissions, request.assurance)
        was_down = row.attempt > 1 and step_rows.count_failures(tx, row, _DOWN)
        if lacking is None and refused is not None:
            note_claim(tx, request, refused)
        if lacking is None and refused is None:
            require_may_read(tx, row.tool, row.run_id)
        return _Begun(lacking, refused, bool(was_down), tx.now_ms)

    async def _call(self, since: float) -> Any:
        await self._draft.open()
        return await self.call_tool(self.context(draft=self._draft), since)

    async def _fail(self, failure: Failure) -> BaseException:
        """Record a failure, and return what says whether the call is tried again."""
        if failure.failure_class is FailureClass.IN_DOUBT:
            # A read changes nothing, so it may simply be asked again.
            failure = Failure(FailureClass.TRANSIENT, failure.message)
        class_, message = failure.failure_class, f"{self.tool.name}: {failure.message}"
        delay = await self._end("failed", failure.message, class_=class_.value, failure=failure)
        if delay is None:
            return stop(failure.final_type, message)
        return again(class_.error_type, message, delay)

    async def _end(
        self,
        state: str,
        error: str | None = None,
        *,
        class_: str | None = None,
        output: Kept = _NOTHING,
        failure: Failure | None = None,
        paused: str | None = None,
    ) -> timedelta | None:
        """Record how the attempt ended, and return the pause before the next one of a failure."""
        row = self._row

        def end(tx: Transaction) -> timedelta | None:
            tx.watch(row.run_id)
            delay = None
            if failure is not None:
                earlier = step_rows.count_failures(tx, row, failure.failure_class.value)
                delay = self.worker.retries.delay(failure, earlier)
            ended = {"output": output.value, "error": error, "error_class": class_}
            if not step_rows.finish_attempt(tx, row, state, **ended):
                if step_rows.has_ended(tx, row):
                    return delay
                message = f"{row.tool}: another worker has taken this read over"
                raise again(ErrorType.LEASE_HELD, message)
            artifact_rows.record_artifact(tx, row.run_id, row.step_id, output)
            if state == "succeeded":
                self._draft.end(tx)
            retry_ms = None if delay is None else milliseconds(delay)
            step_rows.tell_ended(tx, row, state, failure_class=class_, retry_ms=retry_ms)
            if class_ != "refused":  # the run may hear of it
                self.mark_foreign(tx)
            if paused is not None:
                step = (row.run_id, row.step_id, self.request.first_attempt)
                write_pause(tx, *step, tool=row.tool, reason=paused)
            return delay

        return await self.write(end)


def input_needed(asked: NeedsAnswer, attempts: int) -> contracts.InputNeeded:
    return contracts.InputNeeded(
        question=asked.question,
        answer_schema=asked.schema,
        digest=asked.digest,
        before=asked.before,
        attempts=attempts,
    )


def _as_stored(known: Stored) -> contracts.ToolOutcome:
    if known.no is not None:
        return contracts.AnsweredNo(**known.no, attempts=known.attempt, replayed=True)
    return contracts.Succeeded(
        output=known.output, attempts=known.attempt, replayed=True, read_ms=known.started_ms
    )
