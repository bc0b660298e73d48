"""Child processes that write to a file and never outlive the program that started them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cli.process import Guard

#: Seconds that a child may take to end in good order after SIGTERM.
STOP_S: Final = 10.0


class Child:
    """One child process; leaving its ``with`` block stops it by its pid."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, name: str
    ) -> None:
        """Start the process.

        Args:
            command: What to run.
            environment: All of its environment.
            folder: Where it runs, and where its output goes.
            name: The output's file name, without suffix.
        """
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C reaches us only, and we stop the children in order.
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard = Guard(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return how it ended (``-9``: SIGKILL), or ``None`` while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return what it has printed so far."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """End it in good order and wait; no-op when it has ended."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.dismiss()
