"""What processes take, as the kernel counts it: memory and processor time."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from surehand.process.children import Child
from surehand.process.exits import SurehandError

_MB: Final = 1_000_000
#: A worker that has not used this much of a core for a second has come to rest.
_AT_REST: Final = 0.05
#: Seconds until it has to be at rest.
_LIMIT: Final = 120.0


class WorkerUse:
    """Looks at one worker from outside."""

    def __init__(self, one: Child) -> None:
        self._worker = one

    async def at_rest(self) -> float:
        """Wait until it does nothing, and return its memory in MB.

        Raises:
            SurehandError: It does not come to rest, or has ended.
        """
        deadline = time.monotonic() + _LIMIT
        used = 1.0
        while used > _AT_REST:
            self.check()
            if time.monotonic() > deadline:
                raise SurehandError(f"the worker does not come to rest: {used:.0%} of a core")
            cpu = self.cpu()
            await asyncio.sleep(1)
            used = self.cpu() - cpu
        return self.memory()

    def check(self) -> None:
        """Look whether it still runs.

        Raises:
            SurehandError: It has ended.
        """
        if self._worker.returncode is not None:
            raise SurehandError(f"the worker has ended: {self._worker.last_line()}")

    def memory(self) -> float:
        """Return its resident memory in MB."""
        pages = int(Path(f"/proc/{self._worker.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / _MB

    def cpu(self) -> float:
        """Return the processor time that it has used, in seconds."""
        fields = Path(f"/proc/{self._worker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def process_with(*words: str) -> int:
    """Return the id of the process whose command has these words one after another.

    Raises:
        SurehandError: There is none.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if any(tuple(command[at : at + len(words)]) == words for at in range(len(command))):
            return int(folder.name)
    raise SurehandError(f"there is no process with {' '.join(words)!r}")


def tree_cpu(pid: int) -> float:
    """Return the processor time of a process and all that it has started, in seconds.

    Those that have ended count at their parent.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            with suppress(OSError):  # ended this moment
                used += tree_cpu(int(child))
    return used
