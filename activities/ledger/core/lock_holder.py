"""Who holds a SQLite ledger's write lock: a process that was stopped holds everybody else up.

SQLite locks bytes of a file beside the database. The kernel knows which process has them, but
tells only of those on this machine, and in this container.
"""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

#: Where SQLite's format has the lock of the one writer, by the name's end, first byte and length:
#: in WAL mode, and before a ledger was opened for the first time.
_WRITE_LOCKS: Final = (("-shm", 120, 1), ("", 0x40000000, 2))
#: ``struct flock`` of Linux: type, whence, start, length, process.
_FLOCK: Final = "hhqqi"


@dataclass(frozen=True)
class Holder:
    """A process that holds the lock."""

    pid: int
    command: str
    """Its command line; empty where it cannot be read."""
    stopped: bool
    """It was stopped by a signal, or a debugger: it will not go on by itself."""

    def __str__(self) -> str:
        """Return it as part of a sentence."""
        command = f" ({self.command})" if self.command else ""
        return f"process {self.pid}{command}" + (", which is stopped" if self.stopped else "")


def file_of(database_url: str) -> Path:
    """Return the file of a SQLite ledger."""
    return Path(make_url(database_url).database or "")


def lock_holder(file: Path) -> Holder | None:
    """Return the process that holds the write lock of a SQLite file, where it can be known.

    This process must have no connection to the file: closing a file gives up all locks that a
    process has on it.
    """
    if not sys.platform.startswith("linux"):
        return None
    for end, start, length in _WRITE_LOCKS:
        pid = _locked_by(f"{file}{end}", start, length)
        if pid is not None:
            return _holder(pid)
    return None


def _locked_by(file: str, start: int, length: int) -> int | None:
    import fcntl  # not everywhere

    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        found = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind, pid = int(found[0]), int(found[4])
    # No number: a process of another container.
    return None if kind == fcntl.F_UNLCK or pid <= 0 else pid


def _holder(pid: int) -> Holder:
    folder = Path("/proc", str(pid))
    try:
        parts = (folder / "cmdline").read_bytes().split(b"\0")
        # Behind the name in brackets, which may hold anything.
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return Holder(pid, "", stopped=False)
    command = " ".join(part.decode(errors="replace") for part in parts if part)
    return Holder(pid, command, stopped=state in "Tt")
