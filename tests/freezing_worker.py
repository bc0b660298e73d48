"""A worker that freezes at its crash point, as a stopped machine would; SIGCONT wakes it up.

A process of its own: what freezes a worker inside a test's process freezes the test, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from temporalio.worker import ExecuteActivityInput

from surehand import worker
from surehand.activities.worker.context import CrashInterceptor
from surehand.activities.worker.crash_points import Crash, CrashPoint
from surehand.process.exits import leave
from surehand.workflows.contracts.tools import Batch

#: What it says when the call is about to begin. It waits for ``GO_ON`` in its folder then, so that
#: it can be told before to take no more work, which would be lost with it.
CALLS: Final = "freezing_worker: calls"
GO_ON: Final = "go_on"
#: What it says when it freezes.
FREEZES: Final = "freezing_worker: freezes"


class Freeze(Crash):
    """Stops this process where a crash would kill it."""

    def at(self, tool: str, step: str, point: CrashPoint) -> None:
        if self._is(tool, step, point):
            print(FREEZES, flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)


class Gate(CrashInterceptor):
    """Holds the call that will freeze until it may go on."""

    async def around(self, input: ExecuteActivityInput, call: Callable[[], Awaitable[Any]]) -> Any:
        batch = input.args[0]
        if isinstance(batch, Batch) and batch.first.tool.name == self.crash.tool:
            print(CALLS, flush=True)
            while not Path(GO_ON).exists():
                await asyncio.sleep(0.02)
        return await super().around(input, call)


if __name__ == "__main__":
    worker.Crash, worker.CrashInterceptor = Freeze, Gate  # type: ignore[misc]
    leave(worker.main())
