"""What is to be undone, and the activity ``compensate`` that undoes one effect of it (G4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar, assert_never

from pydantic import BaseModel, ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from surehand.activities.artifacts import MOST_READS, ArtifactUnavailable
from surehand.activities.effects.leases import hold_resources
from surehand.activities.effects.prepare import bare_request, tool_context
from surehand.activities.effects.reconcile import CannotSettle, settle_entry
from surehand.activities.effects.recorder import Done, SaidNo, WantsAnswer, write_surely
from surehand.activities.effects.write import EffectCall, why_refused
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.effects import compensations, reconcile, run_tree
from surehand.activities.ledger.effects.compensations import (
    AskFirst,
    GivenUp,
    NothingToUndo,
    Stays,
    ToUndo,
)
from surehand.activities.ledger.effects.interventions import UNDO_REFUSED
from surehand.activities.ledger.halts import LOOK, Halted
from surehand.activities.ledger.history.reads import require_run
from surehand.activities.ledger.history.run_display import read_recovery
from surehand.activities.ledger.outbox import notification_rows
from surehand.activities.ledger.outbox.notification import Facts, Kind
from surehand.activities.ledger.quotas import OverQuota
from surehand.activities.ledger.steps import acting, entries
from surehand.activities.ledger.steps.entries import ClaimRequest, Entry
from surehand.activities.runs import as_newest, execution_of, stop_child_runs
from surehand.activities.tools.failures import classify
from surehand.activities.tools.tool import Tool, Undo, explain, resource_names
from surehand.activities.worker.context import Attempt, WorkerContext, again, stop
from surehand.activities.worker.crash_points import CrashPoint
from surehand.activities.worker.telemetry import note, note_effect
from surehand.workflows.contracts.base import ChainHead, as_artifact
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    FindRemaining,
    RemainingEffect,
    RemainingFound,
    UndoSpec,
    UnwindRun,
    Unwound,
)
from surehand.workflows.identity import undo_key
from surehand.workflows.names import ErrorType
from surehand.workflows.plain_text import plain_line

T = TypeVar("T")

#: Failures after which a compensation is a human's business; any other end is tried again.
_NEED_HUMAN = frozenset(
    {ErrorType.TOOL_FAILED, ErrorType.NOT_AS_REVIEWED, ErrorType.PARAMS_MISMATCH}
)


class CompensationActivities:
    """``find_remaining`` and ``compensate``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="find_remaining")
    async def find_remaining(self, asked: FindRemaining) -> RemainingFound:
        """Return what remains of a run, or of a step of it, and its child runs, last first."""
        return await as_newest(self._worker.ledger, lambda: self._find(asked))

    async def _find(self, asked: FindRemaining) -> RemainingFound:
        ledger, within = self._worker.ledger, asked.within or asked.run_id
        execution = execution_of(within)

        def find(tx: Transaction) -> tuple[RemainingFound, list[str]]:
            if execution is not None:
                acting.require_acting(tx, within, execution)
            if asked.bar:
                run_tree.bar_tree(tx, asked.run_id, asked.step_id)
            open_ = list[str]()
            if asked.bar or asked.completing or asked.leave is not None:
                # Those of this life of the run have ended before anybody asks.
                open_ = run_tree.open_below(tx, asked.run_id, asked.step_id)
            if asked.completing:
                for run_id in open_:
                    run_tree.bar_tree(tx, run_id)
            acting.revoke_batches(tx, asked.run_id, asked.revoked_batches)
            after = None if asked.after is None else run_tree.Cursor.read(asked.after)
            page = run_tree.list_remaining(tx, asked.run_id, asked.step_id, after=after)
            if asked.leave is not None:
                left = [one.entry.entry_id for one in page.effects]
                run_tree.note_left(tx, asked.run_id, left, asked.leave)
            used = run_tree.used_in(tx, asked.run_id, page.effects)
            found = RemainingFound(
                effects=[
                    RemainingEffect(
                        effect=one.view(), child=one.child, used_in=used[one.entry.entry_id]
                    )
                    for one in page.effects
                ],
                after=None if page.following is None else str(page.following),
                unwound=list(run_tree.find_unwound(tx, asked.run_id)) if asked.completing else [],
            )
            return found, open_

        (found, open_), head = await ledger.record(asked.tenant, asked.run_id, find)
        # The server cancels the child runs of one that is stopped, and these undo what they may:
        # not before all that is kept is marked.
        if open_ and (asked.leave is None or found.after is None):
            await stop_child_runs(activity.client(), ledger, asked.tenant, open_)
        return found.model_copy(update={"head": head}) if asked.within is None else found

    @activity.defn(name="preview_unwind")
    async def preview_unwind(self, asked: UnwindRun) -> Unwound:
        """Return what would be undone of a run, and what not, and call nothing but ``only_if``."""
        worker, refused = self._worker, dict[str, str]()

        def preview(tx: Transaction) -> tuple[list[compensations.Judged], int]:
            require_run(tx, asked.run_id)
            return compensations.preview_undo(
                tx, asked.run_id, worker.toolbox.undo_of, refused=refused
            )

        try:
            found, more = await worker.ledger.transact(asked.tenant, preview)
        except RunNotFound as error:
            raise stop(ErrorType.RUN_NOT_FOUND, f"run not found: {asked.run_id}") from error
        if asked.check:
            for made, judged in found:
                if isinstance(judged, ToUndo) and (why := await self._check(asked, made.entry)):
                    refused[made.entry.entry_id] = why
            found, more = await worker.ledger.transact(asked.tenant, preview)
        return compensations.tell_preview(asked.run_id, found, more)

    async def _check(self, asked: UnwindRun, entry: Entry) -> str | None:
        """Return why the world does not allow an undo, or cannot be asked; ``None``: it does."""
        compensate = Compensate(
            tenant=asked.tenant,
            run_id=entry.run_id,
            step_id=entry.step_id,
            entry_id=entry.entry_id,
            user=asked.actor,
        )
        return await UndoAttempt(self._worker, compensate, Attempt.current()).check(entry)

    @activity.defn(name="compensate")
    async def compensate(self, asked: Compensate) -> CompensationReport:
        """Bar the step, settle what is in doubt, and undo the effect if it remains."""
        # What an earlier execution would undo, the newest may have completed on.
        attempt = replace(Attempt.current(), execution=execution_of(asked.within or asked.run_id))
        ledger, undoing = self._worker.ledger, UndoAttempt(self._worker, asked, attempt)
        report = await as_newest(ledger, undoing.run)
        if attempt.number > 1 and asked.within is None:
            step = (asked.run_id, asked.step_id)
            story = await write_surely(lambda: ledger.transact(asked.tenant, read_recovery, *step))
            report = report.model_copy(update={"story": story})
        # Each run's history carries the heads of its own chain, and of no other.
        return report if asked.within is None else report.model_copy(update={"head": None})


@dataclass(frozen=True)
class UndoAttempt:
    """One attempt to undo one effect."""

    worker: WorkerContext
    asked: Compensate
    attempt: Attempt

    async def run(self) -> CompensationReport:
        """Undo it, or say why it is not undone."""
        found, head = await self._begin()
        match found:
            case NothingToUndo(reason):
                return _report(CompensationOutcome.NOTHING_TO_UNDO, reason, head)
            case GivenUp(reason):
                return _report(CompensationOutcome.UNCOMPENSATED, reason, head)
            case entries.Asked():
                return self._report_question(found, head)
            case entries.Held():
                self._wait_for_lease(found, "an attempt is still under way")
            case entries.Doubtful(entry):
                return await self._settle(entry)
            case Stays(entry, reason):
                return await self._leave(entry, reason)
            case AskFirst(entry, question, rule, changed):
                return await self._ask_human(entry, question, rule=rule, changed=changed)
            case ToUndo(entry, changed_to):
                return await self.undo_effect(entry, changed_to)
            case _:
                assert_never(found)

    async def _begin(self) -> tuple[compensations.BeginResult, ChainHead]:
        asked = self.asked

        def begin(tx: Transaction) -> compensations.BeginResult:
            step = (asked.entry_id, asked.run_id, asked.step_id)
            loads = self.worker.toolbox.undo_of
            found = compensations.begin_undo(tx, *step, loads, cleanup=asked.cleanup)
            if isinstance(found, GivenUp):
                run_tree.note_left(tx, asked.run_id, [asked.entry_id], found.reason)
            return found

        return await self._record(begin)

    async def _record(self, work: Callable[[Transaction], T]) -> tuple[T, ChainHead]:
        """Record something, as the execution of the run that acts: any other one is late."""
        asked, execution = self.asked, self.attempt.execution

        def record(tx: Transaction) -> T:
            if execution is not None:
                acting.require_acting(tx, asked.within or asked.run_id, execution)
            return work(tx)

        return await self.worker.ledger.record(asked.tenant, asked.run_id, record)

    def _wait_for_lease(self, held: entries.Held, why: str) -> NoReturn:
        self.worker.metrics.lease_wait("", "held", held.wait)
        wait = held.wait + timedelta(milliseconds=50)
        raise again(ErrorType.LEASE_HELD, f"step {self.asked.step_id}: {why}", wait)

    async def _settle(self, entry: Entry) -> CompensationReport:
        """Find out whether an effect in doubt happened, without ever calling it forward."""
        try:
            result, head = await settle_entry(self.worker, entry, self.attempt, self.asked.user)
        except CannotSettle as error:
            return await self._ask_after_failure(entry, str(error))
        match result:
            case Done():
                return await self.run()
            case entries.Asked():
                return self._report_question(result, head)
            case entries.Barred(reason=reason) | SaidNo(reason=reason):
                return _report(CompensationOutcome.NOTHING_TO_UNDO, reason, head)
            case (
                WantsAnswer()
                | entries.ApprovalRefused()
                | entries.Drifted()
                | entries.Forbidden()
                | entries.OverLimit()
                | OverQuota()
                | Halted()
            ):
                raise AssertionError("a reconciliation that may not call forward")
            case _:
                assert_never(result)

    async def undo_effect(self, entry: Entry, changed: str | None) -> CompensationReport:
        """Call the tool that undoes a committed effect; ``changed``: how it is another one."""
        worker, asked, attempt = self.worker, self.asked, self.attempt
        undo, undoing = self._find_undo(entry)
        try:
            params, receipt, request = await self._prepare(entry, undo, undoing)
            names = resource_names(undoing.resource, params)
        except ArtifactUnavailable as error:
            if attempt.number >= MOST_READS:
                why = f"its receipt cannot be read: {error}"
                return await self._ask_after_failure(entry, why)
            raise again(ErrorType.ARTIFACT_UNAVAILABLE, str(error)) from error
        except Exception as error:
            reason = explain(error) if isinstance(error, ValidationError) else repr(error)
            why = f"params of {undo.tool} cannot be made: {reason}"
            return await self._ask_after_failure(entry, why)
        request = replace(
            request,
            undoes=entry.entry_id,
            instead_of=changed,
            execution=attempt.execution,
            within=asked.within,
            observes=request.observes or undo.only_if is not None,
        )
        effect = EffectCall(worker, undoing, params, request)
        if undo.only_if is not None:
            effect.only_if = partial(undo.only_if, entry.params, receipt)
        try:
            with worker.spans.undo(asked, undoing.name, attempt.number):
                note_effect(asked.tenant, undoing.name, request.key)
                async with hold_resources(worker, undoing, names, asked, attempt) as held:
                    effect.held = held
                    result = await effect.run()
                if isinstance(result, Done):
                    note({"surehand.outcome": "compensated", "surehand.replayed": result.replayed})
                else:
                    note({"surehand.outcome": "human_needed"})
        except ApplicationError as error:
            if error.type not in _NEED_HUMAN:
                raise
            if effect.refused is not None:
                question = (
                    f"undoing {entry.tool} {entry.key} is refused: {effect.refused}. Settle it as"
                    " undo to try it again, as compensated once it is undone by hand, or give it up"
                )
                return await self._ask_human(entry, question, rule=UNDO_REFUSED)
            return await self._ask_after_failure(entry, error.message)
        match result:
            case Done():
                effect.crash(CrashPoint.BEFORE_REPORT)
                return _report(CompensationOutcome.COMPENSATED, undoing.name, effect.head)
            case entries.Asked():
                return self._report_question(result, effect.head)
            case entries.Barred() if not isinstance((await self._begin())[0], ToUndo):
                # This attempt is late: a human has settled it while it was on its way.
                return await self.run()
            case SaidNo(reason=reason):
                return await self._ask_after_failure(entry, f"{undoing.name} says no: {reason}")
            case (
                entries.Barred(reason=reason)
                | entries.ApprovalRefused(reason)
                | entries.Drifted(reason)
                | entries.Forbidden(reason)
                | entries.OverLimit(reason)
            ):
                return await self._ask_after_failure(entry, f"{undoing.name}: {reason}")
            case Halted(halt):
                raise again(ErrorType.HALTED, f"{undoing.name}: {halt.as_wait.story}", LOOK)
            case WantsAnswer() | OverQuota():
                raise AssertionError("an undo can ask nobody, and needs no quota")
            case _:
                assert_never(result)

    def _find_undo(self, entry: Entry) -> tuple[Undo, Tool]:
        """Return how an effect is undone, and by which tool."""
        tool = self.worker.toolbox.get(entry.tool)
        undo = tool and (tool.cleanup if self.asked.cleanup else tool.compensate)
        assert undo, "it was judged by this toolbox"
        undoing = self.worker.toolbox.get(undo.tool)
        assert undoing is not None, "load_toolbox has checked it"
        return undo, undoing

    async def _prepare(
        self, entry: Entry, undo: Undo, undoing: Tool
    ) -> tuple[BaseModel, Any, ClaimRequest]:
        """Return the params of an undo, the receipt that they were made of, and what it claims."""
        receipt = await self._read_receipt(entry)
        params = undoing.validate(undo.params(entry.params, receipt))
        plain = params.model_dump(mode="json")
        # No approval and no permission: people have approved it with its step, or as changed.
        request = await self.worker.ledger.with_keys(
            lambda: bare_request(
                *(self.worker, self.asked, undoing, plain, self.attempt),
                key=undo_key(entry.entry_id),
                user=self.asked.user,
            ),
            plain,
        )
        return params, receipt, request

    async def check(self, entry: Entry) -> str | None:
        """Return why the world does not allow the undo now, or cannot be asked, and call nothing.

        ``None``: it does, or the undo does not ask.
        """
        undo, undoing = self._find_undo(entry)
        if undo.only_if is None:
            return None
        what = f"the only_if of {undoing.name} of run {entry.run_id}"
        try:
            _, receipt, request = await self._prepare(entry, undo, undoing)
            async with self.worker.watchdog.watched(what, undoing.timeout):
                return why_refused(await undo.only_if(entry.params, receipt, tool_context(request)))
        except Exception as error:
            return f"it cannot be known: {classify(error).message}"

    async def _read_receipt(self, entry: Entry) -> Any:
        if entry.content_deleted_ms is not None:
            raise ValueError("its receipt was deleted, as the retention says")
        artifact = as_artifact(entry.receipt)
        if artifact is None:
            return entry.receipt
        return await self.worker.artifacts.read(entry.tenant, entry.run_id, artifact)

    async def _ask_after_failure(self, entry: Entry, why: str) -> CompensationReport:
        return await self._ask_human(entry, f"undoing {entry.tool} {entry.key} failed: {why}")

    async def _ask_human(
        self,
        entry: Entry,
        question: str,
        *,
        rule: str = "compensation_failed",
        changed: UndoSpec | None = None,
    ) -> CompensationReport:
        """Open an intervention; ``changed``: the undo that is not the one that was approved."""
        found, head = await self._record(
            lambda tx: compensations.ask_about_undo(tx, entry, question, rule, changed)
        )
        if found is None:
            # This attempt is late: look at what has become of it.
            return await self.run()
        if isinstance(found, entries.Held):
            self._wait_for_lease(found, "another attempt may be undoing it")
        return self._report_question(found, head)

    def _report_question(self, asked: entries.Asked, head: ChainHead | None) -> CompensationReport:
        what = (asked.entry, asked.rule, self.asked.within or self.asked.run_id)
        return CompensationReport(
            outcome=CompensationOutcome.HUMAN_NEEDED,
            reason=asked.question,
            intervention_id=asked.intervention_id,
            answers=reconcile.name_answers(*what, self.worker.toolbox.can_undo),
            head=head,
        )

    async def _leave(self, entry: Entry, reason: str) -> CompensationReport:
        run_id, step_id = self.asked.run_id, self.asked.step_id
        told = {"entry_id": entry.entry_id, "tool": entry.tool, "reason": reason, "action": "list"}
        facts = Facts(what=plain_line(f"{entry.tool} {entry.key}: {reason}"), tool=entry.tool)

        def leave(tx: Transaction) -> None:
            run_tree.note_left(tx, entry.run_id, [entry.entry_id], reason)
            tx.event(run_id, "effect.uncompensated", step_id=step_id, **told)
            notification_rows.write_notification(
                tx,
                Kind.UNCOMPENSATED,
                facts,
                run_id=run_id,
                step_id=step_id,
                subject=entry.entry_id,
            )

        _, head = await self._record(leave)
        return _report(CompensationOutcome.UNCOMPENSATED, reason, head)


def _report(
    outcome: CompensationOutcome, reason: str, head: ChainHead | None
) -> CompensationReport:
    return CompensationReport(outcome=outcome, reason=reason, head=head)
