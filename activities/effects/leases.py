"""Leases of a call and of its resources: held while the call lasts, and renewed beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog

from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction, Turn
from surehand.activities.ledger.effects import resource_leases as leases
from surehand.activities.ledger.effects.resource_leases import Busy, Lease, LeaseRequest
from surehand.activities.tools.failures import CallStopped
from surehand.activities.tools.tool import Tool
from surehand.activities.worker.context import Attempt, WorkerContext, again
from surehand.process import clock
from surehand.workflows.contracts.effects import Compensate
from surehand.workflows.contracts.tools import WAITS_FOR, ToolCall
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.names import ErrorType

log = structlog.get_logger()
T = TypeVar("T")

#: Seconds between tries to write something that must not be lost.
DATABASE_PAUSE: Final = 0.25
#: How often a call's limits are looked at.
_LOOK_EVERY: Final = 1.0  # seconds


class LeaseLost(CallStopped):
    """The lease ran out or was taken over while the call lasted: its outcome is unknown."""


class CallCancelled(CallStopped):
    """The tool ended with a cancellation of its own: its outcome is unknown."""


class DeadlineOver(CallStopped):
    """The call did not answer within its deadline: its outcome is unknown."""


@dataclass
class KeptLease:
    """A lease that is renewed beside whatever runs under it."""

    limit: float
    """Seconds from a renewal to its end."""
    renewed: float
    """When the transaction of the newest renewal began, by ``clock.now()``."""
    margin: float
    """Seconds before its end at which a call under it is stopped, for the call to end in time."""
    renewing: asyncio.Future[None] = field(init=False)
    """Ends early when the lease is not ours any more."""

    def over_at(self) -> float:
        """Return when others may have it, by ``clock.now()``."""
        return self.renewed + self.limit

    def stop_at(self) -> float:
        """Return when a call under it has to be stopped."""
        return self.over_at() - self.margin

    def lost(self) -> str | None:
        """Return why nothing may go on under this lease, or ``None``."""
        if self.renewing.done():
            return "the lease was taken over while the call lasted"
        if clock.now() >= self.stop_at():
            return "the lease could not be renewed: the ledger is away"
        return None


@asynccontextmanager
async def keeping(
    renew: Callable[[], Awaitable[float | None]],
    *,
    lease: timedelta,
    every: timedelta,
    since: float,
    margin: timedelta = timedelta(0),
) -> AsyncIterator[KeptLease]:
    """Renew a lease for as long as the block lasts.

    ``renew`` extends it in the ledger, and returns when its transaction began, by ``clock.now()``;
    ``None`` says that it is not ours any more. ``since`` is when the transaction began that got it,
    ``margin`` how long before its end a call under it is stopped.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    kept = KeptLease(lease.total_seconds(), since, margin.total_seconds())
    kept.renewing = loop.create_future()
    renewing: asyncio.Task[None] | None = None

    def begin() -> None:
        nonlocal renewing
        renewing = loop.create_task(_keep(kept, renew, every.total_seconds(), ended))
        renewing.add_done_callback(lambda _: kept.renewing.set_result(None))

    # A timer and no task: most calls are over before the first renewal is due.
    first = loop.call_later(every.total_seconds(), begin)
    try:
        yield kept
    finally:
        first.cancel()
        ended.set()
        if renewing is not None:
            # Awaited: no renewal may come after the lease is given back.
            await asyncio.wait({renewing})


async def call_within(
    call: Awaitable[T],
    leases: Sequence[KeptLease],
    *,
    timeout: timedelta,
    since: float | None = None,
    stopped_within: float | None = 1.0,
) -> T:
    """Await a call within its deadline, for as long as all its leases are kept.

    The attempt judges itself by its own monotonic clock: once a lease may have run out, another
    attempt may be at work, and this one stops its call. The deadline counts from ``since``, by
    ``clock.now()``; ``None`` is now. A call that is stopped may take ``stopped_within`` seconds to
    end; ``None`` waits until it has.
    """
    deadline = (clock.now() if since is None else since) + timeout.total_seconds()
    running = asyncio.ensure_future(call)
    try:
        while True:
            left = min([deadline, *(kept.stop_at() for kept in leases)]) - clock.now()
            if left > 0 and not any(kept.renewing.done() for kept in leases):
                waited_for: set[asyncio.Future[Any]] = {running, *(k.renewing for k in leases)}
                # The loop's clock stands still while the machine is suspended: look again soon.
                until = min(left, _LOOK_EVERY)
                await asyncio.wait(waited_for, timeout=until, return_when=asyncio.FIRST_COMPLETED)
            if running.cancelled():
                raise CallCancelled("the tool cancelled itself")
            if running.done():
                return running.result()
            if clock.now() >= deadline:
                raise DeadlineOver(f"no answer within {timeout.total_seconds():g} s")
            for kept in leases:
                if (reason := kept.lost()) is not None:
                    raise LeaseLost(reason)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=stopped_within)


async def _keep(
    state: KeptLease,
    renew: Callable[[], Awaitable[float | None]],
    every: float,
    ended: asyncio.Event,
) -> None:
    """Renew until told to end; returns early when the lease is not ours any more."""
    while not ended.is_set():
        try:
            began = await renew()
            if began is None:
                return
            state.renewed = began
        except Exception as error:
            # The next round tries again; the call is stopped when the lease may be over.
            log.warning("lease.not_renewed", error=str(error))
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), timeout=every)


#: How long a dead call keeps a resource.
_LEASE: Final = timedelta(seconds=30)
#: How long an attempt waits for a busy one before it is tried again later: a part of the attempt,
#: which leaves room for the rest of it.
_WAIT: Final = timedelta(seconds=5)
#: How often a worker frees the resources that dead calls have left behind.
_FREE_EVERY: Final = timedelta(minutes=1)
#: How often a waiting attempt looks whether a resource is free.
_LOOK_FREE_EVERY: Final = 0.2  # seconds
#: Two renewals may fail before a lease is lost.
_RENEWALS: Final = 3
#: This part of a lease is for a call that is stopped to end in, before others may have it.
_MARGIN: Final = 10
#: After that many the lease is left to run out.
_RELEASE_TRIES: Final = 3
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
        return {lease.resource: lease.fencing_token for lease in self.leases}

    def mark(self, tx: Transaction, run_id: str) -> None:
        """Say in an outcome's events which resources were lost before it was written."""
        outcome = [e for e in tx.pending[run_id] if e.type.startswith(("effect.", "step."))]
        gone = leases.find_lost_resources(tx, self.leases) if outcome else []
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
    """
    if not names:
        yield NO_RESOURCES
        return
    before = call.attempts_before if isinstance(call, ToolCall) else 0
    request = LeaseRequest(
        tenant=call.tenant,
        run_id=call.run_id,
        step_id=call.step_id,
        tool=tool.name,
        resources=names,
        holder=attempt.holder,
        attempt=before + attempt.number,
        lease=_LEASE,
    )
    since, held = await _acquire(worker.ledger, request, _WAIT, attempt)

    def renewed(tx: Transaction) -> float | None:
        return tx.began if leases.renew_resources(tx, held, _LEASE) else None

    async def renew() -> float | None:
        until, _ = await worker.ledger.run_transaction(
            call.tenant, renewed, Turn.RENEWAL, _LEASE / 2
        )
        return until

    try:
        async with keeping(
            renew, lease=_LEASE, every=_LEASE / _RENEWALS, since=since, margin=_LEASE / _MARGIN
        ) as kept:
            yield HeldResources(held, (kept,))
    finally:
        await _release(worker.ledger, call.tenant, held)


async def _acquire(
    ledger: Ledger, request: LeaseRequest, wait: timedelta, attempt: Attempt
) -> tuple[float, tuple[Lease, ...]]:
    """Return the leases, and when the transaction began that got them, by ``clock.now()``."""

    def acquire(tx: Transaction) -> tuple[float, tuple[Lease, ...] | Busy]:
        return tx.began, leases.acquire_resources(tx, request, waited)

    asked, before = clock.now(), attempt.doing.text
    waited: timedelta | None = None
    try:
        while True:
            began, found = await ledger.transact(request.tenant, acquire)
            if not isinstance(found, Busy):
                return began, found
            waited = timedelta(seconds=clock.now() - asked)
            if waited >= wait:
                await ledger.transact(
                    request.tenant, leases.record_busy_resource, request, found, waited
                )
                message = f"{request.tool}: {found}"
                raise again(ErrorType.RESOURCE_BUSY, message)
            attempt.doing.text = f"{WAITS_FOR}{found}"
            await asyncio.sleep(min(_LOOK_FREE_EVERY, (wait - waited).total_seconds()))
    finally:
        attempt.doing.text = before


async def _release(ledger: Ledger, tenant: str, held: tuple[Lease, ...]) -> None:
    for _ in range(_RELEASE_TRIES):
        try:
            await ledger.run_transaction(
                tenant, lambda tx: leases.release_resources(tx, held), Turn.OUTCOME
            )
            return
        except LedgerUnavailable as error:
            # What the attempt has come to stands already: it is not failed for this.
            log.warning("ledger.unavailable", error=str(error), holding="resources")
            await asyncio.sleep(DATABASE_PAUSE)


async def free_leases(ledger: Ledger, tenant: str) -> int:
    """Free a tenant's resources whose lease ran out, and return how many."""
    total = 0
    while True:
        freed = await ledger.transact(tenant, leases.free_expired, _BATCH)
        total += freed
        if freed < _BATCH:
            return total


async def keep_freeing(ledger: Ledger, stopping: asyncio.Event) -> None:
    """Free the leases of all tenants that this worker has worked for, until it stops."""
    while not stopping.is_set():
        for tenant in sorted({DEFAULT_TENANT, *ledger.tenants}):
            try:
                await free_leases(ledger, tenant)
            except LedgerUnavailable as error:
                log.warning("ledger.unavailable", error=str(error), holding="resources")
            except Exception:
                log.exception("resource.free_failed", tenant=tenant)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _FREE_EVERY.total_seconds())
