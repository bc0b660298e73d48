"""A notifier's own thread: whatever it does there, no run and no other notifier waits for it."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

from activities.notifications import SEND_LIMIT, NotDelivered, Notification, Notifier


class Courier:
    """Has one notifier send, in a thread with an event loop of its own, within a limit.

    A notifier of the user's may block, and swallow its cancellation. Then its attempts count as
    failed, and its thread ends with the process.
    """

    def __init__(self, name: str, notifier: Notifier, limit: timedelta = SEND_LIMIT) -> None:
        self._notifier, self._limit = notifier, limit
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=f"notifier {name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def send(self, notification: Notification) -> None:
        """Have it sent.

        Raises:
            NotDelivered: It was not, or not within the limit.
        """
        sending = asyncio.run_coroutine_threadsafe(self._send(notification), self._loop)
        try:
            async with asyncio.timeout(self._limit.total_seconds()):
                await asyncio.wrap_future(sending)
        except TimeoutError as error:
            limit = f"{self._limit.total_seconds():g} s"
            raise NotDelivered(f"it was not sent within {limit}") from error

    async def _send(self, notification: Notification) -> None:
        try:
            await self._notifier.send(notification)
        except NotDelivered:
            raise
        except BaseException as error:
            # SystemExit and a cancellation, too: they would go on into the worker's own loop.
            raise NotDelivered(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """End the thread, unless its notifier blocks it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)
