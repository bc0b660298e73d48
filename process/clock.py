"""This process's own clock: what leases, deadlines and the watchdog are judged by.

It is never set, and it goes on while the machine is suspended, as the database's clock does.
``time.monotonic`` stands still then (Linux, macOS), and an attempt that wakes up hours later would
take its lease for fresh. A virtual machine that is paused from outside has no clock at all.
"""

from __future__ import annotations

import time

#: Linux counts suspension in a clock of its own, macOS in the one that POSIX names.
_ID: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """Return seconds since some time in the past."""
    return time.monotonic() if _ID is None else time.clock_gettime(_ID)
