"""Which tenants there are: row-level security lists none, so the Temporal server is asked.

A worker knows the tenants that it has worked for. After a start it would know of none, and nobody
would remind the people whose runs wait just now.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import Ledger
from surehand.workflows.identity import (
    DEFAULT_TENANT,
    tenant_of_run,
    tenant_problem,
)
from surehand.workflows.names import IS_RUN, TENANT

log = structlog.get_logger()

#: New tenants are heard of when they have a worker run something; this is for what waits.
EVERY: Final = timedelta(minutes=5)
#: Most tenants that a query leaves out, and queries of one round.
_MOST: Final = 200
#: Runs looked at for one of them: normally the first one is.
_MOST_LOOKED_AT: Final = 1000


async def learn(server: Client, ledger: Ledger) -> int:
    """Have a ledger know the tenants of open runs, and return how many were new.

    Raises:
        RPCError: The server is away.
    """
    before = len(ledger.tenants)
    for _ in range(_MOST):
        known = sorted({DEFAULT_TENANT, *ledger.tenants})[:_MOST]
        conditions = [IS_RUN, "ExecutionStatus = 'Running'"]
        conditions += [f"{TENANT.name} != '{tenant}'" for tenant in known]
        # Where not all that are known can be left out, all the others are looked at.
        all_left_out = {DEFAULT_TENANT, *ledger.tenants} == set(known)
        most = _MOST_LOOKED_AT if all_left_out else None
        found = set[str]()
        async for run in server.list_workflows(" AND ".join(conditions), limit=most):
            tenant = tenant_of_run(run.id)
            # Anybody can start a workflow under any name: the others' runs are found beside it.
            if tenant_problem(tenant) is None and tenant not in {DEFAULT_TENANT, *ledger.tenants}:
                found.add(tenant)
                if all_left_out:
                    break  # The next query leaves it out.
        ledger.tenants |= found
        if not found:
            break
    return len(ledger.tenants) - before


async def keep_learning(server: Client, ledger: Ledger, stopping: asyncio.Event) -> None:
    """Learn of tenants again and again until the worker stops."""
    while not stopping.is_set():
        try:
            await learn(server, ledger)
        except RPCError as error:
            log.warning("tenants.not_learnt", error=error.message)
        except Exception:
            log.exception("tenants.not_learnt")
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), EVERY.total_seconds())
