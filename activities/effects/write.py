"""One write, from claim to outcome: intent, effect, outcome (guarantees G1, G2, G3).

``EffectCall`` is what ``execute_tools`` and ``compensate`` share. Its life: claim in one
transaction; call the tool with no transaction open, the lease renewed beside it; record the
outcome in another transaction, guarded by the fencing token. What it finds in doubt is settled: the
outside system is asked, or a human.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, assert_never

import structlog
from temporalio.exceptions import ApplicationError

from surehand.activities import own_policy
from surehand.activities.effects import recorder
from surehand.activities.effects.drafts import KeptDraft
from surehand.activities.effects.leases import DATABASE_PAUSE, KeptLease, keeping
from surehand.activities.effects.prepare import STILL_DOWN, is_healthy
from surehand.activities.ledger.core import store
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.effects import reconcile as reconcile_rows
from surehand.activities.ledger.halts import Halted
from surehand.activities.ledger.limits import PolicySilent
from surehand.activities.ledger.quotas import OverQuota
from surehand.activities.ledger.steps import entries
from surehand.activities.ledger.steps.acting import ActsElsewhere
from surehand.activities.ledger.steps.entries import ClaimResult, Entry
from surehand.activities.runs import as_newest, take_over_as_newest
from surehand.activities.tools.call_reports import NeedsAnswer, make_json
from surehand.activities.tools.failures import Failure, FailureClass, classify
from surehand.activities.tools.tool import Found, No, NotFound, Partial, ToolContext, Unknown
from surehand.activities.worker.context import again, stop
from surehand.activities.worker.crash_points import CrashPoint
from surehand.process import clock
from surehand.process.off_loop import call_off_loop
from surehand.workflows.canonical_json import digest
from surehand.workflows.names import ErrorType
from surehand.workflows.plain_text import clean_text

log = structlog.get_logger()

#: The attempt that lost the answer to its claim asks again before a later attempt has to guess.
_CLAIM_TRIES: Final = 3
#: How often an effect is looked for while "not found" proves nothing.
_LOOK_AGAIN: Final = timedelta(seconds=10)


class _GaveUp(Exception):
    """A transactional tool has not made its effect: its transaction is rolled back."""

    def __init__(self, why: No | Failure | NeedsAnswer) -> None:
        super().__init__()
        self.why = why


CallResult = (
    recorder.Done
    | recorder.SaidNo
    | recorder.WantsAnswer
    | entries.ApprovalRefused
    | entries.Asked
    | entries.Barred
    | entries.Drifted
    | entries.Forbidden
    | entries.OverLimit
    | OverQuota
    | Halted
)


def why_refused(answer: object) -> str | None:
    """Return why an undo is refused, by what its ``only_if`` says; ``None``: it may be called.

    Only ``True`` is a yes.
    """
    if answer is True:
        return None
    if isinstance(answer, str) and answer:
        return clean_text(answer, 2000)
    said = "no" if answer is False else type(answer).__name__
    return f"its only_if says {said}"


@dataclass
class EffectCall(recorder.EffectRecorder):
    """One attempt at one write."""

    only_if: Callable[[ToolContext], Awaitable[object]] | None = None
    """Of an undo: whether it may be called, asked right before each call."""
    refused: str | None = field(default=None, init=False)
    """Why it may not, or why nobody can tell."""

    async def run(self, next_write: recorder.NextWrite | None = None) -> CallResult:
        """Claim, call and record; or say what stands there already.

        A failure that is tried again is raised with its pause. ``next_write`` is the call, if it
        was prepared with the outcome of the write before.
        """
        place: AbstractAsyncContextManager[None] = nullcontext()
        if self.tool.transactional:
            # Before its claim: what waits here holds nothing, and lets others' work be done.
            place = self.worker.ledger.transactional.place(self.request.tenant)
        async with place:
            if next_write is not None and next_write.claimed is not None:
                self.began = next_write.began
                return await self.act_on(next_write.claimed)
            self.crash(CrashPoint.BEFORE_CLAIM)
            try:
                return await self.act_on(await self._claim())
            except PolicySilent as error:
                told = f"{self.tool.name}: {error}"
                raise again(ErrorType.DEPENDENCY_DOWN, told, own_policy.PAUSE) from error

    async def _claim(self) -> ClaimResult:
        if (asked := self.request.policy) is not None and self.worker.policy is not None:
            # Right before, for each claim: what it said of an earlier one is old.
            answer = await self.worker.policy.answer(asked.facts)
            self.request = replace(self.request, policy=replace(asked, answer=answer))
        tries = 1
        while True:
            try:
                return await self.in_ledger(lambda tx: claims.claim_effect(tx, self.request))
            except ActsElsewhere as found:
                await take_over_as_newest(self.worker.ledger, found)
            except store.LedgerUnavailable:
                if tries == _CLAIM_TRIES:
                    raise
                tries += 1
                await asyncio.sleep(DATABASE_PAUSE)

    async def act_on(self, result: ClaimResult) -> CallResult:
        """Go on from what a claim, or settling, has found."""
        match result:
            case entries.Claimed(entry):
                self.recovered = self.recovered or entry.recovering_ms is not None
                if entry.observed == entries.UNASKED or self.only_if is not None:
                    observed = await self._observe(entry)
                    if not isinstance(observed, Entry):
                        return observed
                    entry = observed
                self.crash(CrashPoint.AFTER_CLAIM)
                return await self._call(entry)
            case entries.Committed(entry):
                if entry.foreign_receipt:
                    self.heard = self.request.content
                # This step's earlier attempt may have found that out, and died before it told.
                self.recovered = self.recovered or self.request.attempt > 1
                return recorder.Done(entry, entry.receipt, True)
            case entries.Answered(entry) if entry.reported_failure is not None:
                raise stop(ErrorType.TOOL_FAILED, f"{self.tool.name}: {entry.reported_failure}")
            case entries.Answered(entry):
                return recorder.SaidNo(entry.answer["reason"], entry.answer["code"], True)
            case entries.Doubtful(entry):
                return await self.reconcile(entry)
            case entries.Held(wait=wait):
                message = f"{self.tool.name}: another attempt holds this effect"
                self.worker.metrics.lease_wait(self.tool.name, "held", wait)
                raise again(ErrorType.LEASE_HELD, message, wait + timedelta(milliseconds=50))
            case entries.Mismatch(reason):
                raise stop(ErrorType.PARAMS_MISMATCH, f"{self.tool.name}: {reason}")
            case (
                entries.ApprovalRefused()
                | entries.Asked()
                | entries.Barred()
                | entries.Drifted()
                | entries.Forbidden()
                | entries.OverLimit()
                | OverQuota()
                | Halted()
            ):
                return result
            case _:
                assert_never(result)

    async def _observe(self, entry: Entry) -> Entry | CallResult:
        """Look at the world right before the call: whether it may be made, and what was so before.

        Nothing is remembered of whether it may: an attempt that is cut off here has called nothing,
        and the next one asks again.
        """
        request, observed, self.refused = self.request, entry.observed, None
        by_state = observed == entries.UNASKED and self.tool.lookup_by == "state"
        if by_state:
            observed = await self._look_before(entry)
        elif observed is None or observed == entries.UNASKED:
            # None: it was claimed by a worker whose tool had no condition yet.
            observed = entries.ALLOWED
        if self.only_if is not None and (failure := await self._ask_only_if(entry)) is not None:
            self.refused = failure.message
            return await self._fail(entry, failure)
        kept = await self.in_ledger(lambda tx: claims.keep_observed(tx, request, entry, observed))
        if kept is None:
            self.end_as_fenced()
        if not by_state or observed["answer"] == "not_found" or entry.recovering_ms is None:
            return kept
        # Another attempt has died over this call: what is so now may be its work.
        why = "a crash left its outcome unknown, and its lookup does not say that it is still to do"
        return await self.ask_human(kept, why)

    async def _look_before(self, entry: Entry) -> dict[str, Any]:
        """Ask a lookup that goes by the state of the world, before the call; return its answer.

        If it is so already, the call is made all the same: that is what was decided. What was so
        before the call proves nothing after it.
        """
        tool = self.tool
        assert tool.lookup is not None, "only its tool says that it is to be asked"
        said, evidence = "unknown", None
        try:
            look = partial(tool.lookup, self.params, self.context(entry.provider_key))
            looking = self.watch_call(f"the lookup of {tool.name}", self.began, look)
            async with self._keep_lease(entry) as kept:
                answer: object = await self.limit_call(looking, self.began, [kept])
        except Exception as error:
            log.info("effect.not_observed", entry_id=entry.entry_id, error=classify(error).message)
        else:
            said = {Found: "found", NotFound: "not_found"}.get(type(answer), "unknown")
            evidence = await call_off_loop(digest, await make_json(answer))
        return {"answer": said, "evidence": evidence}

    async def _ask_only_if(self, entry: Entry) -> Failure | None:
        """Return why an undo may not be called now, or cannot be known to be; ``None``: it may."""
        assert self.only_if is not None
        since, ask = clock.now(), partial(self.only_if, self.context(entry.provider_key))
        asking = self.watch_call(f"the only_if of {self.tool.name}", since, ask)
        try:
            async with self._keep_lease(entry) as kept:
                refused = why_refused(await self.limit_call(asking, since, [kept]))
        except Exception as error:
            failure = classify(error)
            in_doubt = failure.failure_class is FailureClass.IN_DOUBT
            # Nothing was called, so it is simply asked again.
            class_ = FailureClass.TRANSIENT if in_doubt else failure.failure_class
            return Failure(class_, f"its only_if failed: {failure.message}", failure.retry_after)
        return None if refused is None else Failure(FailureClass.PERMANENT, refused)

    async def _call(self, entry: Entry) -> CallResult:
        """Call the tool under the claim, and record what becomes of it."""
        request = self.request
        if clock.now() >= self.began + request.lease.total_seconds():
            # A slow claim, or frozen since: find it again with a fresh lease, or lose it.
            return await self.act_on(await self._claim())
        if FailureClass.DEPENDENCY_DOWN in entry.failures and not await is_healthy(
            self.worker.watchdog, self.tool
        ):
            return await self._fail(entry, STILL_DOWN)
        if (lost := self.held.lost()) is not None:
            await self.give_back(entry, f"{self.tool.name}: not called: a resource: {lost}")
        if self.tool.transactional:
            return await self._call_in_ledger(entry)
        draft = None
        if request.undoes is None:
            still_ours = partial(outcomes.still_ours, entry=entry)
            draft = KeptDraft(self.worker, request, still_ours, only_reads=False)
        since, context = self.began, self.context(entry.provider_key, draft)

        async def call() -> Any:
            if draft is not None:
                await draft.open()
            return await self.call_tool(context, since)

        # Until its outcome is recorded, too: before that, a large receipt is kept elsewhere.
        async with self._keep_lease(entry) as kept:
            try:
                answer = await self.limit_call(call(), since, [kept])
            except NeedsAnswer as asked:
                return await self.record_question(entry, asked)
            except Exception as error:
                self.crash(CrashPoint.AFTER_CALL)
                return await self._fail(entry, self.classify(error))
            self.crash(CrashPoint.AFTER_CALL)
            if isinstance(answer, No):
                return await self._answer_no(entry, answer.cleaned())
            end_draft = draft.end if draft is not None and draft.is_written else None
            return await self.commit(entry, await make_json(answer), end_draft=end_draft)

    def _keep_lease(self, entry: Entry) -> AbstractAsyncContextManager[KeptLease]:
        """Renew the entry's lease for as long as the block lasts."""
        request = self.request

        def renew(tx: store.Transaction) -> float | None:
            return tx.began if outcomes.renew_lease(tx, entry) else None

        async def renew_lease() -> float | None:
            # Not `in_ledger`: what that notes is what the attempt itself does.
            began, _ = await self.worker.ledger.run_transaction(
                request.tenant, renew, store.Turn.RENEWAL, request.lease / 2
            )
            return began

        every = self.worker.renew_every
        return keeping(renew_lease, lease=request.lease, every=every, since=self.began)

    async def _call_in_ledger(self, entry: Entry) -> CallResult:
        """Call a transactional tool: its effect and its outcome commit together, or not at all."""
        request, ledger = self.request, self.worker.ledger
        try:
            async with ledger.long_transaction(
                request.tenant, request.run_id, request.timeout
            ) as opened:
                receipt = await self._work(entry, opened)
            self.note_transaction(opened.tx)
        except _GaveUp as ended:
            if isinstance(ended.why, No):
                return await self._answer_no(entry, ended.why)
            if isinstance(ended.why, NeedsAnswer):
                return await self.record_question(entry, ended.why)
            return await self._fail(entry, ended.why)
        except store.LedgerUnavailable:
            # Whether it committed, the entry says.
            return await self.act_on(await self._claim())
        except ApplicationError:
            raise
        except Exception as error:
            # The database refuses what the tool has written (a deferred constraint), or goes on
            # with nothing after an error that the tool has swallowed: all of it is rolled back.
            failure = Failure(FailureClass.TRANSIENT, classify(error).message)
            return await self._fail(entry, failure)
        self.crash(CrashPoint.AFTER_OUTCOME)
        return recorder.Done(entry, receipt, False)

    async def _work(self, entry: Entry, transaction: store.LongTransaction) -> Any:
        if not await transaction.do(outcomes.still_ours, entry):
            self.end_as_fenced()
        context = replace(self.context(entry.provider_key), session=store.Session(transaction))
        try:
            async with asyncio.timeout(self.request.timeout.total_seconds()):
                answer = await self.call_tool(context, clock.now())
        except NeedsAnswer as asked:
            raise _GaveUp(asked) from asked
        except (Exception, asyncio.CancelledError) as error:
            self.crash(CrashPoint.AFTER_CALL)
            failure = self.classify(error)
            if failure.failure_class is FailureClass.IN_DOUBT:
                # Whatever it was: what the tool has written goes with the transaction.
                failure = Failure(FailureClass.TRANSIENT, failure.message)
            raise _GaveUp(failure) from error
        self.crash(CrashPoint.AFTER_CALL)
        if isinstance(answer, No):
            raise _GaveUp(answer.cleaned())
        whose = (self.request.tenant, self.request.run_id)
        kept = await self.worker.artifacts.keep(*whose, await make_json(answer))
        commit = await transaction.do(outcomes.commit_effect, self.request, entry, kept)
        await transaction.do(self.mark_foreign)
        await transaction.do(self.held.mark, self.request.run_id)
        assert commit is not None, "the entry's row is locked by this transaction"
        return kept.value

    async def _answer_no(self, entry: Entry, answer: No) -> CallResult:
        recorded = await self.record_no(entry, answer)
        if recorded.state == "in_doubt":
            return await self._end_repeats(recorded, f"was answered no: {answer.reason}")
        return recorder.SaidNo(answer.reason, answer.code, False)

    async def _end_repeats(self, doubtful: Entry, ended: str) -> CallResult:
        """Settle an entry whose repeat proves nothing of the call before it."""
        if self.tool.lookup is not None:
            return await self.reconcile(doubtful)
        why = f"an earlier call was never answered, and calling again {ended}"
        return await self.ask_human(doubtful, why)

    async def _fail(self, entry: Entry, failure: Failure) -> CallResult:
        message = f"{self.tool.name}: {failure.message}"
        if failure.failure_class is FailureClass.IN_DOUBT:
            said, reported = failure.message, failure.reported
            if self.tool.lookup is not None and (reported or self.is_last(entry)):
                left = await self.leave_in_doubt(entry, said, reported=reported)
                last = None if reported else f"the last call ended with: {said}"
                return await self.reconcile(left, last=last)
            return await self.settle_later(entry, said)
        failed, delay = await self.record_failure(entry, failure)
        if delay is None and failed.state == "in_doubt":
            return await self._end_repeats(failed, f"ended with: {message}")
        self.crash(CrashPoint.BEFORE_REPORT)
        if delay is None:
            raise stop(failure.final_type, message)
        raise again(failure.failure_class.error_type, message, delay)

    async def reconcile(
        self, entry: Entry, *, forward: bool = True, last: str | None = None
    ) -> CallResult:
        """Settle an entry that is in doubt under our fencing token.

        ``forward``: the tool may be called if the effect is proven not to have happened; a run that
        is being undone only records that. ``last``: how the last call that is made ended; unless
        its effect is found now, a human is asked.
        """
        self.recovered = True
        tool, request = self.tool, self.request
        never_in_doubt = tool.transactional and entry.tool_version == tool.version
        if never_in_doubt and not forward:
            # However late: without an outcome nothing has happened.
            return await self._act_on_absence(entry, "transactional", clock.now(), forward)
        if entry.observed == entries.UNASKED:
            # A lookup by state is asked, and its answer recorded, before anything is called.
            return await self._act_on_absence(entry, "not_called", clock.now(), forward)
        # By the database's clock, as it was in the newest transaction; only if that says so, the
        # ledger is asked how long calls were halted.
        now_ms, limit = self.began_ms, request.recovery_limit
        if now_ms is None:
            now_ms = await self.in_ledger(lambda tx: tx.now_ms)
        if entry.recovers_too_long(limit, now_ms) and await self.in_ledger(
            lambda tx: outcomes.recovers_too_long(tx, entry, limit)
        ):
            seconds = limit.total_seconds()
            return await self.ask_human(entry, f"its recovery has taken longer than {seconds:g} s")
        if never_in_doubt:
            return await self._act_on_absence(entry, "transactional", clock.now(), forward)
        if tool.lookup is None:
            return await self.ask_human(entry, entry.unknown_because)
        if tool.lookup_by == "state" and entry.observed_answer != "not_found":
            return await self.ask_human(entry, _why_unproven(entry))
        looked, what = clock.now(), f"the lookup of {tool.name} of run {request.run_id}"
        try:
            async with self.worker.watchdog.watched(what, request.timeout):
                context = self.context(entry.provider_key)
                answer: object = await tool.lookup(self.params, context)
        except (Exception, asyncio.CancelledError) as error:
            failure = classify(error)
            why = f"lookup failed: {failure.message}"
            return await self.settle_later(entry, why, failure.retry_after)
        log.info("effect.looked_up", entry_id=entry.entry_id, answer=type(answer).__name__)
        if isinstance(answer, Found | Partial | No) and tool.lookup_foreign:
            self.request = request = replace(request, foreign=True)
        match answer:
            case Found(receipt):
                evidence: dict[str, Any] = {"rule": "lookup", "answer": "found"}
                if tool.lookup_by == "state":
                    evidence["before"] = entry.observed
                return await self.commit(entry, await make_json(receipt), evidence)
            case NotFound() if last is not None or entry.settle_ms is None:
                why = last or "the call was made without a settle time"
                return await self.ask_human(entry, f"the lookup found nothing, and {why}")
            case NotFound():
                return await self._act_on_absence(entry, "lookup_not_found", looked, forward)
            case No():
                said = answer.cleaned()
                await self.record_no(entry, said)
                return recorder.SaidNo(said.reason, said.code, False)
            case Partial(details, receipt):
                whose = (request.tenant, request.run_id)
                part = await self.worker.artifacts.keep(*whose, await make_json(receipt))
                why = clean_text(f"it happened in part: {details}")
                return await self.ask_human(entry, why, part=part)
            case Unknown(reason):
                why = clean_text(f"the lookup cannot tell: {reason}")
                return await self.ask_human(entry, why)
        # User code may return anything at all; then it says nothing.
        return await self.settle_later(entry, f"lookup answered {type(answer).__name__}")

    async def _act_on_absence(
        self, entry: Entry, rule: reconcile_rows.Proof, looked: float, forward: bool
    ) -> CallResult:
        """Go on with an effect that is proven not to have happened when it was looked for."""
        request, name = self.request, self.tool.name
        mine = entry.owned_by(request.run_id, request.step_id)
        # What another run was told, is not this one's end: it makes the call.
        failed = entry.reported_failure if forward and mine else None

        def go_on(tx: store.Transaction) -> ClaimResult:
            # What was not there when it was looked for may have come since.
            result = reconcile_rows.after_not_found(
                tx,
                request,
                entry,
                forward=forward and failed is None,
                rule=rule,
                looked=timedelta(seconds=clock.now() - looked),
                action="bar" if failed is None else "fail",
            )
            if failed is not None and isinstance(result, entries.Barred):
                self.mark_foreign(tx)
            return result

        result = await as_newest(self.worker.ledger, lambda: self.in_ledger(go_on))
        if isinstance(result, entries.Held) and result.settling:
            self.worker.metrics.lease_wait(name, "settling", result.wait)
            message = f"{name}: not found, but the first call may still arrive"
            # Until then it may be found as well.
            raise again(ErrorType.SETTLING, message, min(result.wait, _LOOK_AGAIN))
        if failed is not None and isinstance(result, entries.Barred):
            self.crash(CrashPoint.AFTER_OUTCOME)
            raise stop(ErrorType.TOOL_FAILED, f"{name}: {failed}")
        return await self.act_on(result)


def _why_unproven(entry: Entry) -> str:
    """Return why the state of the world, as it is now, tells nothing of the call."""
    if entry.observed_answer == "found":
        return f"{entry.unknown_because}, and its lookup was true before the call"
    if entry.observed_answer == entries.FORGOTTEN:
        return f"{entry.unknown_because}, and what its lookup said before the call"
    return f"{entry.unknown_because}, and its lookup could not tell before the call"
