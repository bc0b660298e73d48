"""What becomes of a call whose tenant has used up a quota."""

from __future__ import annotations

from surehand.activities.activity_errors import stop
from surehand.activities.ledger.quotas.limits import OverQuota
from surehand.workflows.contracts.tools import QuotaNeeded
from surehand.workflows.errors import ErrorType


def require_queue(found: OverQuota, tool: str) -> None:
    """Make sure that what is over the tenant's quotas waits.

    Raises:
        ApplicationError: ``QuotaExceeded``: it is rejected, and proven not to have been called.
    """
    if found.over == "reject":
        raise stop(ErrorType.QUOTA_EXCEEDED, f"{tool}: over the tenant's quota, {found.wait.text}")


def quota_needed(found: OverQuota, tool: str, attempts: int) -> QuotaNeeded:
    """Return the outcome of a call that is over a quota.

    Raises:
        ApplicationError: As ``require_queue`` does.
    """
    require_queue(found, tool)
    return QuotaNeeded(wait=found.wait, attempts=attempts)
