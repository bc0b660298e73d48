"""The guard between activities and Temporal: what leaves them where the ledger cannot go on.

It has lost the run, there can be no such tenant, or the tenant is another cell's.
"""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from surehand.activities.activity_errors import stop
from surehand.activities.ledger.core.store import (
    Ledger,
    LedgerUnavailable,
    RunNotFound,
    TenantInvalid,
)
from surehand.activities.ledger.history.reads import knows_run
from surehand.activities.ledger.runs.tenant_cell import cell_of_tenant
from surehand.process.settings import OwnCell
from surehand.workflows.errors import ErrorType
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.names import NO_RUNS
from surehand.workflows.ports import OPEN_RUN


class LedgerGuard(Interceptor):
    """Says ``LedgerLost`` where an activity fails because nothing is recorded of its run.

    Every write belongs to the run's row, so nothing has been called under a ledger that lost it.
    """

    def __init__(self, ledger: Ledger, cell: OwnCell | None = None) -> None:
        """Guard a ledger's activities.

        Args:
            ledger: The ledger.
            cell: The worker's, where there are several.
        """
        self._ledger = ledger
        self._cell = cell

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap the activities of this worker."""
        return _Guarded(next, self._ledger, self._cell)


class _Guarded(ActivityInboundInterceptor):
    def __init__(
        self, next: ActivityInboundInterceptor, ledger: Ledger, cell: OwnCell | None
    ) -> None:
        super().__init__(next)
        self._ledger = ledger
        self._cell = cell

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            if self._cell is not None:
                await self._require_own(self._cell)
            return await super().execute_activity(input)
        except (ApplicationError, LedgerUnavailable):
            raise
        except TenantInvalid as error:
            raise stop(ErrorType.RUN_ID_INVALID, str(error)) from error
        except Exception as error:
            info = activity.info()
            run_id = info.workflow_id or ""
            # Before the run is recorded, nobody knows it.
            first = info.activity_type == OPEN_RUN.name and not isinstance(error, RunNotFound)
            if info.workflow_type in NO_RUNS or first:
                raise
            if await self._ledger.transact(tenant_of_run(run_id), knows_run, run_id):
                raise
            raise stop(
                ErrorType.LEDGER_LOST,
                f"the ledger does not know run {run_id}: its database was replaced or emptied."
                " Nothing is called meanwhile. Restore it from its backup and the run goes on;"
                f" if that cannot be, end it: temporal workflow terminate -w {run_id}",
            ) from error

    async def _require_own(self, cell: OwnCell) -> None:
        """See that the work is of this worker's cell.

        Raises:
            ApplicationError: A run of another cell is to begin here.
            LedgerUnavailable: One that has begun is handed to the wrong worker; a right one, or
                this one with the right file, goes on with it.
        """
        info = activity.info()
        run_id = info.workflow_id or ""
        tenant = tenant_of_run(run_id)
        problem = cell.problem(tenant)
        begins = info.activity_type == OPEN_RUN.name
        if begins and problem is None:
            # The file may be wrong, or old: another ledger may know the tenant's keys.
            named = await self._ledger.transact(tenant, cell_of_tenant)
            if named is None:
                problem = f"cell {cell.name} does not know tenant {tenant}: `tenant add` adds it"
            elif named != cell.name:
                problem = f"the ledger of cell {cell.name} says: tenant {tenant} is of cell {named}"
        if problem is None:
            return
        if begins and not await self._ledger.transact(tenant, knows_run, run_id):
            raise stop(ErrorType.TENANT_ELSEWHERE, problem)
        raise LedgerUnavailable(problem)
