"""Workflows that look after the ledger: the sweep on its schedule, and unwinding a stopped run."""

from __future__ import annotations

from typing import Final

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows import names, ports
    from workflows.calls import call_port
    from workflows.contracts import (
        CompensationOutcome,
        FindStanding,
        NotUndone,
        StandingEffect,
        StandingFound,
        Sweep,
        Swept,
        UnwindRun,
        Unwound,
    )
    from workflows.errors import ErrorType
    from workflows.identity import tenant_problem
    from workflows.options import compensation_call, sweep_call
    from workflows.unwinding import each_standing, to_compensate

#: Effects that the answer lists, each undone and left; the ledger has them all.
MOST_LISTED: Final = 1000


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
    """Undoes what a run that was terminated, and its child runs, have committed (G4)."""

    @workflow.run
    async def run(self, asked: UnwindRun) -> Unwound:
        """Undo it; what needs a human is left open as an intervention.

        Raises:
            ApplicationError: ``RunIdInvalid``: there can be no such tenant.
            ActivityError: ``RunStillOpen``: cancel such a run, and it unwinds itself.
        """
        _refuse_unless_possible(asked.tenant)
        workflow.upsert_search_attributes([names.TENANT.value_set(asked.tenant)])
        await call_port(ports.BEGIN_UNWIND, asked, f"bar {asked.run_id}")
        undone, left = list[str](), dict[str, NotUndone]()
        seen = set[str]()

        async def find(question: FindStanding) -> StandingFound:
            return await call_port(ports.FIND_STANDING, question, f"{asked.run_id}: what stands")

        async def undo(standing: StandingEffect) -> None:
            effect = standing.effect
            if effect.entry_id in seen:
                return
            seen.add(effect.entry_id)
            step = f"{effect.run_id}/{effect.step_id}" if effect.run_id else effect.step_id
            report = await call_port(
                ports.COMPENSATE,
                to_compensate(asked.tenant, asked.run_id, asked.actor, standing),
                step,
                options=compensation_call(f"{step}: undo"),
            )
            if report.outcome is CompensationOutcome.COMPENSATED:
                undone.append(step)
            elif report.outcome is not CompensationOutcome.NOTHING_TO_UNDO:
                left[effect.entry_id] = NotUndone(
                    step_id=step, reason=report.reason, intervention_id=report.intervention_id
                )

        while True:
            before = len(seen)
            question = FindStanding(tenant=asked.tenant, run_id=asked.run_id, bar=True)
            await each_standing(find, question, undo)
            if len(seen) == before:
                break
        return Unwound(
            run_id=asked.run_id,
            undone=undone[:MOST_LISTED],
            left=list(left.values())[:MOST_LISTED],
            more_undone=max(0, len(undone) - MOST_LISTED),
            more_left=max(0, len(left) - MOST_LISTED),
        )
