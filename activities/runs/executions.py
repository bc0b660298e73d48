"""Acting for a run as its newest execution; an attempt of an earlier one is late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from temporalio import activity
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.activity_errors import again
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.steps.executions import ActsElsewhere, take_over
from surehand.workflows.errors import ErrorType

T = TypeVar("T")

#: Before a late attempt is tried again. Temporal tries none whose execution is over.
_LATE_PAUSE: Final = timedelta(seconds=1)


def execution_of(run_id: str) -> str | None:
    """Return the execution of a run that this activity acts for; ``None``: it is not the run's."""
    info = activity.info()
    return info.workflow_run_id if info.workflow_id == run_id else None


async def as_newest(ledger: Ledger, work: Callable[[], Awaitable[T]]) -> T:
    """Do work that only a run's acting execution may do; the newest one takes over first.

    Temporal is asked which one is the newest. An answer that is out of date changes nothing.

    Args:
        ledger: The ledger.
        work: Tried again after ``ActsElsewhere``, if this execution is the newest.

    Raises:
        ApplicationError: ``LeaseHeld``: this execution is over.
    """
    while True:
        try:
            return await work()
        except ActsElsewhere as found:
            await take_over_as_newest(ledger, found)


async def take_over_as_newest(ledger: Ledger, found: ActsElsewhere) -> None:
    """Let the execution act that was refused, if Temporal says that it is the newest.

    Raises:
        ApplicationError: ``LeaseHeld``: it is over.
    """
    if await _newest(found.run_id) != found.mine:
        message = f"execution {found.mine} is over: another one goes on with the run"
        raise again(ErrorType.LEASE_HELD, message, _LATE_PAUSE) from found
    await ledger.transact(found.tenant, take_over, found)


async def _newest(run_id: str) -> str | None:
    """Return the newest execution of a run; ``None``: Temporal does not know the run any more."""
    try:
        return (await activity.client().get_workflow_handle(run_id).describe()).run_id
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
