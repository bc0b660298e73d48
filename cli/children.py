"""Child processes that write to a file and never outlive the program that started them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cli.exits import ExitCode, NotReachable, StarterError
from cli.process import Guard

#: Seconds that a child may take to end in good order after SIGTERM.
STOP_S: Final = 10.0
#: Seconds until a child has to be ready; it takes two, and several on a loaded machine.
READY_S: Final = 60.0
_POLL_S: Final = 0.05
#: What a child of ours says is wrong is wrong with us, too.
_THEIRS: Final = {code.value: code for code in (ExitCode.WRONG_USE, ExitCode.NOT_REACHABLE)}


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

    def last_line(self) -> str:
        """Return the last line that it has printed."""
        return (self.output().strip().splitlines() or ["it said nothing"])[-1]

    def wait_for(self, ready: Callable[[], Any]) -> Any:
        """Wait until ``ready`` returns something, and return that.

        Raises:
            StarterError: It has ended with an error; the message holds its last line.
            NotReachable: It was not ready in time.
        """
        deadline = time.monotonic() + READY_S
        while not (found := ready()):
            if self.returncode:
                told = f"{self.log.stem} ended with {self.returncode}: {self.last_line()}"
                raise StarterError(told, code=_THEIRS.get(self.returncode))
            if time.monotonic() > deadline:
                raise NotReachable(f"{self.log.stem} was not ready within {READY_S:.0f} s")
            time.sleep(_POLL_S)
        return found

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL) and wait; no-op when it has ended."""
        self._process.kill()
        self._process.wait()
        self._guard.dismiss()

    def stop(self) -> None:
        """End it in good order and wait; no-op when it has ended."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.dismiss()
