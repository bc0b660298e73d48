"""What is measured now and then, and not counted: epoch, standbys, the rounds of retention.

Each worker asks the ledger, because nobody else is always there to be asked for metrics.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final

import structlog

from surehand.activities.ledger.core.standbys import standbys_of
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.effects.epochs import current
from surehand.activities.ledger.retention.rounds import last
from surehand.activities.worker.metrics import Metrics
from surehand.workflows.identity import DEFAULT_TENANT

log = structlog.get_logger()

#: Short beside the time after which an alert is raised.
EVERY: Final = timedelta(minutes=1)


async def measure(ledger: Ledger, metrics: Metrics) -> None:
    """Measure all of it once.

    Raises:
        LedgerUnavailable: The database is away.
    """
    epoch = await ledger.transact(DEFAULT_TENANT, current)
    metrics.epoch(0 if epoch is None else epoch.number)
    metrics.standbys(await asyncio.to_thread(standbys_of, ledger.engine))
    rounds = [await ledger.transact(one, last) for one in {DEFAULT_TENANT, *ledger.tenants}]
    metrics.retention([one for one in rounds if one is not None])


async def keep_measuring(ledger: Ledger, metrics: Metrics, stopping: asyncio.Event) -> None:
    """Measure again and again until the worker stops."""
    while not stopping.is_set():
        try:
            await measure(ledger, metrics)
        except LedgerUnavailable as error:
            log.warning("gauges.not_measured", error=str(error))
        except Exception:
            log.exception("gauges.not_measured")
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), EVERY.total_seconds())
