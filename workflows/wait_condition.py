"""Waiting in workflow code: the same on every Python, because a history may meet a newer one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow


async def comes_true(condition: Callable[[], bool], within: timedelta) -> bool:
    """Wait for a condition, for some time at most; returns whether it holds.

    The SDK's own ``wait_condition(timeout=)`` goes by ``asyncio.wait_for``. Before Python 3.12 that
    takes another turn of the loop, so what a run does next has another order: a run that had begun
    on 3.11 could not go on on 3.12.

    Args:
        condition: The condition; looked at whenever the run has moved.
    """
    over = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(max(within.total_seconds(), 0.001), over.set)
    try:
        await workflow.wait_condition(lambda: over.is_set() or condition())
    finally:
        timer.cancel()
    return condition()
