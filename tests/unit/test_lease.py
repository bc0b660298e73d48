"""A lease is kept beside the call; an attempt that cannot keep it stops its call by its own clock.

Nothing here waits for time to pass: calls and renewals wait for one another by events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from surehand.activities.effects.leases import (
    DeadlineOver,
    LeaseLost,
    call_within,
    keeping,
)
from surehand.activities.ledger.core.engine import LedgerUnavailable
from surehand.process import clock

LONG = timedelta(hours=1)
#: Short enough that a test need not wait, long enough that the loop turns.
TINY = timedelta(milliseconds=5)


class Call:
    """A call that lasts until it is told to end, and remembers being stopped."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.stopped = False

    async def __call__(self) -> str:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        return "receipt"


@pytest.fixture
async def call() -> Call:
    return Call()


async def held(
    call: Callable[[], Awaitable[Any]],
    renew: Callable[[], Awaitable[float | None]],
    *,
    lease: timedelta = LONG,
    timeout: timedelta = LONG,
) -> Any:
    async with keeping(renew, lease=lease, every=TINY, since=clock.now()) as its_lease:
        return await call_within(call(), [its_lease], timeout=timeout)


async def kept() -> float:
    return clock.now()


async def test_the_lease_is_renewed_for_as_long_as_the_call_lasts(call: Call) -> None:
    renewals = 0

    async def renew() -> float | None:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            call.may_end.set()
        return clock.now()

    assert await held(call, renew) == "receipt"
    assert renewals == 3
    assert not call.stopped


async def test_a_lease_that_was_taken_over_stops_the_call(call: Call) -> None:
    async def renew() -> float | None:
        return None

    with pytest.raises(LeaseLost, match="taken over"):
        await held(call, renew)
    assert call.stopped


async def test_a_lease_that_may_be_over_stops_the_call(
    call: Call,
) -> None:
    async def renew() -> float | None:
        raise LedgerUnavailable("away")

    with pytest.raises(LeaseLost, match="the ledger is away"):
        await held(call, renew, lease=4 * TINY)
    assert call.stopped


async def test_a_ledger_that_comes_back_in_time_keeps_the_lease(call: Call) -> None:
    """Whatever it says meanwhile."""
    answers = iter([LedgerUnavailable("away"), DBAPIError("", {}, Exception("odd")), True])

    async def renew() -> float | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        call.may_end.set()
        return clock.now()

    assert await held(call, renew) == "receipt"


async def test_a_lease_counts_from_when_its_renewal_began() -> None:
    """In between it has waited for its turn."""
    renewed, began = asyncio.Event(), clock.now() + 60

    async def renew() -> float:
        renewed.set()
        return began

    async with keeping(renew, lease=LONG, every=TINY, since=clock.now()) as resource:
        await renewed.wait()
    assert resource.over_at() == began + LONG.total_seconds()


async def test_a_call_that_does_not_answer_by_its_deadline_is_stopped(call: Call) -> None:
    with pytest.raises(DeadlineOver, match=r"0\.005 s"):
        await held(call, kept, timeout=TINY)
    assert call.stopped


async def test_a_call_whose_answer_arrives_with_the_loss_of_its_lease_is_answered() -> None:
    async def renew() -> float | None:
        return None

    async def at_once() -> str:
        return "receipt"

    async with keeping(renew, lease=LONG, every=timedelta(0), since=clock.now()) as lease:
        assert await call_within(at_once(), [lease], timeout=LONG) == "receipt"


async def test_what_the_call_raises_is_raised_and_the_renewing_has_ended(call: Call) -> None:
    renewing = asyncio.Event()

    async def renew() -> float | None:
        renewing.set()
        return clock.now()

    async def failing() -> str:
        await renewing.wait()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await held(failing, renew)
    assert len(asyncio.all_tasks()) == 1


async def test_a_call_under_several_leases_is_stopped_when_one_of_them_is_lost(call: Call) -> None:
    async def taken_over() -> float | None:
        return None

    limits: dict[str, Any] = {"lease": LONG, "every": TINY, "since": clock.now()}
    async with keeping(kept, **limits) as ours, keeping(taken_over, **limits) as lost:
        with pytest.raises(LeaseLost, match="taken over"):
            await call_within(call(), [ours, lost], timeout=LONG)
        assert ours.lost() is None
    assert call.stopped


async def test_a_call_is_stopped_by_a_margin_before_others_may_have_its_lease(call: Call) -> None:
    async with keeping(kept, lease=LONG, every=LONG, since=clock.now(), margin=LONG) as resource:
        with pytest.raises(LeaseLost):
            await call_within(call(), [resource], timeout=LONG)
        assert clock.now() < resource.over_at()


async def test_a_call_that_goes_on_although_it_is_stopped_is_waited_for_under_its_leases() -> None:
    may_end = asyncio.Event()
    renewals = 0

    async def stubborn() -> str:
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            await may_end.wait()
        return "late"

    async def renew() -> float | None:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            may_end.set()
        return clock.now()

    async with keeping(renew, lease=LONG, every=2 * TINY, since=clock.now()) as resource:
        with pytest.raises(DeadlineOver):
            await call_within(stubborn(), [resource], timeout=TINY, stopped_within=None)
        assert renewals == 3
