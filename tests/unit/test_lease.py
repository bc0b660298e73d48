"""A lease is kept beside the call; an attempt that cannot keep it stops its call by its own clock.

Nothing here waits for time to pass: calls and renewals wait for one another by events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from activities.lease import DeadlineOver, LeaseLost, hold
from activities.ledger.engine import LedgerUnavailable

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
    renew: Callable[[], Awaitable[bool]],
    *,
    lease: timedelta = LONG,
    timeout: timedelta = LONG,
) -> Any:
    return await hold(call(), renew, lease=lease, every=TINY, timeout=timeout)


async def kept() -> bool:
    return True


async def test_the_lease_is_renewed_for_as_long_as_the_call_lasts(call: Call) -> None:
    renewals = 0

    async def renew() -> bool:
        nonlocal renewals
        renewals += 1
        if renewals == 3:
            call.may_end.set()
        return True

    assert await held(call, renew) == "receipt"
    assert renewals == 3
    assert not call.stopped


async def test_a_lease_that_was_taken_over_stops_the_call(call: Call) -> None:
    async def renew() -> bool:
        return False

    with pytest.raises(LeaseLost, match="taken over"):
        await held(call, renew)
    assert call.stopped


async def test_a_lease_that_cannot_be_renewed_stops_the_call_when_it_may_be_over(
    call: Call,
) -> None:
    async def renew() -> bool:
        raise LedgerUnavailable("away")

    with pytest.raises(LeaseLost, match="the ledger is away"):
        await held(call, renew, lease=4 * TINY)
    assert call.stopped


async def test_a_ledger_that_comes_back_in_time_keeps_the_lease(call: Call) -> None:
    answers = iter([LedgerUnavailable("away"), LedgerUnavailable("away"), True])

    async def renew() -> bool:
        answer = next(answers)
        if isinstance(answer, LedgerUnavailable):
            raise answer
        call.may_end.set()
        return True

    assert await held(call, renew) == "receipt"


async def test_a_call_that_does_not_answer_by_its_deadline_is_stopped(call: Call) -> None:
    with pytest.raises(DeadlineOver, match=r"0\.005 s"):
        await held(call, kept, timeout=TINY)
    assert call.stopped


async def test_a_call_whose_answer_arrives_with_the_loss_of_its_lease_is_answered() -> None:
    async def renew() -> bool:
        return False

    async def at_once() -> str:
        return "receipt"

    assert await hold(at_once(), renew, lease=LONG, every=timedelta(0), timeout=LONG) == "receipt"


async def test_what_the_call_raises_is_raised_and_the_renewing_has_ended(call: Call) -> None:
    renewing = asyncio.Event()

    async def renew() -> bool:
        renewing.set()
        return True

    async def failing() -> str:
        await renewing.wait()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await held(failing, renew)
    assert len(asyncio.all_tasks()) == 1
