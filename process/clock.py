"""This process's own clock, and the processor time of its threads.

Leases, deadlines and the watchdog are judged by ``now``. It is never set, and it goes on while the
machine is suspended, as the database's clock does. ``time.monotonic`` stands still then (Linux,
macOS), and an attempt that wakes up hours later would take its lease for fresh. A virtual machine
that is paused from outside has no clock at all.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping
from typing import Any

#: Linux has a separate clock that counts suspension; macOS counts it in the one of POSIX.
_ID: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """Return seconds since some time in the past."""
    return time.monotonic() if _ID is None else time.clock_gettime(_ID)


class _Collecting(threading.local):
    began = 0.0
    spent = 0.0


_here = _Collecting()


def _note(phase: str, info: Mapping[str, Any]) -> None:
    if phase == "start":
        _here.began = time.thread_time()
    else:
        _here.spent += time.thread_time() - _here.began


gc.callbacks.append(_note)


def processor_time() -> float:
    """Return the seconds that this thread has used; only their difference says something."""
    return time.thread_time() - _here.spent
