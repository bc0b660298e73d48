"""Counts requests as they arrive and end, and lets tests wait for them instead of sleeping."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Traffic:
    """Requests by endpoint since the process started."""

    def __init__(self) -> None:
        self._received: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._change = asyncio.Event()

    @contextmanager
    def request(self, endpoint: str) -> Iterator[None]:
        """Count a request as in flight while the block runs."""
        self._received[endpoint] += 1
        self.changed()
        try:
            yield
        finally:
            self._finished[endpoint] += 1
            self.changed()

    def received(self, endpoint: str) -> int:
        """Return how many requests have arrived."""
        return self._received[endpoint]

    def finished(self, endpoint: str) -> int:
        """Return how many requests have ended, answered or not."""
        return self._finished[endpoint]

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Return the counts of every endpoint that was called."""
        return {
            endpoint: {
                "received": received,
                "in_flight": received - self._finished[endpoint],
                "finished": self._finished[endpoint],
            }
            for endpoint, received in sorted(self._received.items())
        }

    def changed(self) -> None:
        """Wake everybody who waits, to look again."""
        self._change.set()
        self._change = asyncio.Event()

    async def wait_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``reached`` holds; ``False`` if it does not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    await self._change.wait()
        except TimeoutError:
            return False
        return True
