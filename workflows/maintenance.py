"""Workflows that no run is: ``Reconcile`` on its schedule, unwinding stopped runs, ``Ping``."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from surehand.workflows import names, ports
    from surehand.workflows.contracts import effects
    from surehand.workflows.identity import tenant_problem
    from surehand.workflows.names import ErrorType
    from surehand.workflows.ports import call_port, compensation_call, reconcile_call
    from surehand.workflows.run.compensation import compensate_message, visit_remaining
    from surehand.workflows.run.run_core import NEXT_VERSION


def _refuse_unless_possible(tenant: str) -> None:
    problem = tenant_problem(tenant)
    if problem is not None:
        reason = f"tenant {tenant[:80]!r}: {problem}"
        raise ApplicationError(reason, type=ErrorType.RUN_ID_INVALID, non_retryable=True)


@workflow.defn(name=names.RECONCILE, sandboxed=False)
class Reconcile:
    """One round over a tenant's ledger; a Temporal Schedule starts it."""

    @workflow.run
    async def run(self, asked: effects.ReconcileLedger) -> effects.Reconciled:
        """Settle what nobody is settling, and find runs that were stopped from outside."""
        _refuse_unless_possible(asked.tenant)
        so_far = effects.Reconciled(next=asked.after)
        while True:
            part = asked.model_copy(update={"after": so_far.next})
            done = await call_port(
                ports.RECONCILE, part, "reconcile", options=reconcile_call(asked.tenant)
            )
            so_far = so_far.and_then(done)
            if so_far.next is None:
                return so_far


@workflow.defn(name=names.UNWIND, sandboxed=False)
class Unwind:
    """Undoes what a run that was terminated, and its child runs, have committed (G4).

    Its own history may become too long for all of it: then it continues as new behind an effect.
    """

    @workflow.run
    async def run(self, asked: effects.UnwindRun) -> effects.Unwound:
        """Undo it; what needs a human is left open as an intervention.

        A run that is still open is refused (``RunStillOpen``): cancel it, and it unwinds itself.
        """
        _refuse_unless_possible(asked.tenant)
        if asked.dry_run:
            summary = f"{asked.run_id}: what would be undone"
            options = compensation_call(summary)
            return await call_port(ports.PREVIEW_UNWIND, asked, summary, options=options)
        carried = asked.carried
        if carried is not None and workflow.info().continued_run_id is None:
            reason = f"the unwinding of run {asked.run_id!r} was not continued by Temporal"
            raise ApplicationError(reason, type=ErrorType.RUN_ID_INVALID, non_retryable=True)
        workflow.upsert_search_attributes([ports.TENANT.value_set(asked.tenant)])
        if carried is None:
            await call_port(ports.BEGIN_UNWIND, asked, f"bar {asked.run_id}")
            nothing = effects.Unwound(run_id=asked.run_id, undone=[], left=[])
            carried = effects.CarriedUnwinding(after=None, tried=[], done=nothing)
        page, done, tried = carried.after, carried.done, dict.fromkeys(carried.tried)
        # Continued behind an effect: that round has moved something.
        moved = asked.carried is not None

        async def find(question: effects.FindRemaining) -> effects.RemainingFound:
            nonlocal page
            page = question.after
            return await call_port(ports.FIND_REMAINING, question, f"{asked.run_id}: what stands")

        async def undo(remaining: effects.RemainingEffect) -> None:
            nonlocal done, moved
            effect = remaining.effect
            if effect.entry_id in tried:
                return
            moved = True
            step = f"{effect.run_id}/{effect.step_id}" if effect.run_id else effect.step_id
            report = await call_port(
                ports.COMPENSATE,
                compensate_message(asked.tenant, asked.run_id, asked.actor, remaining),
                step,
                options=compensation_call(f"{step}: undo"),
            )
            if report.outcome is effects.CompensationOutcome.COMPENSATED:
                done = done.with_undone(step)
            else:
                tried[effect.entry_id] = None
                if report.outcome is not effects.CompensationOutcome.NOTHING_TO_UNDO:
                    left = effects.NotUndone(
                        step_id=step, reason=report.reason, intervention_id=report.intervention_id
                    )
                    done = done.with_left(left)
            if _is_long(asked):
                following = effects.CarriedUnwinding(after=page, tried=list(tried), done=done)
                workflow.continue_as_new(
                    asked.model_copy(update={"carried": following}),
                    initial_versioning_behavior=NEXT_VERSION,
                )

        while True:
            question = effects.FindRemaining(
                tenant=asked.tenant, run_id=asked.run_id, after=page, bar=page is None
            )
            await visit_remaining(find, question, undo)
            if not moved:
                return done
            page, moved = None, False


def _is_long(asked: effects.UnwindRun) -> bool:
    info = workflow.info()
    if asked.continue_after is not None:
        return info.get_current_history_length() >= asked.continue_after
    return info.is_continue_as_new_suggested()


@workflow.defn(name=names.PING, sandboxed=False)
class Ping:
    """Shows that a worker answers on a task queue; does nothing else."""

    @workflow.run
    async def run(self) -> None:
        """End at once."""
