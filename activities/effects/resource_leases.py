"""Holding what a call must have for itself: acquired before its claim, freed after its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.lease import KeptLease, keeping
from surehand.activities.ledger.core.store import (
    Ledger,
    LedgerUnavailable,
    Transaction,
    Turn,
)
from surehand.activities.ledger.effects import resource_leases as leases
from surehand.activities.ledger.effects.resource_leases import (
    Busy,
    Lease,
    LeaseRequest,
)
from surehand.activities.tools.tool import Tool
from surehand.activities.worker.attempt import Attempt
from surehand.activities.worker.context import WorkerContext
from surehand.process import clock
from surehand.workflows.contracts.batches import WAITS_FOR
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.errors import ErrorType
from surehand.workflows.identity import DEFAULT_TENANT

log = structlog.get_logger()

#: How often a waiting attempt looks whether a resource is free.
_LOOK_EVERY: Final = 0.2  # seconds
#: Pause before the attempt after one that has waited in vain.
BUSY_PAUSE: Final = timedelta(seconds=1)
#: Two renewals may fail before a lease is lost.
_RENEWALS: Final = 3
#: This part of a lease is for a call that is stopped to end in, before others may have it.
_MARGIN: Final = 10
#: After that many the lease is left to run out.
_RELEASE_TRIES: Final = 3
_DATABASE_PAUSE: Final = 0.25  # seconds
#: Leases that are freed in one transaction.
_BATCH: Final = 100


@dataclass(frozen=True)
class HeldResources:
    """The resources that one attempt holds; none for a tool that names none."""

    leases: tuple[Lease, ...] = ()
    kept: tuple[KeptLease, ...] = ()
    """One for all leases: they are renewed together."""

    def lost(self) -> str | None:
        """Return why nothing may be called under these leases any more, or ``None``."""
        return next((reason for kept in self.kept if (reason := kept.lost())), None)

    def must_end(self, deadline: float) -> float:
        """Return when a call must have ended: at its deadline, or when others may begin."""
        return min([deadline, *(kept.over_at() for kept in self.kept)])

    def fencing_tokens(self) -> dict[str, int]:
        """Return the fencing token of each resource."""
        return {lease.resource: lease.fencing_token for lease in self.leases}

    def mark(self, tx: Transaction, run_id: str) -> None:
        """Say in an outcome's events which resources were lost before it was written."""
        outcome = [e for e in tx.pending[run_id] if e.type.startswith(("effect.", "step."))]
        gone = leases.lost(tx, self.leases) if outcome else []
        for event in outcome if gone else []:
            event.body["resources_lost"] = gone


NO_RESOURCES: Final = HeldResources()


@asynccontextmanager
async def hold_resources(
    worker: WorkerContext,
    tool: Tool,
    names: tuple[str, ...],
    call: ToolCall | Compensate,
    attempt: Attempt,
) -> AsyncIterator[HeldResources]:
    """Hold the resources of a call for as long as the block lasts.

    Nothing is held between attempts, nor by a lookup outside of a call. An undo holds its own
    tool's resources.

    Raises:
        ApplicationError: ``ResourceBusy``; retryable, counts for no class of failures.
        LedgerUnavailable: The database is away.
    """
    if not names:
        yield NO_RESOURCES
        return
    before = call.attempts_before if isinstance(call, ToolCall) else 0
    limit = tool.resource_lease or worker.resource_lease
    request = LeaseRequest(
        tenant=call.tenant,
        run_id=call.run_id,
        step_id=call.step_id,
        tool=tool.name,
        resources=names,
        holder=attempt.holder,
        attempt=before + attempt.number,
        lease=limit,
    )
    wait = worker.resource_wait if tool.resource_wait is None else tool.resource_wait
    since, held = await _acquire(worker.ledger, request, wait, attempt)

    def renewed(tx: Transaction) -> float | None:
        return tx.began if leases.renew(tx, held, limit) else None

    async def renew() -> float | None:
        until, _ = await worker.ledger.run_transaction(
            call.tenant, renewed, Turn.RENEWAL, limit / 2
        )
        return until

    try:
        async with keeping(
            renew, lease=limit, every=limit / _RENEWALS, since=since, margin=limit / _MARGIN
        ) as kept:
            yield HeldResources(held, (kept,))
    finally:
        await _release(worker.ledger, call.tenant, held)


async def _acquire(
    ledger: Ledger, request: LeaseRequest, wait: timedelta, attempt: Attempt
) -> tuple[float, tuple[Lease, ...]]:
    """Return the leases, and when the transaction began that got them, by ``clock.now()``."""

    def acquire(tx: Transaction) -> tuple[float, tuple[Lease, ...] | Busy]:
        return tx.began, leases.acquire(tx, request, waited)

    asked, before = clock.now(), attempt.doing.text
    waited: timedelta | None = None
    try:
        while True:
            began, found = await ledger.transact(request.tenant, acquire)
            if not isinstance(found, Busy):
                return began, found
            waited = timedelta(seconds=clock.now() - asked)
            if waited >= wait:
                await ledger.transact(request.tenant, leases.refuse, request, found, waited)
                message = f"{request.tool}: {found}"
                type_ = ErrorType.RESOURCE_BUSY.value
                raise ApplicationError(message, type=type_, next_retry_delay=BUSY_PAUSE)
            attempt.doing.text = f"{WAITS_FOR}{found}"
            await asyncio.sleep(min(_LOOK_EVERY, (wait - waited).total_seconds()))
    finally:
        attempt.doing.text = before


async def _release(ledger: Ledger, tenant: str, held: tuple[Lease, ...]) -> None:
    for _ in range(_RELEASE_TRIES):
        try:
            await ledger.run_transaction(tenant, lambda tx: leases.release(tx, held), Turn.OUTCOME)
            return
        except LedgerUnavailable as error:
            # What the attempt has come to stands already: it is not failed for this.
            log.warning("ledger.unavailable", error=str(error), holding="resources")
            await asyncio.sleep(_DATABASE_PAUSE)


async def free_leases(ledger: Ledger, tenant: str) -> int:
    """Free a tenant's resources whose lease ran out, and return how many."""
    total = 0
    while True:
        freed = await ledger.transact(tenant, leases.free_expired, _BATCH)
        total += freed
        if freed < _BATCH:
            return total


async def keep_freeing(ledger: Ledger, every: timedelta, stopping: asyncio.Event) -> None:
    """Free the leases of all tenants that this worker has worked for, until it stops."""
    while not stopping.is_set():
        for tenant in sorted({DEFAULT_TENANT, *ledger.tenants}):
            try:
                await free_leases(ledger, tenant)
            except LedgerUnavailable as error:
                log.warning("ledger.unavailable", error=str(error), holding="resources")
            except Exception:
                log.exception("resource.free_failed", tenant=tenant)
        try:
            await asyncio.wait_for(stopping.wait(), timeout=every.total_seconds())
        except TimeoutError:
            continue
