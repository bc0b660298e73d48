"""The activities behind ``workflows.upkeep``: the sweep, and what a stopped run has left."""

from __future__ import annotations

from contextlib import suppress

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.attempt import Resources, to_the_end
from activities.endings import stop
from activities.ledger import checkpoints, notifications, run_tree
from activities.ledger import stopped as stopped_rows
from activities.ledger.store import RunNotFound
from activities.notifications import Facts, Kind, one_line
from activities.reconciliation import reconcile_once
from workflows.contracts import Recorded, StoppedRun, Sweep, Swept, UnwindRun
from workflows.errors import ErrorType
from workflows.names import IS_RUN, TENANT

#: Stopped runs that one round looks at, newest first; older ones were seen by earlier rounds.
_MOST_STOPPED = 200
#: Effects of a stopped run that are listed; the others are counted.
_MOST_STANDING = 20


class UpkeepActivities:
    """``sweep`` and ``begin_unwind``."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="sweep")
    async def sweep(self, asked: Sweep) -> Swept:
        """Settle a tenant's overdue entries, once round, and find its stopped runs."""
        return await to_the_end(sweep_once(self._resources, activity.client(), asked))

    @activity.defn(name="begin_unwind")
    async def begin_unwind(self, asked: UnwindRun) -> Recorded:
        """Close a stopped run in the ledger, and bar it with its child runs."""
        if await is_open(activity.client(), asked.run_id):
            raise stop(
                ErrorType.RUN_STILL_OPEN,
                f"run {asked.run_id} is open: cancel it, and it undoes what it has done",
            )
        try:
            async with self._resources.ledger.transaction(asked.tenant) as tx:
                # First: a claim that a late attempt is making is waited for, a later one refused.
                await stopped_rows.bar(tx, asked.run_id)
                await stopped_rows.close(tx, asked.run_id)
                tx.event(asked.run_id, "run.unwinding", actor=asked.actor)
        except RunNotFound as error:
            reason = f"run not found: {asked.run_id}"
            raise stop(ErrorType.RUN_NOT_FOUND, reason) from error
        except stopped_rows.EndedByItself as error:
            raise stop(ErrorType.RUN_ENDED, str(error)) from error
        return Recorded(head=tx.heads[asked.run_id])


async def sweep_once(resources: Resources, server: Client, asked: Sweep) -> Swept:
    """Do one round of the sweep; what is settled stays settled, whatever happens.

    Raises:
        LedgerUnavailable: The database is away.
        RPCError: The Temporal server is away.
    """
    limits = resources.sweep
    swept = await reconcile_once(
        resources,
        asked.tenant,
        lambda run_id: is_open(server, run_id),
        quiet=limits.quiet if asked.quiet is None else asked.quiet,
        limit=limits.batch,
    )
    async with resources.ledger.transaction(asked.tenant) as tx:
        await checkpoints.remove_expired(tx)
    found = []
    for run_id in await _stopped(server, asked.tenant):
        if await is_open(server, run_id):
            continue  # It was reset: only the execution before that is stopped.
        # One that was stopped before it was opened has no row.
        with suppress(RunNotFound):
            async with resources.ledger.transaction(asked.tenant) as tx:
                if await stopped_rows.close(tx, run_id):
                    page = await run_tree.standing(tx, run_id, limit=_MOST_STANDING)
                    stand = await run_tree.how_many_stand(tx, run_id)
                    found.append(
                        StoppedRun(
                            run_id=run_id,
                            standing=[one.view() for one in page.effects],
                            more_standing=stand - len(page.effects),
                        )
                    )
                    text = f"{run_id}: {stand} of its effects may stand"
                    facts = Facts(what=one_line(text))
                    await notifications.write(
                        tx, Kind.STOPPED, facts, run_id=run_id, subject=run_id
                    )
    return swept.model_copy(update={"stopped": found})


async def is_open(server: Client, run_id: str) -> bool:
    """Return whether a run is open at the Temporal server.

    Raises:
        RPCError: The server is away.
    """
    try:
        found = await server.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return found.status is WorkflowExecutionStatus.RUNNING


async def _stopped(server: Client, tenant: str) -> list[str]:
    query = (
        f"{IS_RUN} AND {TENANT.name} = '{tenant}' AND ExecutionStatus IN ('Terminated', 'TimedOut')"
    )
    return [run.id async for run in server.list_workflows(query, limit=_MOST_STOPPED)]
