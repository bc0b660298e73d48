"""Holding a lease while a call lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog

from surehand.activities.tools.failures import CallStopped
from surehand.process import clock

log = structlog.get_logger()
T = TypeVar("T")

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

    Args:
        renew: Extends the lease in the ledger, and returns when its transaction began, by
            ``clock.now()``; ``None`` says that it is not ours any more.
        lease: The lease's time limit.
        every: How often to renew it.
        since: When the transaction began that got the lease, by ``clock.now()``.
        margin: How long before its end a call under it is stopped.
    """
    ended = asyncio.Event()
    kept = KeptLease(lease.total_seconds(), since, margin.total_seconds())
    kept.renewing = asyncio.create_task(_keep(kept, renew, every.total_seconds(), ended))
    try:
        yield kept
    finally:
        ended.set()
        # Awaited: no renewal may come after the lease is given back.
        await asyncio.wait({kept.renewing})


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
    attempt may be at work, and this one stops its call.

    Args:
        call: The tool's call.
        leases: What it runs under.
        timeout: Deadline of the call.
        since: ``clock.now()`` that the deadline counts from; ``None`` is now.
        stopped_within: Seconds that a call which is stopped may take to end; ``None`` waits until
            it has.

    Raises:
        LeaseLost: A lease could not be kept.
        DeadlineOver: No answer in time.
        CallCancelled: The call has cancelled itself.
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
    while True:
        try:
            await asyncio.wait_for(ended.wait(), timeout=every)
            return
        except TimeoutError:
            pass
        try:
            began = await renew()
            if began is None:
                return
            state.renewed = began
        except Exception as error:
            # The next round tries again; the call is stopped when the lease may be over.
            log.warning("lease.not_renewed", error=str(error))
