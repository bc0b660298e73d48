"""What a worker looks at now and then: gauges, and which tenants there are.

Each worker asks the ledger for its epoch and rounds of retention, because nobody else is
always there to be asked for metrics. It asks the Temporal server for tenants, because row-level
security lists none. A worker knows the tenants that it has worked for. After a start it would know
of none, and nobody would remind the people whose runs wait just now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.effects.epochs import current
from surehand.activities.ledger.retention.hiding import read_last_round
from surehand.activities.worker.metrics import Metrics
from surehand.workflows.identity import (
    DEFAULT_TENANT,
    tenant_of_run,
    tenant_problem,
)
from surehand.workflows.names import IS_RUN, TENANT

log = structlog.get_logger()

#: Short beside the time after which an alert is raised.
MEASURE_EVERY: Final = timedelta(minutes=1)
#: New tenants are heard of when they have a worker run something; this is for what waits.
LEARN_EVERY: Final = timedelta(minutes=5)
#: Most tenants that a query leaves out, and queries of one round.
_MOST: Final = 200
#: Runs looked at for one of them: normally the first one is.
_MOST_LOOKED_AT: Final = 1000


async def repeat(
    work: Callable[[], Awaitable[object]], every: timedelta, stopping: asyncio.Event, failed: str
) -> None:
    """Do work again and again until the worker stops; ``failed``: the log's word for a failure."""
    while not stopping.is_set():
        try:
            await work()
        except (LedgerUnavailable, RPCError) as error:
            log.warning(failed, error=str(error))
        except Exception:
            log.exception(failed)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), every.total_seconds())


async def measure(ledger: Ledger, metrics: Metrics) -> None:
    """Measure all of it once. Raises ``LedgerUnavailable``."""
    epoch = await ledger.transact(DEFAULT_TENANT, current)
    metrics.epoch(0 if epoch is None else epoch.number)
    rounds = [
        await ledger.transact(one, read_last_round) for one in {DEFAULT_TENANT, *ledger.tenants}
    ]
    metrics.retention([one for one in rounds if one is not None])


async def keep_measuring(ledger: Ledger, metrics: Metrics, stopping: asyncio.Event) -> None:
    """Measure again and again until the worker stops."""
    work = partial(measure, ledger, metrics)
    await repeat(work, MEASURE_EVERY, stopping, "gauges.not_measured")


async def learn(server: Client, ledger: Ledger) -> int:
    """Have a ledger know the tenants of open runs, and return how many were new."""
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
    await repeat(partial(learn, server, ledger), LEARN_EVERY, stopping, "tenants.not_learnt")
