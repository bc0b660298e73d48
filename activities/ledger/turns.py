"""The order in which the transactions of one process come to its connections.

Renewals and outcomes of calls under way come first, and some connections are kept for them: while
other work, however much, waits for its turn, nobody loses a lease over it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from activities.ledger.engine import CONNECTIONS, KEPT_BACK

#: How long a transaction waits for its turn; then the database counts as away.
PATIENCE = timedelta(seconds=60)


class Turns:
    """As many transactions at once as there are connections, and the rest in two queues."""

    def __init__(self, most: int, kept: int) -> None:
        """Make the queues.

        Args:
            most: Transactions at once.
            kept: Of these, for those that come first alone.
        """
        self._taken = 0
        # By whether they come first.
        self._limits = {True: most, False: most - kept}
        self._queues: dict[bool, deque[asyncio.Future[None]]] = {True: deque(), False: deque()}

    @classmethod
    def of(cls, engine: AsyncEngine) -> Turns:
        """Return the turns of an engine's connections; SQLite has one, for one writer."""
        return cls(1, 0) if engine.dialect.name == "sqlite" else cls(CONNECTIONS, KEPT_BACK)

    @asynccontextmanager
    async def turn(self, *, first: bool) -> AsyncIterator[None]:
        """Wait for a turn and have it for as long as the block lasts.

        Args:
            first: Come before all that do not.

        Raises:
            TimeoutError: There was none in time.
        """
        if self._taken < self._limits[first]:
            self._taken += 1
        else:
            await self._wait(first)
        try:
            yield
        finally:
            self._taken -= 1
            self._call_next()

    async def _wait(self, first: bool) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues[first].append(called)
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await called
        except BaseException:
            if called.done() and not called.cancelled():
                # Called at the moment at which it went away: the turn is the next one's.
                self._taken -= 1
                self._call_next()
            raise

    def _call_next(self) -> None:
        for first in (True, False):
            queue = self._queues[first]
            while queue and self._taken < self._limits[first]:
                called = queue.popleft()
                if not called.done():
                    self._taken += 1
                    called.set_result(None)
