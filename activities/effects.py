"""One write, from claim to outcome: intent, effect, outcome (guarantees G1, G2, G3).

``EffectCall`` is what ``execute_tool`` and ``compensate`` share. Its life: claim in one
transaction; call the tool with no transaction open, the lease renewed beside it; record the
outcome in another transaction, guarded by the fencing token. What it finds in doubt is reconciled:
the outside system is asked, or a human.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, assert_never

import structlog
from pydantic import BaseModel
from temporalio.exceptions import ApplicationError

from activities.attempt import Resources
from activities.crashpoints import CrashPoint
from activities.failures import Failure, FailureClass, classify
from activities.health import STILL_DOWN, is_healthy
from activities.lease import hold
from activities.ledger import claims, lookups, outcomes
from activities.ledger.artifacts import Kept
from activities.ledger.entries import (
    Answered,
    ApprovalRefused,
    Asked,
    Barred,
    Claimed,
    ClaimRequest,
    ClaimResult,
    Committed,
    Doubtful,
    Drifted,
    Entry,
    Held,
    Mismatch,
    milliseconds,
)
from activities.ledger.session import Session
from activities.ledger.store import LedgerUnavailable, Transaction
from activities.outputs import clean_text, to_json
from activities.resource_leases import BUSY_PAUSE, NO_RESOURCES, HeldResources
from activities.toolbox import Found, No, NotFound, Partial, Tool, ToolContext, Unknown
from activities.watchdog import grace
from workflows.contracts import ChainHead, Recovery
from workflows.errors import ErrorType

log = structlog.get_logger()
T = TypeVar("T")

#: Pause between tries to write something that must not be lost.
_DATABASE_PAUSE: Final = 0.25  # seconds
#: The attempt that lost the answer to its claim asks again before a later attempt has to guess.
_CLAIM_TRIES: Final = 3


@dataclass(frozen=True)
class Done:
    """The effect is recorded as committed."""

    entry: Entry
    receipt: Any
    replayed: bool
    commit_seq: int


@dataclass(frozen=True)
class SaidNo:
    """The tool answered no."""

    reason: str
    code: str
    replayed: bool


class _GaveUp(Exception):
    """A transactional tool has not made its effect: its transaction is rolled back."""

    def __init__(self, why: No | Failure) -> None:
        super().__init__()
        self.why = why


CallResult = Done | SaidNo | ApprovalRefused | Asked | Barred


def stop(type_: ErrorType, message: str) -> ApplicationError:
    """Return a failure that no repetition heals."""
    return ApplicationError(message, type=type_.value, non_retryable=True)


def again(type_: ErrorType, message: str, delay: timedelta) -> ApplicationError:
    """Return a failure after which Temporal tries the activity again."""
    return ApplicationError(message, type=type_.value, next_retry_delay=delay)


@dataclass
class EffectCall:
    """One attempt at one write."""

    resources: Resources
    tool: Tool
    params: BaseModel
    request: ClaimRequest
    held: HeldResources = NO_RESOURCES
    head: ChainHead | None = None
    """The run's chain after the newest of this attempt's transactions."""
    _asked: float = 0.0
    """When the newest transaction began, by this process's monotonic clock."""
    _now_ms: int = 0
    """The same by the database's clock."""

    def before_report(self) -> None:
        """Pass the last crash point: recorded, and Temporal has not heard of it."""
        self._crash(CrashPoint.BEFORE_REPORT)

    def _crash(self, point: CrashPoint) -> None:
        self.resources.crash.at(self.tool.name, self.request.step_id, point)

    async def run(self) -> CallResult:
        """Claim, call and record; or say what stands there already.

        Raises:
            ApplicationError: Typed as in ``workflows.errors``; retryable ones carry their delay.
        """
        self._crash(CrashPoint.BEFORE_CLAIM)
        return await self._go_on(await self._claim())

    async def _claim(self) -> ClaimResult:
        tries = 1
        while True:
            try:
                return await self._in_ledger(lambda tx: claims.claim(tx, self.request))
            except LedgerUnavailable:
                if tries == _CLAIM_TRIES:
                    raise
                tries += 1
                await asyncio.sleep(_DATABASE_PAUSE)

    async def _go_on(self, result: ClaimResult) -> CallResult:
        match result:
            case Claimed(entry):
                self._crash(CrashPoint.AFTER_CLAIM)
                return await self._call(entry)
            case Committed(entry):
                assert entry.commit_seq is not None
                return Done(entry, entry.receipt, True, entry.commit_seq)
            case Answered(entry):
                return SaidNo(entry.answer["reason"], entry.answer["code"], True)
            case Doubtful(entry):
                return await self.reconcile(entry)
            case Held(wait):
                message = f"{self.tool.name}: another attempt holds this effect"
                self.resources.metrics.lease_wait(self.tool.name, "held", wait)
                raise again(ErrorType.LEASE_HELD, message, wait + timedelta(milliseconds=50))
            case Mismatch(reason):
                raise stop(ErrorType.PARAMS_MISMATCH, f"{self.tool.name}: {reason}")
            case Drifted(reason):
                raise stop(ErrorType.TOOL_CHANGED, reason)
            case ApprovalRefused() | Asked() | Barred():
                return result
            case _:
                assert_never(result)

    async def _call(self, entry: Entry) -> CallResult:
        if time.monotonic() >= self._asked + self.request.lease.total_seconds():
            # A slow claim, or frozen since: find it again with a fresh lease, or lose it.
            return await self._go_on(await self._claim())
        if FailureClass.DEPENDENCY_DOWN in entry.failures and not await is_healthy(self.tool):
            return await self._failed(entry, STILL_DOWN)
        if (lost := self.held.lost()) is not None:
            await self._not_begun(entry, f"{self.tool.name}: not called: a resource: {lost}")
        if self.tool.transactional:
            return await self._call_in_ledger(entry)
        try:
            answer = await hold(
                self._watched(self._asked, self._context(entry)),
                lambda: self._in_ledger(lambda tx: outcomes.renew(tx, entry, self.request.lease)),
                lease=self.request.lease,
                every=self.resources.renew_every,
                timeout=self.request.timeout,
                claimed=self._asked,
                under=self.held.kept,
            )
        except Exception as error:
            self._crash(CrashPoint.AFTER_CALL)
            return await self._failed(entry, classify(error, self.tool.errors))
        self._crash(CrashPoint.AFTER_CALL)
        if isinstance(answer, No):
            return await self._say_no(entry, answer.cleaned())
        return await self._record(entry, to_json(answer))

    async def _call_in_ledger(self, entry: Entry) -> CallResult:
        """Call a transactional tool: its effect and its outcome commit together, or not at all."""
        try:
            done = await self._in_ledger(lambda tx: self._work(tx, entry))
        except _GaveUp as ended:
            if isinstance(ended.why, No):
                return await self._say_no(entry, ended.why)
            return await self._failed(entry, ended.why)
        except LedgerUnavailable:
            # Whether it committed, the entry says.
            return await self._go_on(await self._claim())
        except ApplicationError:
            raise
        except Exception as error:
            # The database refuses what the tool has written (a deferred constraint), or goes on
            # with nothing after an error that the tool has swallowed: all of it is rolled back.
            failure = classify(error).message
            return await self._failed(entry, Failure(FailureClass.TRANSIENT, failure))
        self._crash(CrashPoint.AFTER_OUTCOME)
        return done

    async def _work(self, tx: Transaction, entry: Entry) -> Done:
        if not await outcomes.still_ours(tx, entry):
            self._fenced()
        context = replace(self._context(entry), session=Session(tx.connection))
        try:
            async with asyncio.timeout(self.request.timeout.total_seconds()):
                answer = await self._watched(time.monotonic(), context)
        except (Exception, asyncio.CancelledError) as error:
            self._crash(CrashPoint.AFTER_CALL)
            failure = classify(error, self.tool.errors)
            if failure.failure_class is FailureClass.IN_DOUBT:
                # Whatever it was: what the tool has written goes with the transaction.
                failure = Failure(FailureClass.TRANSIENT, failure.message)
            raise _GaveUp(failure) from error
        self._crash(CrashPoint.AFTER_CALL)
        if isinstance(answer, No):
            raise _GaveUp(answer.cleaned())
        kept = await self.resources.artifacts.keep(self.request.tenant, to_json(answer))
        commit = await outcomes.commit(tx, self.request, entry, kept)
        await self.held.mark(tx, self.request.run_id)
        assert commit is not None, "the entry's row is locked by this transaction"
        return Done(entry, kept.value, False, commit)

    async def _say_no(self, entry: Entry, answer: No) -> SaidNo:
        recorded = await self._write(
            lambda tx: outcomes.answer_no(tx, self.request, entry, answer.reason, answer.code)
        )
        if not recorded:
            self._fenced()
        self._crash(CrashPoint.AFTER_OUTCOME)
        return SaidNo(answer.reason, answer.code, False)

    async def _watched(self, claimed: float, context: ToolContext) -> Any:
        # Inside the call's own task: one that ignores its cancellation stays watched.
        must_end = self.request.timeout + grace(self.tool.settle)
        deadline = claimed + must_end.total_seconds()
        what = f"{self.tool.name} of run {self.request.run_id}"
        crashing = self.resources.crash.during(self.tool.name, self.request.step_id)
        must_end_at = partial(self.held.must_end, deadline)
        with self.resources.watchdog.watching(what, must_end_at), crashing:
            return await self.tool.fn(self.params, context)

    async def _not_begun(self, entry: Entry, message: str) -> NoReturn:
        """Give up a claim under which nothing was called; that counts for no class of failures."""
        class_ = ErrorType.RESOURCE_BUSY.value
        await self._write(
            lambda tx: outcomes.fail(tx, self.request, entry, class_, message, delay=BUSY_PAUSE)
        )
        raise again(ErrorType.RESOURCE_BUSY, message, BUSY_PAUSE)

    async def _record(
        self, entry: Entry, receipt: Any, evidence: dict[str, Any] | None = None
    ) -> Done:
        kept = await self.resources.artifacts.keep(self.request.tenant, receipt)
        commit = await self._write(
            lambda tx: outcomes.commit(tx, self.request, entry, kept, evidence=evidence)
        )
        if commit is None:
            await self._write(lambda tx: outcomes.note_late_receipt(tx, entry, kept))
            self._fenced()
        self._crash(CrashPoint.AFTER_OUTCOME)
        return Done(entry, kept.value, False, commit)

    async def _failed(self, entry: Entry, failure: Failure) -> CallResult:
        message = f"{self.tool.name}: {failure.message}"
        if failure.failure_class is FailureClass.IN_DOUBT:
            return await self._unsettled(entry, failure.message)
        class_ = failure.failure_class.value

        async def record(tx: Transaction) -> tuple[int | None, timedelta | None]:
            delay, text = self._next_try(entry, failure, tx.now_ms), failure.message
            return await outcomes.fail(tx, self.request, entry, class_, text, delay=delay), delay

        recorded, delay = await self._write(record)
        if recorded is None:
            self._fenced()
        self._crash(CrashPoint.AFTER_OUTCOME)
        if delay is None and entry.unproven:
            doubtful = replace(entry, state="in_doubt")
            if self.tool.lookup is not None:
                return await self.reconcile(doubtful)
            why = f"an earlier call was never answered, and calling again ended with: {message}"
            return await self._ask(doubtful, why)
        self.before_report()
        if delay is None:
            raise stop(ErrorType.TOOL_FAILED, message)
        raise again(ErrorType.for_failure(class_), message, delay)

    def _next_try(self, entry: Entry, failure: Failure, now_ms: int) -> timedelta | None:
        """Return the pause before the call is tried again; ``None``: it is not."""
        retries = self.resources.retries
        delay = retries.delay(failure, entry.failures.get(failure.failure_class.value, 0))
        if delay is None or self.request.undoes is None or entry.first_call_ms is None:
            return delay
        limit = entry.first_call_ms + milliseconds(retries.compensation_limit)
        return delay if now_ms + milliseconds(delay) <= limit else None

    async def _unsettled(self, entry: Entry, message: str) -> Asked:
        """Leave the entry in doubt for a later attempt to settle; or ask, after too many."""
        earlier = await self._write(
            lambda tx: outcomes.leave_in_doubt(tx, self.request, entry, message)
        )
        if earlier is None:
            self._fenced()
        pauses = self.resources.retries.in_doubt
        if self.tool.recovery is Recovery.HUMAN or earlier >= len(pauses):
            return await self._ask(replace(entry, state="in_doubt"), message)
        raise again(ErrorType.IN_DOUBT, f"{self.tool.name}: {message}", pauses[earlier])

    async def reconcile(self, entry: Entry, *, forward: bool = True) -> CallResult:
        """Settle an entry that is in doubt under our fencing token.

        Args:
            entry: The entry in doubt.
            forward: Whether the tool may be called when the effect is proven not to have happened.
                A run that is being undone only records that.
        """
        if self.tool.transactional and not forward and self._is_of_this_version(entry):
            # However late: without an outcome nothing has happened.
            return await self._not_applied(entry, None, time.monotonic(), forward=False)
        if self._recovering_too_long(entry):
            limit = self.request.recovery_limit.total_seconds()
            return await self._ask(entry, f"its recovery has taken longer than {limit:g} s")
        if self.tool.transactional and self._is_of_this_version(entry):
            return await self._not_applied(entry, None, time.monotonic(), forward=forward)
        if self.tool.lookup is None:
            return await self._ask(entry, "a crash left its outcome unknown")
        looked = time.monotonic()
        try:
            async with asyncio.timeout(self.request.timeout.total_seconds()):
                answer: object = await self.tool.lookup(self.params, self._context(entry))
        except (Exception, asyncio.CancelledError) as error:
            return await self._unsettled(entry, f"lookup failed: {classify(error).message}")
        log.info("effect.looked_up", entry_id=entry.entry_id, answer=type(answer).__name__)
        match answer:
            case Found(receipt):
                evidence = {"rule": "lookup", "answer": "found"}
                return await self._record(entry, to_json(receipt), evidence)
            case NotFound():
                return await self._not_found(entry, looked, forward=forward)
            case Partial(details, receipt):
                why = clean_text(f"it happened in part: {details}")
                part = await self.resources.artifacts.keep(self.request.tenant, to_json(receipt))
                return await self._ask(entry, why, part=part)
            case Unknown(reason):
                return await self._ask(entry, clean_text(f"the lookup cannot tell: {reason}"))
        # User code may return anything at all; then it says nothing.
        return await self._unsettled(entry, f"lookup answered {type(answer).__name__}")

    def _is_of_this_version(self, entry: Entry) -> bool:
        """Return whether the call that left the entry was one of this very tool."""
        return entry.tool_version == self.tool.version

    def _recovering_too_long(self, entry: Entry) -> bool:
        """Judge by the database's clock, as it was in the newest transaction."""
        if entry.recovering_ms is None:
            return False
        return self._now_ms - entry.recovering_ms > milliseconds(self.request.recovery_limit)

    async def _not_found(self, entry: Entry, looked: float, *, forward: bool) -> CallResult:
        settle = self.tool.settle
        if settle is None:
            return await self._ask(
                entry, "the lookup found nothing, and the tool declares no settle time"
            )
        return await self._not_applied(entry, settle, looked, forward=forward)

    async def _not_applied(
        self, entry: Entry, settle: timedelta | None, looked: float, *, forward: bool
    ) -> CallResult:
        async def go_on(tx: Transaction) -> ClaimResult:
            # What was not there when it was looked for may have come since.
            ago = timedelta(seconds=time.monotonic() - looked)
            return await lookups.after_not_found(
                tx, self.request, entry, settle, forward=forward, looked=ago
            )

        result = await self._in_ledger(go_on)
        if isinstance(result, Held):
            message = f"{self.tool.name}: not found, but the first call may still arrive"
            self.resources.metrics.lease_wait(self.tool.name, "settling", result.wait)
            raise again(ErrorType.SETTLING, message, result.wait)
        return await self._go_on(result)

    async def _ask(self, entry: Entry, why: str, *, part: Kept | None = None) -> Asked:
        question = f"{self.tool.name} {entry.key}: {why}. Did it happen?"
        if self.tool.compensate is not None:
            question += f" Settled as undo, {self.tool.compensate.tool} takes it back."
        intervention_id = await self._write(
            lambda tx: outcomes.ask_human(tx, entry, question, part=part)
        )
        if intervention_id is None:
            self._fenced()
        return Asked(entry, intervention_id, question)

    def _fenced(self) -> NoReturn:
        message = f"{self.tool.name}: another attempt has taken this effect over"
        raise again(ErrorType.LEASE_HELD, message, timedelta(seconds=1))

    def _context(self, entry: Entry) -> ToolContext:
        return ToolContext(
            tenant=self.request.tenant,
            run_id=self.request.run_id,
            step_id=self.request.step_id,
            user=self.request.user,
            attempt=self.request.attempt,
            idempotency_key=entry.provider_key,
            fencing_tokens=self.held.fencing_tokens(),
        )

    async def _in_ledger(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        self._asked = time.monotonic()
        async with self.resources.ledger.transaction(self.request.tenant) as tx:
            result = await work(tx)
            self._now_ms = tx.now_ms
        self.head = tx.heads.get(self.request.run_id, self.head)
        return result

    async def _write(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Write what is in hand, however long the database is away: it must not be lost."""

        async def marked(tx: Transaction) -> T:
            result = await work(tx)
            await self.held.mark(tx, self.request.run_id)
            return result

        while True:
            try:
                return await self._in_ledger(marked)
            except LedgerUnavailable as error:
                log.warning("ledger.unavailable", error=str(error), holding="an outcome")
                await asyncio.sleep(_DATABASE_PAUSE)
