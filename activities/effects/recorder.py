"""What one attempt at a call records: fenced by its token, and never lost while in hand.

A batch claims its next write in the transaction that records the outcome before it, if nothing is
in the way: whatever else there is, the write's own claim finds out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

import structlog
from pydantic import BaseModel
from temporalio import activity

from surehand.activities.effects import prepare
from surehand.activities.effects.leases import (
    DATABASE_PAUSE,
    NO_RESOURCES,
    HeldResources,
    KeptLease,
    call_within,
)
from surehand.activities.ledger.core.engine import may_pass
from surehand.activities.ledger.core.store import Transaction, Turn
from surehand.activities.ledger.effects import claims, interventions, outcomes
from surehand.activities.ledger.halts import stood_still
from surehand.activities.ledger.steps import foreign as foreign_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Asked,
    Claimed,
    ClaimRequest,
    Entry,
    milliseconds,
)
from surehand.activities.tools.call_reports import Answers, Draft, NeedsAnswer
from surehand.activities.tools.failures import Failure, classify_call
from surehand.activities.tools.tool import No, Tool, ToolContext
from surehand.activities.worker.context import Attempt, WorkerContext, again
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.watchdog import grace
from surehand.workflows.contracts.base import ChainHead, ForeignContent
from surehand.workflows.contracts.tools import Batch, Effect, Recovery, ToolCall
from surehand.workflows.names import PAUSES, ErrorType
from surehand.workflows.plan.references import ReferenceUnresolved
from surehand.workflows.run.step_rules import resolve_inline

log = structlog.get_logger()
T = TypeVar("T")


async def write_surely(write: Callable[[], Awaitable[T]]) -> T:
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
    """One attempt at a call: how its tool is called, and how the ledger hears of it."""

    worker: WorkerContext
    tool: Tool
    params: BaseModel
    request: ClaimRequest
    """What the call is bound to, and a write's claim asks for."""
    held: HeldResources = NO_RESOURCES
    answers: tuple[tuple[str, Any], ...] = ()
    head: ChainHead | None = field(default=None, init=False)
    """The run's chain after the newest of this attempt's transactions."""
    heard: ForeignContent | None = field(default=None, init=False)
    """What the run has got from outside by this attempt."""
    began: float = field(default=0.0, init=False)
    """When the newest transaction began, by ``clock.now()``."""
    began_ms: int | None = field(default=None, init=False)
    """The same by the database's clock."""
    recovered: bool = field(default=False, init=False)
    """Whether an earlier attempt has left no outcome, and this one has found out more."""

    def crash(self, point: CrashPoint) -> None:
        self.worker.crash.at(self.tool.name, self.request.step_id, point)

    async def in_ledger(self, work: Callable[[Transaction], T], turn: Turn = Turn.OTHER) -> T:
        result, tx = await self.worker.ledger.run_transaction(self.request.tenant, work, turn)
        self.note_transaction(tx)
        return result

    def note_transaction(self, tx: Transaction) -> None:
        """Keep the clock and the run's head of a transaction that has ended."""
        self.began_ms, self.began = tx.now_ms, tx.began
        self.head = tx.heads.get(self.request.run_id, self.head)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Write what is in hand, and which resources were lost before it was written."""

        def write(tx: Transaction) -> T:
            result = work(tx)
            self.held.mark(tx, self.request.run_id)
            return result

        return await write_surely(lambda: self.in_ledger(write, Turn.OUTCOME))

    def mark_foreign(self, tx: Transaction) -> None:
        """Mark the run, in the transaction of what it hears, if that comes from outside."""
        if self.request.foreign and self.request.undoes is None:
            self.heard = self.request.content
            foreign_rows.mark_foreign(tx, self.request.run_id, [self.heard])

    def context(self, key: str = "", draft: Draft | None = None) -> ToolContext:
        """Return what the tool may know about its call."""
        answers = None if self.request.undoes else Answers(self.answers)
        tokens = self.held.fencing_tokens()
        return prepare.tool_context(self.request, tokens, key=key, answers=answers, draft=draft)

    async def call_tool(self, context: ToolContext, since: float) -> Any:
        """Call the tool, watched, at a place where a drill may kill its worker."""
        with self.worker.crash.during(self.tool.name, self.request.step_id):
            call = partial(self.tool.fn, self.params, context)
            return await self.watch_call(self.tool.name, since, call)

    async def watch_call(self, what: str, since: float, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call that must end soon after its deadline, which counts from ``since``."""
        # Inside the call's own task: one that ignores its cancellation stays watched.
        must_end = self.request.timeout + grace(self.tool.settle)
        deadline = partial(self.held.must_end, since + must_end.total_seconds())
        with self.worker.watchdog.watching(f"{what} of run {self.request.run_id}", deadline):
            return await call()

    async def limit_call(
        self, call: Awaitable[T], since: float, leases: Sequence[KeptLease] = ()
    ) -> T:
        """Await a call within its deadline, for as long as its leases are kept."""
        resources = self.held.kept
        return await call_within(
            call,
            (*leases, *resources),
            timeout=self.request.timeout,
            since=since,
            # While it still runs, its resources are not given to others, and what a read spends is
            # counted.
            stopped_within=None if resources or self.tool.effect is Effect.READ else 1.0,
        )

    def classify(self, error: BaseException) -> Failure:
        """Return the class of what the call raised."""
        tool = self.tool
        return classify_call(error, tool.name, tool.fn.__module__, tool.errors)


@dataclass(frozen=True)
class NextWrite:
    """A batch's next write. It is prepared once, or its params might change."""

    call: ToolCall
    prepared: prepare.PreparedCall
    request: ClaimRequest
    claimed: Claimed | None = None
    """``None``: it has yet to be claimed, or nobody has heard whether it is."""
    began: float = 0.0
    """When the transaction of the claim began, by ``clock.now()``."""


@dataclass
class Ahead:
    """What a batch does after the call that is under way."""

    worker: WorkerContext
    attempt: Attempt
    """The next step's."""
    batch: Batch
    number: int
    """The place of the next step among those that follow the first."""
    facts: dict[str, Any]
    """Outputs of the steps before, by step."""
    next: NextWrite | None = field(default=None, init=False)

    def make_call(self, facts: dict[str, Any]) -> ToolCall | None:
        """Return the next step's call, made of what the ones before have returned.

        ``None``: there is none, or it refers to what is not there. The run says so itself.
        """
        if self.number >= len(self.batch.following):
            return None
        step, first = self.batch.following[self.number], self.batch.first
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
            tool=self.batch.tools[step.tool],
            params=params,
            late=late,
            attempts_before=step.attempts_before,
        )

    def prepare_next(self, step_id: str, output: Any) -> NextWrite | None:
        """Return what to claim together with the outcome of a write, if it can be.

        Never raises: an outcome is in hand. What is wrong with the next call, it says itself.
        """
        if activity.is_cancelled() or self.batch.follows is not None:
            return None
        try:
            call = self.make_call({**self.facts, step_id: output})
            tool = self.worker.toolbox.get(call.tool.name) if call is not None else None
            if call is None or tool is None or call.late or call.params_hash is not None:
                return None
            # One that is transactional waits for a place: a claim would be held meanwhile.
            if tool.effect is Effect.READ or tool.transactional:
                return None
            # A worker that dies with the claim leaves the call in doubt, though nobody has made
            # it. No human is to be asked for that.
            if not tool.recovery.proves_absence(tool.settle):
                return None
            prepared = prepare.prepare_here(self.worker, call)
            if prepared.resources:
                return None
            request = prepare.claim_request(self.worker, call, prepared, self.attempt)
        except Exception as error:
            log.debug("ahead.not_claimed", reason=repr(error))
            return None
        # Whatever a human has a say in is looked at by the write's own claim.
        # So is what counts for a limit, or is asked a policy about.
        asks = request.gated or request.drift or request.if_foreign is not None or request.uses
        return None if asks or request.policy is not None else NextWrite(call, prepared, request)


@dataclass
class EffectRecorder(Recorder):
    """Records what becomes of one attempt at a write."""

    ahead: Ahead | None = None
    """What a batch does after this write."""

    async def record(self, work: Callable[[Transaction], T | None]) -> T:
        """Write what is in hand, and end the attempt if its entry has a newer fencing token."""
        recorded = await self.write(work)
        if recorded is None:
            self.end_as_fenced()
        return recorded

    def end_as_fenced(self) -> NoReturn:
        """End an attempt whose entry has a newer fencing token."""
        message = f"{self.tool.name}: another attempt has taken this effect over"
        raise again(ErrorType.LEASE_HELD, message)

    async def commit(
        self,
        entry: Entry,
        receipt: Any,
        evidence: dict[str, Any] | None = None,
        end_draft: Callable[[Transaction], None] | None = None,
    ) -> Done:
        """Record that the effect happened; an attempt that is fenced leaves its receipt behind.

        With the outcome of a call, a batch's next write is claimed, if that is simple. ``evidence``
        is what a lookup has said; ``None``: the call has returned. ``end_draft`` ends what it has
        written part by part.
        """
        request, store = self.request, self.worker.artifacts
        ahead = self.ahead if evidence is None else None
        kept = await store.keep(request.tenant, request.run_id, receipt)
        # That has the next tool's own code look at its params, with this outcome in hand. If only
        # a human could settle this one, it is recorded first.
        following = None
        if ahead is not None and not self.held.leases and self.tool.recovery is not Recovery.HUMAN:
            following = ahead.prepare_next(request.step_id, kept.value)

        def record(tx: Transaction) -> int | None:
            commit = outcomes.commit_effect(tx, self.request, entry, kept, evidence=evidence)
            if commit is not None:
                self.mark_foreign(tx)
                if end_draft is not None:
                    end_draft(tx)
            return commit

        try:
            if ahead is None or following is None:
                commit = await self.write(record)
            else:
                commit = await self._commit_and_claim(record, ahead, following)
        except Exception:
            # The ledger refuses this outcome, and will not take it later.
            await self._keep_late(entry, receipt, kept)
            raise
        if commit is None:
            await self._keep_late(entry, receipt, kept)
            self.end_as_fenced()
        self.crash(CrashPoint.AFTER_OUTCOME)
        return Done(entry, kept.value, False)

    async def _keep_late(self, entry: Entry, receipt: Any, kept: Kept) -> None:
        """Keep a receipt that its entry will never show: whoever reconciles it can read it."""
        request, late = self.request, kept
        if kept.artifact is None:
            store = self.worker.artifacts
            late = await store.keep_in_ledger(request.tenant, request.run_id, receipt)
        await self.write(lambda tx: outcomes.note_late_receipt(tx, entry, late))

    async def _commit_and_claim(
        self, record: Callable[[Transaction], int | None], ahead: Ahead, following: NextWrite
    ) -> int | None:
        call = following.call
        self.worker.crash.at(call.tool.name, call.step_id, CrashPoint.BEFORE_CLAIM)

        def commit_and_claim(tx: Transaction) -> tuple[int | None, Claimed | None]:
            commit = record(tx)
            if commit is None:
                return None, None
            return commit, claims.claim_at_once(tx, following.request)

        try:
            commit, claimed = await self.write(commit_and_claim)
        except Exception as error:
            # Whatever is wrong with the claim of the next write, this outcome must not be lost.
            log.warning("ahead.claim_failed", step_id=call.step_id, error=repr(error))
            return await self.write(record)
        # Also if it is not claimed: an answer that was lost may have said that it is.
        ahead.next = replace(following, claimed=claimed, began=self.began)
        return commit

    async def record_no(self, entry: Entry, answer: No) -> Entry:
        """Record that the tool answered no; returns the entry: it may be in doubt all the same."""

        def record(tx: Transaction) -> Entry | None:
            self.mark_foreign(tx)
            return outcomes.record_no(tx, self.request, entry, answer.reason, answer.code)

        recorded = await self.record(record)
        self.crash(CrashPoint.AFTER_OUTCOME)
        return recorded

    async def record_failure(
        self, entry: Entry, failure: Failure
    ) -> tuple[Entry, timedelta | None]:
        """Record a call that has not applied the effect; return the pause before the next, too."""
        retries, class_ = self.worker.retries, failure.failure_class.value
        delay: timedelta | None = None

        def record(tx: Transaction) -> Entry | None:
            nonlocal delay
            delay = retries.delay(failure, entry.failures.get(class_, 0))
            if delay is not None and self.request.undoes and entry.first_call_ms is not None:
                # Who has said that it is to be tried again has it retried as long as at first.
                asked = interventions.last_answer_ms(tx, entry.entry_id, self.request.undoes)
                since_ms = max(entry.first_call_ms, asked)
                limit = since_ms + milliseconds(retries.compensation_limit)
                late_ms = tx.now_ms + milliseconds(delay) - limit
                whose = (entry.tool, entry.run_id, since_ms)
                if late_ms > 0 and late_ms > stood_still(tx, *whose, undoes=True):
                    delay = None
            if delay is None:  # its words reach the run
                self.mark_foreign(tx)
            return outcomes.record_failure(
                tx, self.request, entry, class_, failure.message, delay=delay
            )

        recorded = await self.record(record)
        self.crash(CrashPoint.AFTER_OUTCOME)
        return recorded, delay

    async def give_back(self, entry: Entry, message: str) -> NoReturn:
        """Give up a claim under which nothing was called; that counts for no class of failures."""
        type_, pause = ErrorType.RESOURCE_BUSY, PAUSES[ErrorType.RESOURCE_BUSY]
        await self.write(
            lambda tx: outcomes.record_failure(
                tx, self.request, entry, type_.value, message, delay=pause
            )
        )
        raise again(type_, message)

    async def record_question(self, entry: Entry, asked: NeedsAnswer) -> WantsAnswer:
        """Give up a claim whose tool asks a human: it has applied nothing yet."""
        text, at_once = f"asks: {asked.question}", timedelta(0)

        def record(tx: Transaction) -> Entry | None:
            self.mark_foreign(tx)
            return outcomes.record_failure(tx, self.request, entry, "asked", text, delay=at_once)

        await self.record(record)
        self.crash(CrashPoint.AFTER_OUTCOME)
        return WantsAnswer(asked)

    async def leave_in_doubt(self, entry: Entry, message: str, *, reported: bool = False) -> Entry:
        """Record that the call ended without saying whether it happened; returns the entry."""
        request = self.request
        return await self.record(
            lambda tx: outcomes.leave_in_doubt(tx, request, entry, message, reported=reported)
        )

    def is_last(self, entry: Entry) -> bool:
        """Return whether no later attempt is to settle the entry, should it stay in doubt now."""
        by_human = self.tool.recovery is Recovery.HUMAN
        return by_human or entry.failures.get("in_doubt", 0) >= len(self.worker.retries.in_doubt)

    async def settle_later(
        self, entry: Entry, message: str, named: timedelta | None = None
    ) -> Asked:
        """Leave the entry in doubt for a later attempt to settle; or ask, after too many.

        ``named`` is the pause that the outside system wants.
        """
        left = await self.leave_in_doubt(entry, message)
        named = named or timedelta(0)
        if self.is_last(entry) or named > self.request.recovery_limit:
            return await self.ask_human(left, message)
        pause = max(self.worker.retries.in_doubt[entry.failures.get("in_doubt", 0)], named)
        raise again(ErrorType.IN_DOUBT, f"{self.tool.name}: {message}", pause)

    async def ask_human(self, entry: Entry, why: str, *, part: Kept | None = None) -> Asked:
        """Open an intervention: only a human can tell."""
        if entry.reported_failure is not None:
            why = f"{entry.reported_failure}; {why}"
        question = f"{self.tool.name} {entry.key}: {why.rstrip('.')}. Did it happen?"
        if self.tool.compensate is not None:
            question += f" If so, {self.tool.compensate.tool} can undo it."

        def record(tx: Transaction) -> str | None:
            foreign = self.request.foreign
            opened = outcomes.ask_human(tx, entry, question, part=part, foreign=foreign)
            if opened is not None and part is not None:
                self.mark_foreign(tx)
            return opened

        return Asked(entry, await self.record(record), question)
