"""Runs pytest, in memory if there is room, and ends with its exit code.

Tests commit so often that a disk would be what they wait for. They kill processes, never the
machine: what a dead process has written stays in memory as it does on a disk.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from surehand.process.exits import leave

MEMORY = Path("/dev/shm")
#: Bytes; a whole run writes half of it.
ROOM = 4 << 30
#: With its process in the name: what that one has left, because a test failed, goes with the next.
PREFIX = "surehand-tests-"


def work_in_memory() -> Path | None:
    """Let temporary files lie in memory; return their folder, or ``None`` if they do not."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return None
    for left in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(left, ignore_errors=True)
    found = os.statvfs(MEMORY)
    # Containers may have one that runs no programs; tests install some.
    if found.f_bavail * found.f_frsize < ROOM or found.f_flag & os.ST_NOEXEC:
        return None
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # as /tmp: PostgreSQL is another user, if this is root
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    return folder


# Without it each process compiles all tests, and all that they start, again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A quarter of the processor's time is that of Temporal's servers. Each takes a sixth less if it
# looks for garbage seldom and runs one thread at a time, beside all the other processes.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("GOMAXPROCS", "1")
folder = work_in_memory()
code = int(pytest.main(sys.argv[1:]))
if folder is not None and code == 0:
    shutil.rmtree(folder, ignore_errors=True)
# The SDK's threads could spoil the exit code.
leave(code)
