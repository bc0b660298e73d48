"""Starts the worker as a process of its own, and ends it the hard way."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from surehand.process.children import Child, clean_environment, fork_server

ROOT: Final = Path(__file__).parent.parent
WORKER: Final = str(ROOT / "worker.py")

#: Seconds until a worker that a drill kills, or that was told to stop, has to be gone.
ENDED_S: Final = 120.0


class WorkerProcess(Child):
    """One ``python worker.py``. Use it in a ``with`` statement: it never outlives its block."""

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        program: Sequence[str] = (WORKER,),
        python: Path = Path(sys.executable),
    ) -> None:
        """Start the process.

        Args:
            environment: Its settings; the user's own are kept away from it.
            folder: Where it runs and where its log goes, which is appended to.
            program: What Python runs.
            python: Of which environment.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # In the folder, so that no .env of the user's is read.
        own = {"PYTHONUNBUFFERED": "1", **environment}
        command = [str(python), *program]
        plain = command[:2] == [sys.executable, WORKER]
        super().__init__(
            command,
            environment=clean_environment(own),
            log=folder / "worker.log",
            server=fork_server("surehand.worker") if plain else None,
        )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            # pytest shows what a failing test has printed.
            print(f"--- {self.log}\n{self.output()}")
        self.kill()

    def wait_ready(self) -> Self:
        self.wait_said("worker.ready")
        return self

    def wait_killed(self, timeout_s: float = ENDED_S) -> None:
        """Wait until it has killed itself at its crash point."""
        code = self.wait_exit(timeout_s)
        assert code == -signal.SIGKILL, f"the worker ended with {code}" + self._why()

    def wait_exit(self, timeout_s: float = ENDED_S) -> int:
        """Wait until it has ended by itself and return its exit code."""
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {timeout_s} s" + self._why()) from None

    @property
    def killed(self) -> bool:
        return self.returncode == -signal.SIGKILL

    def limit(self, what: int, soft: int) -> None:
        """Set one of its resource limits, such as ``resource.RLIMIT_FSIZE``."""
        _, hard = resource.prlimit(self.pid, what)
        resource.prlimit(self.pid, what, (soft, hard))

    def memory(self) -> int:
        """Return its address space in bytes."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[0]
        return int(pages) * resource.getpagesize()

    def _why(self) -> str:
        return f"; its log {self.log} ends with:\n{self.output()[-4000:]}"
