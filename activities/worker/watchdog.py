"""The watchdog: a call that cannot be stopped at its deadline takes its worker down.

Everything that is believed about a lost call rests on its deadline: after it, and the tool's settle
time, "not found" is taken for proof; once the lease of a resource is over, others may have it. A
tool that blocks the event loop, or that swallows its cancellation, would go on past that and apply
its effect later. What changes nothing outside (a read, a lookup, a precondition, a health check) is
watched as well: it would keep all calls of its worker from going on. A thread of its own watches,
because the event loop cannot watch itself; a dead worker is recovered from, a late effect is not.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NoReturn

from surehand.process import clock

#: How often it looks.
INTERVAL: Final = 0.1  # seconds
#: How long after its deadline a call may take to end, at most: its cancellation, a busy machine.
GRACE: Final = timedelta(seconds=2)
_SAID_WITHIN: Final = 0.2  # seconds
#: The worker's exit code (EX_SOFTWARE of sysexits.h).
EXIT_CODE: Final = 70


def grace(settle: timedelta | None) -> timedelta:
    """Return how long after its deadline a call may take to end.

    Less than the tool's settle time: once that is over, nobody expects the effect any more.
    """
    return GRACE if settle is None else min(GRACE, settle / 2)


@dataclass
class Watchdog:
    """Knows the deadlines of the calls under way."""

    _deadlines: dict[int, tuple[Callable[[], float], str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: int = 0

    @contextmanager
    def watching(self, what: str, deadline: Callable[[], float]) -> Iterator[None]:
        """Watch a call for as long as the block lasts.

        ``deadline`` tells when it must have ended, by ``clock.now()``. Another thread asks it again
        and again, because a lease that is renewed moves it.
        """
        with self._lock:
            self._next += 1
            number = self._next
            self._deadlines[number] = (deadline, what)
        try:
            yield
        finally:
            with self._lock:
                del self._deadlines[number]

    @asynccontextmanager
    async def watched(self, what: str, timeout: timedelta) -> AsyncIterator[None]:
        """End the block after a time, and watch that it does; for what is called without a lease.

        Raises ``TimeoutError``.
        """
        must_end = clock.now() + (timeout + GRACE).total_seconds()
        with self.watching(what, lambda: must_end):
            async with asyncio.timeout(timeout.total_seconds()):
                yield

    def overdue(self, now: float) -> str | None:
        """Return a call that should have ended, or ``None``."""
        with self._lock:
            for deadline, what in self._deadlines.values():
                if now >= deadline():
                    return what
        return None

    def start(self) -> None:
        """Begin to watch, in a thread that ends with the process."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(INTERVAL)
            try:
                what = self.overdue(clock.now())
            except Exception as error:
                _end(f"the watchdog cannot tell a deadline any more: {error!r}; the worker ends")
            if what is not None:
                _end(f"{what} did not end at its deadline; the worker ends instead")


def _end(why: str) -> NoReturn:
    # Past the logging system: its locks may be held by what hangs. In a thread: nobody may read.
    try:
        saying = threading.Thread(target=_say, args=(f"surehand: {why}\n",), daemon=True)
        saying.start()
        saying.join(_SAID_WITHIN)
    finally:
        os._exit(EXIT_CODE)


def _say(line: str) -> None:
    with suppress(Exception):  # It may be closed.
        os.write(sys.stderr.fileno(), line.encode())
