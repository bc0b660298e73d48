"""Workflows that look after the ledger: the sweep on its schedule, and unwinding a stopped run."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows import names, ports
    from workflows.calls import call_port
    from workflows.contracts import (
        Compensate,
        CompensationOutcome,
        NotUndone,
        Sweep,
        Swept,
        UnwindRun,
        Unwound,
    )
    from workflows.errors import ErrorType
    from workflows.identity import tenant_problem
    from workflows.options import compensation_call, sweep_call


def _refuse_unless_possible(tenant: str) -> None:
    problem = tenant_problem(tenant)
    if problem is not None:
        reason = f"tenant {tenant[:80]!r}: {problem}"
        raise ApplicationError(reason, type=ErrorType.RUN_ID_INVALID, non_retryable=True)


@workflow.defn(name=names.RECONCILE)
class Reconcile:
    """One round of the sweep; a Temporal Schedule starts it."""

    @workflow.run
    async def run(self, asked: Sweep) -> Swept:
        """Settle what nobody is settling, and find runs that were stopped from outside.

        Raises:
            ApplicationError: ``RunIdInvalid``: there can be no such tenant.
        """
        _refuse_unless_possible(asked.tenant)
        swept = Swept(next=asked.after)
        while True:
            part = asked.model_copy(update={"after": swept.next})
            done = await call_port(ports.SWEEP, part, "sweep", options=sweep_call(asked.tenant))
            swept = swept.and_then(done)
            if swept.next is None:
                return swept


@workflow.defn(name=names.UNWIND)
class Unwind:
    """Undoes what a run that was terminated has committed, last first (guarantee G4)."""

    @workflow.run
    async def run(self, asked: UnwindRun) -> Unwound:
        """Undo it; what needs a human is left open as an intervention.

        Raises:
            ApplicationError: ``RunIdInvalid``: there can be no such tenant.
            ActivityError: ``RunStillOpen``: cancel such a run, and it unwinds itself.
        """
        _refuse_unless_possible(asked.tenant)
        workflow.upsert_search_attributes([names.TENANT.value_set(asked.tenant)])
        found = await call_port(ports.BEGIN_UNWIND, asked, f"{asked.run_id}: what there is to undo")
        undone, left = [], []
        for step_id in found.step_ids:
            report = await call_port(
                ports.COMPENSATE,
                Compensate(
                    tenant=asked.tenant, run_id=asked.run_id, step_id=step_id, user=asked.actor
                ),
                step_id,
                options=compensation_call(f"{step_id}: undo"),
            )
            if report.outcome is CompensationOutcome.COMPENSATED:
                undone.append(step_id)
            elif report.outcome is not CompensationOutcome.NOTHING_TO_UNDO:
                left.append(
                    NotUndone(
                        step_id=step_id,
                        reason=report.reason,
                        intervention_id=report.intervention_id,
                    )
                )
        return Unwound(run_id=asked.run_id, undone=undone, left=left)
