"""Child processes that write to a file and never outlive the program that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from types import TracebackType
from typing import Any, Final, Self

from surehand.process import ROOT
from surehand.process.ending import Guard
from surehand.process.exits import ExitCode, NotReachable, SurehandError
from surehand.process.fork_server import Forked, ForkServer, can_fork
from surehand.process.program import CALLED_AS, CHECKOUT

#: Seconds that a child may take to end in good order after SIGTERM.
STOP_S: Final = 10.0
#: Seconds until a child has to be ready; it takes two, and several on a loaded machine.
READY_S: Final = 60.0
_POLL_S: Final = 0.02
#: What a child of ours says is wrong is wrong with us, too.
_THEIRS: Final = {code.value: code for code in (ExitCode.WRONG_USE, ExitCode.NOT_REACHABLE)}


def clean_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with these settings in the place of the user's own."""
    ours = ("SUREHAND_", "TEMPORAL_", "SHOP_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    # What is on this machine is reached without a proxy.
    others = {"TEMPORAL_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1,localhost"}
    return {**kept, **others, **settings}


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as this program's own Python does."""
    return [sys.executable, "-m", module, *arguments]


def settings_of_module() -> dict[str, str]:
    """Return what a child needs in its environment to find our modules as this process has."""
    # In the user's folder; a checkout is on no path there.
    path = [*([str(ROOT)] if CHECKOUT else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    called = os.environ.get(CALLED_AS) or sys.argv[0]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", CALLED_AS: called}


class Child:
    """One child process; leaving its ``with`` block stops it by its pid."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str],
        log: Path | None,
        folder: Path | None = None,
        errors: Path | None = None,
        guard: str = "KILL",
        server: ForkServer | None = None,
        **more: Any,
    ) -> None:
        """Start the process.

        Args:
            command: What to run.
            environment: All of its environment.
            log: Where its output is appended; ``None``: it goes where ours goes.
            folder: Where it runs; ``None``: where its log is.
            errors: Where what it says on stderr is appended; ``None``: where its log is.
            guard: The signal that ends it should this process be gone.
            server: Forks it, where it can: the command has Python run the server's module.
            more: What else ``subprocess.Popen`` is told.
        """
        self.log = log or Path(os.devnull)
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        where = folder or (log and log.parent)
        self._process: subprocess.Popen[bytes] | Forked
        if server is not None and log is not None and where is not None and can_fork(environment):
            # Behind Python comes a file, or `-m` and a module.
            called = [os.fspath(one) for one in command[2 if command[1] == "-m" else 1 :]]
            self._process = server.start(
                called, environment=environment, folder=where, log=log, errors=errors or log
            )
        else:
            with ExitStack() as opened:
                out = None if log is None else opened.enter_context(log.open("ab"))
                err = out if errors is None else opened.enter_context(errors.open("ab"))
                # In a session of its own: Ctrl-C reaches us only, we stop the children in order.
                self._process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    cwd=where,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    **more,
                )
        self._guard = Guard(self._process.pid, guard)

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

    @property
    def running(self) -> bool:
        """Say whether it has not ended."""
        return self.returncode is None

    def output(self) -> str:
        """Return what it has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode(errors="replace")

    def last_line(self) -> str:
        """Return the last line that it has printed."""
        return (self.output().strip().splitlines() or ["it said nothing"])[-1]

    def wait_for(self, ready: Callable[[], Any]) -> Any:
        """Wait until ``ready`` returns something, and return that.

        Raises:
            SurehandError: It has ended; the message holds its last line.
            NotReachable: It was not ready in time.
        """
        deadline = time.monotonic() + READY_S
        while True:
            code = self.returncode  # before the look, which then sees all that it has said
            if found := ready():
                return found
            if code is not None:
                told = f"{self.log.stem} ended with {code}: {self.last_line()}"
                raise SurehandError(told, code=_THEIRS.get(code))
            if time.monotonic() > deadline:
                raise NotReachable(f"{self.log.stem} was not ready within {READY_S:.0f} s")
            time.sleep(_POLL_S)

    def wait_said(self, words: str) -> None:
        """Wait until it has printed these words.

        Raises:
            SurehandError: As :meth:`wait_for`.
        """
        self.wait_for(lambda: words in self.output())

    def wait_done(self) -> str:
        """Wait until it has ended well, and return its last line.

        Raises:
            SurehandError: As :meth:`wait_for`.
        """
        self.wait_for(lambda: self.returncode == 0)
        return self.last_line()

    def wait(self, within: float | None = None) -> int:
        """Wait until it has ended by itself and return how; at most so many seconds.

        Raises:
            subprocess.TimeoutExpired: It has not.
        """
        code = self._process.wait(within)
        self._guard.dismiss()
        return code

    def signal(self, number: Signals) -> None:
        """Send it a signal; no-op when it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it and its group as a power cut would (SIGKILL); no-op when it has ended."""
        if self.running:
            try:
                os.killpg(self.pid, SIGKILL)
            except ProcessLookupError:  # Forked this moment: it has no group of its own yet.
                self.signal(SIGKILL)
        self.wait()

    def stop(self, how: Signals = SIGTERM, within: float = STOP_S) -> int:
        """End it in good order and return how it ended; no-op when it has.

        Args:
            how: What it ends by in good order.
            within: Seconds after which it is killed.
        """
        self.signal(how)
        try:
            return self.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()
