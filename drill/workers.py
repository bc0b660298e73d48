"""The workers of one case: started, replaced, and watched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Final, Self

from surehand.drill.environment import READY, worker
from surehand.process.children import Child
from surehand.process.exits import SurehandError

#: Seconds between looks at whether a worker has died: the error of a recovery time.
_DEATH_PAUSE: Final = 0.02
#: Seconds that a worker has to end its calls in, once it is thawed.
_THAWED_S: Final = 30.0


class Workers:
    """Workers that share a ledger and a task queue; leaving its ``with`` block kills them."""

    def __init__(
        self, variables: Mapping[str, str], folder: Path, settings: Mapping[str, str], once: Path
    ) -> None:
        """Prepare the workers of a case.

        Args:
            variables: The workers'.
            folder: Where they run.
            settings: More of their settings, by names without prefix.
            once: The file that a worker makes when it dies as it was told to.
        """
        self._variables = variables
        self._folder = folder
        self._settings = settings
        self._once = once
        self._alive: list[Child] = []
        self._frozen: list[Child] = []
        self._started = 0
        self.died_at: float | None = None
        """When a worker was seen to be dead or frozen, by this process's monotonic clock."""
        self._death = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in (*self._alive, *self._frozen):
            one.kill()

    @property
    def killed(self) -> bool:
        """Return whether a worker has killed or frozen itself, as it was told to."""
        return self._once.exists()

    async def start(self, count: int = 1, changes: Mapping[str, str] | None = None) -> None:
        """Start workers and wait until they take work.

        Args:
            count: How many.
            changes: Settings in which they differ from the others.
        """
        settings = {**self._settings, **(changes or {})}
        new = []
        for _ in range(count):
            self._started += 1
            name = f"worker-{self._started}"
            new.append(worker(self._variables, self._folder, name, **settings))
            self._alive.append(new[-1])
        for one in new:
            await asyncio.to_thread(one.wait_said, READY)

    async def replace(self) -> None:
        """Kill all of them (SIGKILL), then start one more: nothing is left in any memory."""
        gone, self._alive = self._alive, []
        for one in gone:
            one.kill()
        await self.start()

    async def death(self) -> None:
        """Wait until a worker has died or frozen as it was told to; somebody has to watch."""
        await self._death.wait()

    async def thaw(self) -> None:
        """Let a frozen worker go on, and end in good order."""
        for one in self._frozen:
            one.signal(Signals.SIGCONT)
            await asyncio.to_thread(one.stop, within=_THAWED_S)

    def _died(self) -> None:
        self.died_at = time.monotonic()
        self._death.set()

    async def watch(self) -> None:
        """See the one death that is meant to be; any other is an error.

        Raises:
            SurehandError: A worker ended that nobody had killed.
        """
        while True:
            if self._settings.get("crash_by") and self.killed and self.died_at is None:
                # Whoever is to be frozen works alone.
                self._frozen, self._alive = self._alive, []
                self._died()
            for one in list(self._alive):
                if one.returncode is None:
                    continue
                meant = one.returncode == -Signals.SIGKILL and self.killed
                if not meant or self.died_at is not None:
                    raise SurehandError(
                        f"{one.log.stem} in {one.log.parent.name} ended by itself with"
                        f" {one.returncode}: {one.last_line()}"
                    )
                self._died()
                self._alive.remove(one)
                one.kill()  # It is dead; nobody has to guard it any more.
            await asyncio.sleep(_DEATH_PAUSE)
