"""What one attempt at a write records: fenced by its token, and never lost while in hand.

A batch claims its next write in the transaction that records the outcome before it, where nothing
is in its way: whatever else there is, the write's own claim finds out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, NoReturn, Protocol, TypeVar

import structlog

from surehand.activities.effects.leases import NO_RESOURCES, HeldResources
from surehand.activities.effects.prepare import (
    PreparedCall,
    claim_request,
    prepare_here,
    tool_context,
)
from surehand.activities.ledger.core.engine import may_pass
from surehand.activities.ledger.core.store import LongTransaction, Transaction, Turn
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.steps import foreign as foreign_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Asked,
    Claimed,
    ClaimRequest,
    Entry,
    milliseconds,
)
from surehand.activities.tools.call_reports import Answers, NeedsAnswer
from surehand.activities.tools.failures import Failure
from surehand.activities.tools.tool import No, Tool, ToolContext
from surehand.activities.worker.attempt import Attempt, again
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.base import ChainHead, ForeignContent
from surehand.workflows.contracts.tools import Effect, Recovery, ToolCall
from surehand.workflows.names import ErrorType

log = structlog.get_logger()


@dataclass(frozen=True)
class Next:
    """The write that follows, as it would be claimed."""

    call: ToolCall
    prepared: PreparedCall
    request: ClaimRequest


@dataclass(frozen=True)
class Begun:
    """A write that is prepared: its params are not validated anew, or they might change."""

    next: Next
    claimed: Claimed | None
    """``None``: it has yet to be claimed, or nobody has heard whether it is."""
    began: float
    """When the transaction of the claim began, by ``clock.now()``."""


@dataclass
class Ahead:
    """What a batch does after the write that is under way."""

    worker: WorkerContext
    attempt: Attempt
    """The next step's."""
    call_after: Callable[[Any], ToolCall | None]
    """The next step's call, made of the write's output; ``None``: there is none, or not now."""
    begun: Begun | None = field(default=None, init=False)

    def find(self, output: Any) -> Next | None:
        """Return what to claim after a write, if it can be claimed with its outcome.

        Never raises: an outcome is in hand. What is wrong with the next call, it says itself.
        """
        try:
            call = self.call_after(output)
            return None if call is None else self._prepared(call)
        except Exception as error:
            log.debug("ahead.not_claimed", reason=repr(error))
            return None

    def _prepared(self, call: ToolCall) -> Next | None:
        tool = self.worker.toolbox.get(call.tool.name)
        if tool is None or call.late or call.params_hash is not None:
            return None
        # One that is transactional waits for a place: a claim would be held meanwhile.
        if tool.effect is Effect.READ or tool.transactional:
            return None
        # A worker that dies with the claim leaves the call in doubt, though nobody has made it. No
        # human is to be asked for that.
        if not tool.recovery.proves_absence(tool.settle):
            return None
        prepared = prepare_here(self.worker, call)
        if prepared.resources:
            return None
        request = claim_request(self.worker, call, prepared, self.attempt)
        # Whatever a human has a say in is looked at by the write's own claim.
        if request.gated or request.drift or request.if_foreign is not None:
            return None
        return Next(call, prepared, request)


T = TypeVar("T")

#: Seconds between tries to write something that must not be lost.
DATABASE_PAUSE: Final = 0.25


async def written(write: Callable[[], Awaitable[T]]) -> T:
    """Write what is in hand, however long the database cannot take it: it must not be lost.

    What is written must be the same when it is written twice: the answer to the first may be lost.
    """
    while True:
        try:
            return await write()
        except Exception as error:
            if not may_pass(error):
                raise
            log.warning("ledger.unavailable", error=str(error), holding="an outcome")
            await asyncio.sleep(DATABASE_PAUSE)


class EndsWith(Protocol):
    """What ends with a call's outcome, in the same transaction."""

    def end(self, tx: Transaction) -> None:
        """Record its end."""


@dataclass(frozen=True)
class Done:
    """The effect is recorded as committed."""

    entry: Entry
    receipt: Any
    replayed: bool


@dataclass(frozen=True)
class SaidNo:
    """The tool answered no."""

    reason: str
    code: str
    replayed: bool


@dataclass(frozen=True)
class WantsAnswer:
    """The tool asks a human before its effect."""

    asked: NeedsAnswer


@dataclass
class Recorder:
    """Writes what becomes of one attempt, and knows the ledger's clock as of then."""

    worker: WorkerContext
    tool: Tool
    request: ClaimRequest
    held: HeldResources = NO_RESOURCES
    answers: tuple[tuple[str, Any], ...] = ()
    head: ChainHead | None = field(default=None, init=False)
    """The run's chain after the newest of this attempt's transactions."""
    heard: ForeignContent | None = field(default=None, init=False)
    """What the run has got from outside by this attempt."""
    began: float = field(default=0.0, init=False)
    """When the newest transaction began, by ``clock.now()``."""
    _now_ms: int | None = field(default=None, init=False)
    """The same by the database's clock."""

    async def now_ms(self) -> int:
        """Return the database's clock as it was in the newest transaction, or is now."""
        if self._now_ms is None:
            ledger = self.worker.ledger
            self._now_ms = await ledger.transact(self.request.tenant, lambda tx: tx.now_ms)
        return self._now_ms

    def crash(self, point: CrashPoint) -> None:
        """Pass a crash point."""
        self.worker.crash.at(self.tool.name, self.request.step_id, point)

    async def in_ledger(self, work: Callable[[Transaction], T], turn: Turn = Turn.OTHER) -> T:
        """Do something in one transaction.

        Raises:
            LedgerUnavailable: The database is away; whether it has committed is unknown.
        """
        tenant = self.request.tenant
        result, tx = await self.worker.ledger.run_transaction(tenant, work, turn)
        self._note(tx)
        return result

    async def in_long_transaction(self, work: Callable[[LongTransaction], Awaitable[T]]) -> T:
        """Do something, and await what is done in between, in one transaction.

        Raises:
            LedgerUnavailable: The database is away; whether it has committed is unknown.
        """
        ledger, request = self.worker.ledger, self.request
        async with ledger.long_transaction(
            request.tenant, request.run_id, request.timeout
        ) as opened:
            result = await work(opened)
        self._note(opened.tx)
        return result

    def _note(self, tx: Transaction) -> None:
        self._now_ms, self.began = tx.now_ms, tx.began
        self.head = tx.heads.get(self.request.run_id, self.head)

    def mark_foreign(self, tx: Transaction) -> None:
        """Mark the run, in the transaction of what it hears, if that comes from outside."""
        if self.request.foreign and self.request.undoes is None:
            self.heard = self.request.content
            foreign_rows.mark(tx, self.request.run_id, [self.heard])

    def hear_lookup(self) -> None:
        """Take what the lookup has told for content from outside, if the tool says that it is."""
        if self.tool.lookup_foreign:
            self.request = replace(self.request, foreign=True)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Write what is in hand."""

        def marked(tx: Transaction) -> T:
            result = work(tx)
            self.held.mark(tx, self.request.run_id)
            return result

        return await written(lambda: self.in_ledger(marked, Turn.OUTCOME))

    async def commit(
        self,
        entry: Entry,
        receipt: Any,
        evidence: dict[str, Any] | None = None,
        ahead: Ahead | None = None,
        draft: EndsWith | None = None,
    ) -> Done:
        """Record that the effect happened; an attempt that is fenced leaves its receipt behind.

        With it, a batch's next write is claimed, where that is simple.
        """
        request = self.request
        kept = await self.worker.artifacts.keep(request.tenant, request.run_id, receipt)
        # That has the next tool's own code look at its params, with this outcome in hand. Where
        # only a human could settle this one, it is recorded first.
        following = None
        if ahead is not None and not self.held.leases and self.tool.recovery is not Recovery.HUMAN:
            following = ahead.find(kept.value)
        if following is not None:
            call = following.call
            self.worker.crash.at(call.tool.name, call.step_id, CrashPoint.BEFORE_CLAIM)

        def record(tx: Transaction) -> int | None:
            commit = outcomes.commit(tx, self.request, entry, kept, evidence=evidence)
            if commit is not None:
                self.mark_foreign(tx)
            if draft is not None and commit is not None:
                draft.end(tx)
            return commit

        try:
            if ahead is None or following is None:
                commit = await self.write(record)
            else:
                commit = await self._commit_and_claim(record, ahead, following)
        except Exception:
            # The ledger refuses this outcome for good.
            await self._keep_late(entry, receipt, kept)
            raise
        if commit is None:
            await self._keep_late(entry, receipt, kept)
            self.fenced()
        self.crash(CrashPoint.AFTER_OUTCOME)
        return Done(entry, kept.value, False)

    async def _keep_late(self, entry: Entry, receipt: Any, kept: Kept) -> None:
        """Keep a receipt that its entry will never show: whoever reconciles it can read it."""
        request, store, late = self.request, self.worker.artifacts, kept
        if kept.artifact is None:
            late = await store.keep_in_ledger(request.tenant, request.run_id, receipt)
        await self.write(lambda tx: outcomes.note_late_receipt(tx, entry, late))

    async def _commit_and_claim(
        self,
        record: Callable[[Transaction], int | None],
        ahead: Ahead,
        following: Next,
    ) -> int | None:
        """Record that the effect happened, and claim the write that follows."""

        def both(tx: Transaction) -> tuple[int | None, Claimed | None]:
            commit = record(tx)
            claimed = None
            if commit is not None:
                claimed = claims.claim_at_once(tx, following.request)
            return commit, claimed

        try:
            commit, claimed = await self.write(both)
        except Exception as error:
            # Whatever is wrong with the claim of the next write, this outcome must not be lost.
            log.warning("ahead.claim_failed", step_id=following.call.step_id, error=repr(error))
            return await self.write(record)
        # Also where it is not claimed: an answer that was lost may have said that it is.
        ahead.begun = Begun(following, claimed, self.began)
        return commit

    async def say_no(self, entry: Entry, answer: No) -> Entry:
        """Record that the tool answered no; returns the entry: it may be in doubt all the same."""

        def record(tx: Transaction) -> Entry | None:
            self.mark_foreign(tx)
            return outcomes.answer_no(tx, self.request, entry, answer.reason, answer.code)

        recorded = await self.write(record)
        if recorded is None:
            self.fenced()
        self.crash(CrashPoint.AFTER_OUTCOME)
        return recorded

    async def fail(self, entry: Entry, failure: Failure) -> tuple[Entry, timedelta | None]:
        """Record a call that has not applied the effect.

        Returns:
            The entry as it stands then, and the pause before the next call.
        """

        def record(tx: Transaction) -> tuple[Entry | None, timedelta | None]:
            class_, text = failure.failure_class.value, failure.message
            delay = self._next_try(entry, failure, tx.now_ms)
            if delay is None:  # its words reach the run
                self.mark_foreign(tx)
            return outcomes.fail(tx, self.request, entry, class_, text, delay=delay), delay

        recorded, delay = await self.write(record)
        if recorded is None:
            self.fenced()
        self.crash(CrashPoint.AFTER_OUTCOME)
        return recorded, delay

    def _next_try(self, entry: Entry, failure: Failure, now_ms: int) -> timedelta | None:
        """Return the pause before the call is tried again; ``None``: it is not."""
        retries = self.worker.retries
        delay = retries.delay(failure, entry.failures.get(failure.failure_class.value, 0))
        if delay is None or self.request.undoes is None or entry.first_call_ms is None:
            return delay
        limit = entry.first_call_ms + milliseconds(retries.compensation_limit)
        return delay if now_ms + milliseconds(delay) <= limit else None

    async def not_begun(self, entry: Entry, message: str, pause: timedelta) -> NoReturn:
        """Give up a claim under which nothing was called; that counts for no class of failures."""
        class_ = ErrorType.RESOURCE_BUSY.value
        await self.write(
            lambda tx: outcomes.fail(tx, self.request, entry, class_, message, delay=pause)
        )
        raise again(ErrorType.RESOURCE_BUSY, message, pause)

    async def wants_answer(self, entry: Entry, asked: NeedsAnswer) -> WantsAnswer:
        """Give up a claim whose tool asks a human: it has applied nothing yet."""
        text, at_once = f"asks: {asked.question}", timedelta(0)

        def record(tx: Transaction) -> Entry | None:
            self.mark_foreign(tx)
            return outcomes.fail(tx, self.request, entry, "asked", text, delay=at_once)

        recorded = await self.write(record)
        if recorded is None:
            self.fenced()
        self.crash(CrashPoint.AFTER_OUTCOME)
        return WantsAnswer(asked)

    async def leave_in_doubt(self, entry: Entry, message: str, *, reported: bool = False) -> Entry:
        """Record that the call ended without saying whether it happened; returns the entry."""
        left = await self.write(
            lambda tx: outcomes.leave_in_doubt(tx, self.request, entry, message, reported=reported)
        )
        if left is None:
            self.fenced()
        return left

    async def unsettled(self, entry: Entry, message: str, named: timedelta | None = None) -> Asked:
        """Leave the entry in doubt for a later attempt to settle; or ask, after too many.

        Args:
            message: What the attempt ended with.
            named: The pause that the outside system wants.
        """
        left = await self.leave_in_doubt(entry, message)
        earlier = entry.failures.get("in_doubt", 0)
        pauses, named = self.worker.retries.in_doubt, named or timedelta(0)
        too_long = named > self.request.recovery_limit
        if self.tool.recovery is Recovery.HUMAN or too_long or earlier >= len(pauses):
            return await self.ask(left, message)
        pause = max(pauses[earlier], named)
        raise again(ErrorType.IN_DOUBT, f"{self.tool.name}: {message}", pause)

    async def ask(self, entry: Entry, why: str, *, part: Kept | None = None) -> Asked:
        """Open an intervention: only a human can tell."""
        if entry.reported_failure is not None:
            why = f"{entry.reported_failure}; {why}"
        question = f"{self.tool.name} {entry.key}: {why}. Did it happen?"
        if self.tool.compensate is not None:
            question += f" Settled as undo, {self.tool.compensate.tool} takes it back."

        def record(tx: Transaction) -> str | None:
            foreign = self.request.foreign
            opened = outcomes.ask_human(tx, entry, question, part=part, foreign=foreign)
            if opened is not None and part is not None:
                self.mark_foreign(tx)
            return opened

        intervention_id = await self.write(record)
        if intervention_id is None:
            self.fenced()
        return Asked(entry, intervention_id, question)

    def fenced(self) -> NoReturn:
        """End an attempt whose entry has a newer fencing token."""
        message = f"{self.tool.name}: another attempt has taken this effect over"
        raise again(ErrorType.LEASE_HELD, message, timedelta(seconds=1))

    def context(self, entry: Entry) -> ToolContext:
        """Return what the tool may know about its call."""
        answers, key = None if self.request.undoes else Answers(self.answers), entry.provider_key
        attempt = self.request.attempt
        return tool_context(self.request, attempt, self.held, provider_key=key, answers=answers)
