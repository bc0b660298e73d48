"""Starts the worker as a process of its own, and ends it the hard way."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cli.process import Guard

ROOT: Final = Path(__file__).parent.parent

#: Seconds until a started worker has to be ready; it takes two, and many on a loaded machine.
READY_S: Final = 60.0
#: Seconds until a worker that a drill kills, or that was told to stop, has to be gone.
ENDED_S: Final = 60.0
_POLL_S: Final = 0.02


class WorkerProcess:
    """One ``python worker.py``. Use it in a ``with`` statement: it never outlives its block."""

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        program: Sequence[str] = (str(ROOT / "worker.py"),),
    ) -> None:
        """Start the process.

        Args:
            environment: Its settings; the user's own are kept away from it.
            folder: Where it runs and where its log goes, which is appended to.
            program: What Python runs.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "worker.log"
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            # In the folder, so that no .env of the user's is read.
            self._process = subprocess.Popen(
                [sys.executable, *program],
                env=_inherited() | dict(environment),
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
        if error is not None and not isinstance(error, GeneratorExit):
            # pytest shows what a failing test has printed.
            print(f"--- {self.log}\n{self.output()}")
        self.kill()

    def output(self) -> str:
        """Return what this process has logged so far."""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode(errors="replace")

    def wait_said(self, words: str, timeout_s: float = READY_S) -> None:
        """Wait until a line of the log holds these words."""
        deadline = time.monotonic() + timeout_s
        while words not in self.output():
            if self._process.poll() is not None:
                raise AssertionError(f"the worker ended ({self._process.returncode})" + self._why())
            if time.monotonic() > deadline:
                raise AssertionError(f"no {words!r} within {timeout_s} s" + self._why())
            time.sleep(_POLL_S)

    def wait_ready(self) -> Self:
        """Wait until it takes work."""
        self.wait_said("worker.ready")
        return self

    def wait_killed(self, timeout_s: float = ENDED_S) -> None:
        """Wait until it has killed itself at its crash point."""
        code = self.wait_exit(timeout_s)
        assert code == -signal.SIGKILL, f"the worker ended with {code}" + self._why()

    def wait_exit(self, timeout_s: float = ENDED_S) -> int:
        """Wait until it has ended by itself and return its exit code."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {timeout_s} s" + self._why()) from None
        self._guard.dismiss()
        return code

    @property
    def killed(self) -> bool:
        """Whether it has ended by SIGKILL."""
        return self._process.poll() == -signal.SIGKILL

    def limit(self, what: int, soft: int) -> None:
        """Set one of its resource limits, such as ``resource.RLIMIT_FSIZE``."""
        _, hard = resource.prlimit(self._process.pid, what)
        resource.prlimit(self._process.pid, what, (soft, hard))

    def memory(self) -> int:
        """Return its address space in bytes."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[0]
        return int(pages) * resource.getpagesize()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL) and wait; no-op when it has ended."""
        self._process.kill()
        self._process.wait()
        self._guard.dismiss()

    def stop(self) -> int:
        """End it in good order (SIGTERM), wait, and return its exit code."""
        self._process.terminate()
        return self.wait_exit()

    def _why(self) -> str:
        return f"; its log {self.log} ends with:\n{self.output()[-4000:]}"


def _inherited() -> dict[str, str]:
    """Return this process's environment without settings of the user's own."""
    ours = ("SUREHAND_", "TEMPORAL_", "SHOP_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return kept | {
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
    }
