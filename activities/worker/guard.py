"""The guard between activities and Temporal: what leaves them where the ledger cannot go on.

It has lost the run, or there can be no such tenant.
"""

from __future__ import annotations

from typing import Any, Final

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
from surehand.workflows.errors import ErrorType
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.names import NO_RUNS
from surehand.workflows.ports import DESCRIBE_TOOLS, OPEN_RUN

#: Before the run is recorded, nobody knows it.
_BEFORE_IT_IS_KNOWN: Final = frozenset({DESCRIBE_TOOLS.name, OPEN_RUN.name})


class LedgerGuard(Interceptor):
    """Says ``LedgerLost`` where an activity fails because nothing is recorded of its run.

    Every write belongs to the run's row, so nothing has been called under a ledger that lost it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap the activities of this worker."""
        return _Guarded(next, self._ledger)


class _Guarded(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, ledger: Ledger) -> None:
        super().__init__(next)
        self._ledger = ledger

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except (ApplicationError, LedgerUnavailable):
            raise
        except TenantInvalid as error:
            raise stop(ErrorType.RUN_ID_INVALID, str(error)) from error
        except Exception as error:
            info = activity.info()
            run_id = info.workflow_id or ""
            first = info.activity_type in _BEFORE_IT_IS_KNOWN and not isinstance(error, RunNotFound)
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
