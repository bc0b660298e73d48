"""One write, from claim to outcome: intent, effect, outcome (guarantees G1, G2, G3).

``EffectCall`` is what ``execute_tools`` and ``compensate`` share. Its life: claim in one
transaction; call the tool with no transaction open, the lease renewed beside it; record the
outcome in another transaction, guarded by the fencing token. What it finds in doubt is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar, assert_never

import structlog
from pydantic import BaseModel, ValidationError
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.drafts import KeptDraft, Writer
from surehand.activities.effects.leases import (
    BUSY_PAUSE,
    NO_RESOURCES,
    HeldResources,
    KeptLease,
    call_within,
    keeping,
)
from surehand.activities.effects.prepare import STILL_DOWN, bare_request, is_healthy
from surehand.activities.effects.reconcile import Settling
from surehand.activities.effects.recorder import (
    DATABASE_PAUSE,
    Ahead,
    Begun,
    Done,
    Recorder,
    SaidNo,
    WantsAnswer,
)
from surehand.activities.ledger.core.store import (
    LedgerUnavailable,
    LongTransaction,
    Session,
    Transaction,
    Turn,
)
from surehand.activities.ledger.effects import claim_entry, claims, outcomes
from surehand.activities.ledger.quotas import OverQuota
from surehand.activities.ledger.steps.acting import ActsElsewhere
from surehand.activities.ledger.steps.entries import (
    UNASKED,
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
    Forbidden,
    Held,
    Mismatch,
)
from surehand.activities.runs import take_over_as_newest
from surehand.activities.tools.call_reports import NeedsAnswer
from surehand.activities.tools.classify import classify, classify_call
from surehand.activities.tools.failures import Failure, FailureClass
from surehand.activities.tools.output_json import make_json
from surehand.activities.tools.tool import Found, No, NotFound, Tool, ToolContext, explain
from surehand.activities.worker.attempt import Attempt, again, stop
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.watchdog import grace
from surehand.process import clock
from surehand.process.off_loop import call_off_loop
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import ChainHead, ForeignContent
from surehand.workflows.names import ErrorType

log = structlog.get_logger()
T = TypeVar("T")

#: The attempt that lost the answer to its claim asks again before a later attempt has to guess.
_CLAIM_TRIES: Final = 3


class _GaveUp(Exception):
    """A transactional tool has not made its effect: its transaction is rolled back."""

    def __init__(self, why: No | Failure | NeedsAnswer) -> None:
        super().__init__()
        self.why = why


CallResult = (
    Done | SaidNo | WantsAnswer | ApprovalRefused | Asked | Barred | Drifted | Forbidden | OverQuota
)


class CannotSettle(Exception):
    """The outside system cannot be asked about an entry; the message says why."""


async def settle(
    worker: WorkerContext, entry: Entry, attempt: Attempt, user: str
) -> tuple[CallResult, ChainHead | None]:
    """Find out whether an effect in doubt happened, without ever calling it forward.

    Args:
        worker: Its ledger and its tools.
        entry: The effect, under our fencing token.

    Raises:
        CannotSettle: Its tool is not there, or takes other params now.
        ApplicationError: It cannot be known yet.
    """
    tool = worker.toolbox.get(entry.tool)
    if tool is None:
        raise CannotSettle(f"tool {entry.tool!r} is not loaded any more")
    try:
        params = tool.validate(entry.params)
    except Exception as error:  # a validator of the user's own may raise anything
        why = explain(error) if isinstance(error, ValidationError) else repr(error)
        raise CannotSettle(f"its params do not fit the tool now: {why}") from error
    request = await worker.ledger.with_keys(
        lambda: bare_request(worker, entry, tool, entry.params, attempt, key=entry.key, user=user),
        entry.params,
    )
    effect = EffectCall(worker, tool, params, replace(request, undoes=entry.undoes))
    return await effect.reconcile(entry, forward=False), effect.head


@dataclass
class EffectCall:
    """One attempt at one write."""

    worker: WorkerContext
    tool: Tool
    params: BaseModel
    request: ClaimRequest
    held: HeldResources = NO_RESOURCES
    answers: tuple[tuple[str, Any], ...] = ()
    ahead: Ahead | None = None
    """What a batch does after this write."""
    recovered: bool = field(default=False, init=False)
    """Whether an earlier attempt has left no outcome, and this one has found out more."""

    def __post_init__(self) -> None:
        """Make what records this attempt."""
        self._recorder = Recorder(self.worker, self.tool, self.request, self.held, self.answers)

    @property
    def head(self) -> ChainHead | None:
        """The run's chain after the newest of this attempt's transactions."""
        return self._recorder.head

    @property
    def heard(self) -> ForeignContent | None:
        """What the run has got from outside by this attempt."""
        return self._recorder.heard

    def before_report(self) -> None:
        """Pass the last crash point: recorded, and Temporal has not heard of it."""
        self._recorder.crash(CrashPoint.BEFORE_REPORT)

    async def run(self, begun: Begun | None = None) -> CallResult:
        """Claim, call and record; or say what stands there already.

        Args:
            begun: The claim, if it was made with the outcome of the write before.

        Raises:
            ApplicationError: Typed as in ``workflows/names.py``; retryable ones carry their delay.
        """
        place: AbstractAsyncContextManager[None] = nullcontext()
        if self.tool.transactional:
            # Before its claim: what waits here holds nothing, and lets others' work be done.
            place = self.worker.ledger.transactional.place(self.request.tenant)
        async with place:
            if begun is not None and begun.claimed is not None:
                self._recorder.began = begun.began
                return await self._go_on(begun.claimed)
            self._recorder.crash(CrashPoint.BEFORE_CLAIM)
            return await self._go_on(await self._claim())

    async def reconcile(self, entry: Entry, *, forward: bool = True) -> CallResult:
        """Settle an entry that is in doubt under our fencing token.

        Args:
            entry: The entry in doubt.
            forward: Whether the tool may be called when the effect is proven not to have happened.
        """
        self.recovered = True
        settled = await Settling(self._recorder, self.params, entry, forward).run()
        return settled if isinstance(settled, Done | SaidNo) else await self._go_on(settled)

    async def _claim(self) -> ClaimResult:
        tries = 1
        while True:
            try:
                return await self._recorder.in_ledger(lambda tx: claims.claim(tx, self.request))
            except ActsElsewhere as found:
                await take_over_as_newest(self.worker.ledger, found)
            except LedgerUnavailable:
                if tries == _CLAIM_TRIES:
                    raise
                tries += 1
                await asyncio.sleep(DATABASE_PAUSE)

    async def _go_on(self, result: ClaimResult) -> CallResult:
        match result:
            case Claimed(entry):
                self.recovered = self.recovered or entry.recovering_ms is not None
                if entry.observed == UNASKED:
                    observed = await self._observe(entry)
                    if not isinstance(observed, Entry):
                        return observed
                    entry = observed
                self._recorder.crash(CrashPoint.AFTER_CLAIM)
                return await self._call(entry)
            case Committed(entry):
                if entry.foreign_receipt:
                    self._recorder.heard = self.request.content
                # This step's earlier attempt may have found that out, and died before it told.
                self.recovered = self.recovered or self.request.attempt > 1
                return Done(entry, entry.receipt, True)
            case Answered(entry) if entry.reported_failure is not None:
                raise stop(ErrorType.TOOL_FAILED, f"{self.tool.name}: {entry.reported_failure}")
            case Answered(entry):
                return SaidNo(entry.answer["reason"], entry.answer["code"], True)
            case Doubtful(entry):
                return await self.reconcile(entry)
            case Held(wait=wait):
                message = f"{self.tool.name}: another attempt holds this effect"
                self.worker.metrics.lease_wait(self.tool.name, "held", wait)
                raise again(ErrorType.LEASE_HELD, message, wait + timedelta(milliseconds=50))
            case Mismatch(reason):
                raise stop(ErrorType.PARAMS_MISMATCH, f"{self.tool.name}: {reason}")
            case ApprovalRefused() | Asked() | Barred() | Drifted() | Forbidden() | OverQuota():
                return result
            case _:
                assert_never(result)

    async def _observe(self, entry: Entry) -> Entry | Asked:
        """Ask a lookup that goes by the state of the world, before the call, and keep its answer.

        Where it is so already, the call is made all the same: that is what was decided. What was so
        before the call proves nothing after it.
        """
        tool, request = self.tool, self.request
        assert tool.lookup is not None, "only its tool says that it is to be asked"
        said, evidence = "unknown", None
        try:
            look = partial(tool.lookup, self.params, self._recorder.context(entry))
            looking = self._watched(f"the lookup of {tool.name}", self._recorder.began, look)
            async with self._keeping(entry) as kept:
                answer: object = await self._within(looking, kept)
        except Exception as error:
            log.info("effect.not_observed", entry_id=entry.entry_id, error=classify(error).message)
        else:
            said = {Found: "found", NotFound: "not_found"}.get(type(answer), "unknown")
            evidence = await call_off_loop(digest, await make_json(answer))
        observed = await self._recorder.in_ledger(
            lambda tx: claim_entry.keep_observed(tx, request, entry, said, evidence)
        )
        if observed is None:
            self._recorder.fenced()
        if said == "not_found" or entry.recovering_ms is None:
            return observed
        # Another attempt has died over this call: what is so now may be its work.
        why = "a crash left its outcome unknown, and its lookup does not say that it is still to do"
        return await self._recorder.ask(observed, why)

    async def _call(self, entry: Entry) -> CallResult:
        if clock.now() >= self._recorder.began + self.request.lease.total_seconds():
            # A slow claim, or frozen since: find it again with a fresh lease, or lose it.
            return await self._go_on(await self._claim())
        if FailureClass.DEPENDENCY_DOWN in entry.failures and not await is_healthy(
            self.worker.watchdog, self.tool
        ):
            return await self._failed(entry, STILL_DOWN)
        if (lost := self.held.lost()) is not None:
            message = f"{self.tool.name}: not called: a resource: {lost}"
            await self._recorder.not_begun(entry, message, BUSY_PAUSE)
        if self.tool.transactional:
            return await self._call_in_ledger(entry)
        # Until its outcome is recorded, too: before that, a large receipt is kept elsewhere.
        async with self._keeping(entry) as kept:
            return await self._call_under(entry, kept)

    async def _call_under(self, entry: Entry, kept: KeptLease) -> CallResult:
        context, draft = self._recorder.context(entry), None
        if self.request.undoes is None:
            draft = self._draft(entry)
            context = replace(context, artifact=draft)
        calling = self._called(self._recorder.began, context, draft)
        try:
            answer = await self._within(calling, kept)
        except NeedsAnswer as asked:
            return await self._recorder.wants_answer(entry, asked)
        except Exception as error:
            self._recorder.crash(CrashPoint.AFTER_CALL)
            return await self._failed(entry, self._classified(error))
        self._recorder.crash(CrashPoint.AFTER_CALL)
        if isinstance(answer, No):
            return await self._said_no(entry, answer.cleaned())
        written = draft if draft is not None and draft.is_written else None
        return await self._recorder.commit(
            entry, await make_json(answer), ahead=self.ahead, draft=written
        )

    def _draft(self, entry: Entry) -> KeptDraft:
        request = self.request
        writer = Writer(
            *(request.tenant, request.run_id, request.step_id, request.params_hash),
            first=request.attempt == 1,
            still_ours=partial(outcomes.still_ours, entry=entry),
            only_reads=False,
        )
        return KeptDraft(self.worker, writer)

    async def _call_in_ledger(self, entry: Entry) -> CallResult:
        """Call a transactional tool: its effect and its outcome commit together, or not at all."""
        try:
            receipt = await self._recorder.in_long_transaction(partial(self._work, entry))
        except _GaveUp as ended:
            if isinstance(ended.why, No):
                return await self._said_no(entry, ended.why)
            if isinstance(ended.why, NeedsAnswer):
                return await self._recorder.wants_answer(entry, ended.why)
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
        self._recorder.crash(CrashPoint.AFTER_OUTCOME)
        return Done(entry, receipt, False)

    async def _work(self, entry: Entry, transaction: LongTransaction) -> Any:
        if not await transaction.do(outcomes.still_ours, entry):
            self._recorder.fenced()
        context = replace(self._recorder.context(entry), session=Session(transaction))
        try:
            async with asyncio.timeout(self.request.timeout.total_seconds()):
                answer = await self._called(clock.now(), context)
        except NeedsAnswer as asked:
            raise _GaveUp(asked) from asked
        except (Exception, asyncio.CancelledError) as error:
            self._recorder.crash(CrashPoint.AFTER_CALL)
            failure = self._classified(error)
            if failure.failure_class is FailureClass.IN_DOUBT:
                # Whatever it was: what the tool has written goes with the transaction.
                failure = Failure(FailureClass.TRANSIENT, failure.message)
            raise _GaveUp(failure) from error
        self._recorder.crash(CrashPoint.AFTER_CALL)
        if isinstance(answer, No):
            raise _GaveUp(answer.cleaned())
        whose = (self.request.tenant, self.request.run_id)
        kept = await self.worker.artifacts.keep(*whose, await make_json(answer))
        commit = await transaction.do(outcomes.commit, self.request, entry, kept)
        await transaction.do(self._recorder.mark_foreign)
        await transaction.do(self.held.mark, self.request.run_id)
        assert commit is not None, "the entry's row is locked by this transaction"
        return kept.value

    def _keeping(self, entry: Entry) -> AbstractAsyncContextManager[KeptLease]:
        return keeping(
            partial(self._renew, entry),
            lease=self.request.lease,
            every=self.worker.renew_every,
            since=self._recorder.began,
        )

    async def _within(self, call: Awaitable[T], kept: KeptLease) -> T:
        resources = self.held.kept
        return await call_within(
            call,
            (kept, *resources),
            timeout=self.request.timeout,
            since=self._recorder.began,
            # While it still runs, its resources are not given to others.
            stopped_within=None if resources else 1.0,
        )

    async def _renew(self, entry: Entry) -> float | None:
        def renew(tx: Transaction) -> float | None:
            return tx.began if outcomes.renew(tx, entry) else None

        # Beside the recorder: what that knows of is what the attempt itself does.
        request = self.request
        began, _ = await self.worker.ledger.run_transaction(
            request.tenant, renew, Turn.RENEWAL, request.lease / 2
        )
        return began

    async def _called(
        self, claimed: float, context: ToolContext, draft: KeptDraft | None = None
    ) -> Any:
        if draft is not None:
            await draft.open()
        with self.worker.crash.during(self.tool.name, self.request.step_id):
            call = partial(self.tool.fn, self.params, context)
            return await self._watched(self.tool.name, claimed, call)

    async def _watched(self, what: str, claimed: float, call: Callable[[], Awaitable[T]]) -> T:
        # Inside the call's own task: one that ignores its cancellation stays watched.
        must_end = self.request.timeout + grace(self.tool.settle)
        deadline = partial(self.held.must_end, claimed + must_end.total_seconds())
        with self.worker.watchdog.watching(f"{what} of run {self.request.run_id}", deadline):
            return await call()

    def _classified(self, error: BaseException) -> Failure:
        tool = self.tool
        return classify_call(error, tool.name, tool.fn.__module__, tool.errors)

    async def _said_no(self, entry: Entry, answer: No) -> CallResult:
        said = await self._recorder.say_no(entry, answer)
        if said.state == "in_doubt":
            return await self._no_more_repeats(said, f"was answered no: {answer.reason}")
        return SaidNo(answer.reason, answer.code, False)

    async def _no_more_repeats(self, doubtful: Entry, ended: str) -> CallResult:
        """Settle an entry whose repeat proves nothing of the call before it."""
        if self.tool.lookup is not None:
            return await self.reconcile(doubtful)
        why = f"an earlier call was never answered, and calling again {ended}"
        return await self._recorder.ask(doubtful, why)

    async def _failed(self, entry: Entry, failure: Failure) -> CallResult:
        message = f"{self.tool.name}: {failure.message}"
        if failure.failure_class is FailureClass.IN_DOUBT:
            if failure.reported and self.tool.lookup is not None:
                left = await self._recorder.leave_in_doubt(entry, failure.message, reported=True)
                return await self.reconcile(left)
            return await self._recorder.unsettled(entry, failure.message)
        failed, delay = await self._recorder.fail(entry, failure)
        if delay is None and failed.state == "in_doubt":
            return await self._no_more_repeats(failed, f"ended with: {message}")
        self.before_report()
        if delay is None:
            raise stop(failure.for_good, message)
        raise again(ErrorType.for_failure(failure.failure_class.value), message, delay)
