"""The activities of ``workflows/maintenance.py``: reconciling, and what a stopped run has left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import structlog
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus

from surehand.activities.effects.reconcile import settle_stale
from surehand.activities.ledger.core import store
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.outbox import notification_rows
from surehand.activities.ledger.outbox.notification import Facts, Kind
from surehand.activities.ledger.runs import lifecycle as run_rows
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.worker.context import WorkerContext, stop, suppress_not_found
from surehand.workflows.contracts.base import Recorded
from surehand.workflows.contracts.effects import Reconciled, ReconcileLedger, StoppedRun, UnwindRun
from surehand.workflows.names import ErrorType
from surehand.workflows.plain_text import plain_line
from surehand.workflows.ports import IS_RUN, TENANT

log = structlog.get_logger()

#: How long an entry is left to its own run first, whose next attempt is due within seconds.
_QUIET: Final = timedelta(seconds=30)
#: Entries, or stopped runs, of a tenant in one part of a round; the next part goes on behind them.
_BATCH: Final = 100
#: Runs that are asked for at once.
_PAGE: Final = 200
#: Cursor: all stale entries of this round are done; terminated runs come next.
_RUNS: Final = "runs"
#: Effects of a stopped run that are listed; the others are counted.
_MOST_LISTED: Final = 20


class MaintenanceActivities:
    """``reconcile`` and ``begin_unwind``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="reconcile")
    async def reconcile(self, asked: ReconcileLedger) -> Reconciled:
        """Settle a page of a tenant's stale entries, or find its stopped runs."""
        return await reconcile_part(self._worker, activity.client(), asked)

    @activity.defn(name="begin_unwind")
    async def begin_unwind(self, asked: UnwindRun) -> Recorded:
        """Close a stopped run in the ledger, and bar it with its child runs."""
        if await is_open(activity.client(), asked.run_id):
            raise stop(
                ErrorType.RUN_STILL_OPEN,
                f"run {asked.run_id} is open: cancel it, and it undoes what it has done",
            )

        def begin(tx: store.Transaction) -> None:
            # First: a claim that a late attempt is making is waited for, a later one refused.
            run_rows.bar_terminated(tx, asked.run_id)
            run_rows.close_terminated(tx, asked.run_id)
            tx.event(asked.run_id, "run.unwinding", actor=asked.actor)

        try:
            _, head = await self._worker.ledger.record(asked.tenant, asked.run_id, begin)
        except store.RunNotFound as error:
            raise stop(ErrorType.RUN_NOT_FOUND, str(error)) from error
        except run_rows.EndedByItself as error:
            raise stop(ErrorType.RUN_ENDED, str(error)) from error
        return Recorded(head=head)


async def reconcile_part(
    worker: WorkerContext, server: Client, asked: ReconcileLedger
) -> Reconciled:
    """Do one part of a round of ``reconcile``; what is settled stays settled, whatever happens.

    Overdue entries come first, a page in each part, then the stopped runs. Raises
    ``LedgerUnavailable`` or ``RPCError``.
    """
    so_far = Reconciled()
    if asked.after != _RUNS:
        so_far = await settle_stale(
            worker,
            asked.tenant,
            lambda run_id: is_open(server, run_id),
            quiet=_QUIET,
            limit=_BATCH,
            after=asked.after,
        )
        if so_far.next is not None:
            return so_far
        over = await worker.ledger.transact(asked.tenant, artifact_rows.end_unneeded_drafts)
        await worker.artifacts.remove_drafts(asked.tenant, over)
    found: list[StoppedRun] = []
    async for run_id in _stopped(worker.ledger, server, asked.tenant):
        if len(found) == _BATCH:
            # Those that were found are closed: the next part does not see them again.
            return so_far.and_then(Reconciled(stopped=found, next=_RUNS))
        if await is_open(server, run_id):
            continue  # It was reset: only the execution before that is stopped.
        try:
            stopped = await _close(worker.ledger, asked.tenant, run_id)
        except store.LedgerUnavailable:
            raise
        except Exception:
            # Whatever is wrong with this one, those behind it are come to.
            log.exception("run.close_failed", run_id=run_id)
            continue
        found += [stopped] if stopped is not None else []
    return so_far.and_then(Reconciled(stopped=found))


async def reconcile_round(
    worker: WorkerContext, server: Client, asked: ReconcileLedger
) -> Reconciled:
    """Do a whole round of ``reconcile``. Raises ``LedgerUnavailable`` or ``RPCError``."""
    so_far = Reconciled(next=asked.after)
    while True:
        part = asked.model_copy(update={"after": so_far.next})
        so_far = so_far.and_then(await reconcile_part(worker, server, part))
        if so_far.next is None:
            return so_far


async def _close(ledger: store.Ledger, tenant: str, run_id: str) -> StoppedRun | None:
    """Close a stopped run in the ledger and say so; ``None``: somebody was quicker."""

    def close(tx: store.Transaction) -> StoppedRun | None:
        before = run_rows.times_stopped(tx, run_id)
        if not run_rows.close_terminated(tx, run_id):
            return None
        page = run_tree.list_remaining(tx, run_id, limit=_MOST_LISTED)
        remain = run_tree.how_many_remain(tx, run_id)
        facts = Facts(what=plain_line(f"{run_id}: {remain} of its effects may stand"))
        # It may have been reset since it was stopped before: that is told again.
        where = {"run_id": run_id, "subject": run_id}
        notification_rows.write_notification(tx, Kind.STOPPED, facts, **where, number=before)
        return StoppedRun(
            run_id=run_id,
            remaining=[one.view() for one in page.effects],
            more_remaining=remain - len(page.effects),
        )

    return await ledger.transact(tenant, close)


async def is_open(server: Client, run_id: str) -> bool:
    """Return whether a run is open at the Temporal server. Raises ``RPCError``."""
    status = None
    with suppress_not_found():
        status = (await server.get_workflow_handle(run_id).describe()).status
    return status is WorkflowExecutionStatus.RUNNING


async def _stopped(ledger: store.Ledger, server: Client, tenant: str) -> AsyncIterator[str]:
    """Yield the runs that the server has as stopped, and the ledger as open."""
    query = (
        f"{IS_RUN} AND {TENANT.name} = '{tenant}' AND ExecutionStatus IN ('Terminated', 'TimedOut')"
    )
    page: list[str] = []
    listed = server.list_workflows(query, page_size=_PAGE)
    async for run in listed:
        page.append(run.id)
        if len(page) == _PAGE:
            for run_id in await ledger.transact(tenant, run_rows.not_closed, page):
                yield run_id
            page = []
    for run_id in await ledger.transact(tenant, run_rows.not_closed, page):
        yield run_id
