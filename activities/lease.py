"""Holding a lease while a call lasts, and speaking to Temporal meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from temporalio import activity

from activities.failures import CutOff
from activities.ledger.store import LedgerUnavailable

T = TypeVar("T")

#: A third of the time after which Temporal takes this worker for dead.
HEARTBEAT_EVERY: Final = 1.0  # seconds


class LeaseLost(CutOff):
    """The lease ran out or was taken over while the call lasted: its outcome is unknown."""


class CallCancelled(CutOff):
    """The tool ended with a cancellation of its own: its outcome is unknown."""


class DeadlineOver(CutOff):
    """The call did not answer within its deadline: its outcome is unknown."""


@dataclass
class _Lease:
    renewed: float


async def hold(
    call: Awaitable[T],
    renew: Callable[[], Awaitable[bool]],
    *,
    lease: timedelta,
    every: timedelta,
    timeout: timedelta,
    claimed: float | None = None,
) -> T:
    """Await a call within its deadline, renewing its lease beside it.

    The attempt judges itself by its own monotonic clock: once the lease may have run out, another
    attempt may be at work, and this one stops its call.

    Args:
        call: The tool's call.
        renew: Extends the lease in the ledger; ``False`` says that it is not ours any more.
        lease: The lease's time limit.
        every: How often to renew it.
        timeout: Deadline of the call.
        claimed: ``time.monotonic()`` before the claim was asked for, which lease and deadline
            count from; ``None`` is now.

    Raises:
        LeaseLost: The lease could not be kept.
        DeadlineOver: No answer in time.
    """
    start = time.monotonic() if claimed is None else claimed
    state = _Lease(renewed=start)
    ended = asyncio.Event()
    running = asyncio.ensure_future(call)
    renewing = asyncio.create_task(_keep(state, renew, every.total_seconds(), ended))
    try:
        while True:
            expiry = state.renewed + lease.total_seconds()
            deadline = start + timeout.total_seconds()
            left = min(expiry, deadline) - time.monotonic()
            if left > 0 and not renewing.done():
                await asyncio.wait(
                    {running, renewing}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
            if running.cancelled():
                raise CallCancelled("the tool cancelled itself")
            if running.done():
                return running.result()
            if renewing.done():
                raise LeaseLost("the lease was taken over while the call lasted")
            if time.monotonic() >= deadline:
                raise DeadlineOver(f"no answer within {timeout.total_seconds():g} s")
            if time.monotonic() >= state.renewed + lease.total_seconds():
                raise LeaseLost("the lease could not be renewed: the ledger is away")
    finally:
        ended.set()
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=1)
        # Awaited, not cancelled: a transaction that is cut off costs its connection.
        await asyncio.wait({renewing})


async def _keep(
    state: _Lease, renew: Callable[[], Awaitable[bool]], every: float, ended: asyncio.Event
) -> None:
    """Renew until told to end; returns early when the lease is not ours any more."""
    while True:
        try:
            await asyncio.wait_for(ended.wait(), timeout=every)
            return
        except TimeoutError:
            pass
        asked = time.monotonic()
        try:
            if not await renew():
                return
            state.renewed = asked
        except LedgerUnavailable:
            # The next round tries again; `hold` stops the call when the lease may be over.
            continue


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Tell Temporal that this attempt is alive, for as long as the block lasts."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_EVERY)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
