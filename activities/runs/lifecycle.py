"""The activities that open and close a run, and settle its interventions."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from temporalio import activity

from surehand.activities.activity_errors import stop
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects import resolve as intervention_rows
from surehand.activities.ledger.effects.taken_over import TakesOverUndone
from surehand.activities.ledger.effects.undone import undone_under
from surehand.activities.ledger.people.starts import StartRefused
from surehand.activities.ledger.quotas import admission
from surehand.activities.ledger.quotas.limits import QuotaUsedUp
from surehand.activities.ledger.runs import lifecycle as run_rows
from surehand.activities.ledger.runs.lifecycle import Opened
from surehand.activities.ledger.steps import executions
from surehand.activities.runs.child_runs import started_in
from surehand.activities.runs.executions import as_newest, execution_of
from surehand.activities.tools.describing import describe_plan
from surehand.activities.worker.context import WorkerContext
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.effects import (
    FindInterventions,
    InterventionSettled,
    InterventionsFound,
    OpenIntervention,
    SettleIntervention,
)
from surehand.workflows.contracts.quotas import AdmitRun, QuotaWait, RunAdmitted
from surehand.workflows.contracts.runs import CloseRun, RunClosed
from surehand.workflows.contracts.starting import OpenRun, RunOpened
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.tools import ToolsDescribed, in_words
from surehand.workflows.errors import ErrorType

log = structlog.get_logger()

#: Most effects in the message that closes a run, the newest. More could exceed the server's 2 MiB,
#: and the run would fail for that alone.
MOST_EFFECTS: Final = 1000


class RunActivities:
    """What opens and closes a run, settles its interventions, and tells it what it has left."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="open_run")
    async def open_run(self, asked: OpenRun) -> RunOpened:
        """Record a run and its plan before step one, if the plan fits the tools."""
        request, assurance = asked.request, self._worker.assurance
        described = ToolsDescribed(tools={})
        if not asked.continues:
            described = await asyncio.to_thread(describe_plan, self._worker.toolbox, request.plan)
        if described.problems:
            problems = [problem.model_dump() for problem in described.problems]
            raise stop(ErrorType.PLAN_INVALID, in_words(described.problems), problems)
        ledger, execution = self._worker.ledger, execution_of(request.run_id)
        above: str | None = None
        if assurance is Assurance.SIGNED and request.parent is not None:
            above = await started_in(activity.client(), request.run_id, execution or "")
        store = await self._worker.artifacts.store_id()

        def opened(tx: Transaction) -> Opened:
            how = {"execution": execution, "above": above, "store": store}
            return run_rows.open_run(tx, asked, described.tools, assurance, **how)

        async def record() -> RunOpened:
            found, head = await ledger.record(request.tenant, request.run_id, opened)
            return RunOpened(
                tools=described.tools,
                foreign=found.foreign,
                queued=found.queued,
                weight=found.weight,
                head=head,
            )

        try:
            return await as_newest(ledger, record)
        except run_rows.RunIdTaken as error:
            raise stop(ErrorType.RUN_ID_TAKEN, str(error)) from error
        except TakesOverUndone as error:
            raise stop(ErrorType.PLAN_INVALID, str(error)) from error
        except QuotaUsedUp as used_up:
            wait = used_up.found.wait
            self._worker.metrics.over_quota(wait.quota, used_up.found.over)
            message = f"run {request.run_id} is not started: over the tenant's quota, {wait.text}"
            raise stop(ErrorType.QUOTA_EXCEEDED, message) from used_up
        except StartRefused as error:
            log.warning("run.refused", user=request.user, reason=str(error))
            message = f"run {request.run_id} is not started: {error}"
            raise stop(ErrorType.START_REFUSED, message) from error

    @activity.defn(name="admit_run")
    async def admit_run(self, asked: AdmitRun) -> RunAdmitted:
        """Let a run take its steps, if its tenant's quota of open runs has a place for it."""
        ledger, execution = self._worker.ledger, execution_of(asked.run_id)

        def admit(tx: Transaction) -> QuotaWait | None:
            if execution is not None:
                executions.require(tx, asked.run_id, execution)
            return admission.admit(tx, asked.run_id)

        async def record() -> RunAdmitted:
            queued, head = await ledger.record(asked.tenant, asked.run_id, admit)
            return RunAdmitted(queued=queued, head=head)

        return await as_newest(ledger, record)

    @activity.defn(name="close_run")
    async def close_run(self, asked: CloseRun) -> RunClosed:
        """Record the end of a run and return its effects as the ledger has them.

        Unless it says what stands, and something else does: then it is not closed.
        """
        return await as_newest(self._worker.ledger, lambda: self._close(asked))

    async def _close(self, asked: CloseRun) -> RunClosed:
        execution, completed = execution_of(asked.run_id), asked.state is RunState.COMPLETED

        def close(tx: Transaction) -> run_rows.Closed | None:
            return run_rows.close_run(tx, asked, execution, newest=MOST_EFFECTS)

        found, head = await self._worker.ledger.record(asked.tenant, asked.run_id, close)
        if found is None:
            return RunClosed(closed=False, head=head)
        await self._worker.artifacts.remove_drafts(asked.tenant, found.drafts)
        told = found.made
        remaining = [one.view() for one in told.remaining]
        # A completed run reports what nobody could undo: of failed child runs, of lives before a
        # reset, of steps that were given up.
        left = [view for view in remaining if view.reason is not None]
        return RunClosed(
            effects=[one.view() for one in told.made],
            uncompensated=left if completed else remaining,
            more_effects=told.more,
            more_uncompensated=0 if completed else told.more_remaining,
            head=head,
        )

    @activity.defn(name="find_interventions")
    async def find_interventions(self, asked: FindInterventions) -> InterventionsFound:
        """Return what was undone under a run that is about to complete."""
        rows = await self._worker.ledger.transact(asked.tenant, undone_under, asked.run_id)
        return InterventionsFound(
            interventions=[
                OpenIntervention(
                    intervention_id=row["intervention_id"],
                    step_id=row["step_id"],
                    question=row["question"],
                )
                for row in rows
            ]
        )

    def _can_undo(self, name: str) -> bool:
        tool = self._worker.toolbox.get(name)
        return tool is not None and tool.compensate is not None

    @activity.defn(name="settle_intervention")
    async def settle_intervention(self, asked: SettleIntervention) -> InterventionSettled:
        """Apply a human's answer to an intervention, once."""

        def settle(tx: Transaction) -> tuple[bool, str, bool]:
            accepted, message = intervention_rows.settle(
                tx, asked.run_id, asked.resolution_id, asked.resolution, self._can_undo
            )
            settled = intervention_rows.is_settled(tx, asked.resolution.intervention_id)
            return accepted, message, settled

        told, head = await self._worker.ledger.record(asked.tenant, asked.run_id, settle)
        accepted, message, settled = told
        return InterventionSettled(accepted=accepted, message=message, settled=settled, head=head)
