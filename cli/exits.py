"""How a verb ends: the exit codes, and the errors that carry them.

The codes are an API: scripts branch on them. The README lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from workflows.contracts import PlanError, RunState


class ExitCode(IntEnum):
    """Exit codes of the starter."""

    DONE = 0
    UNEXPECTED = 1
    """A mistake of ours; ``--debug`` shows the traceback."""
    WRONG_USE = 2
    """Wrong use, an invalid plan, something that does not exist, a refused decision."""
    BROKEN = 3
    """An audit found a break."""
    NOT_REACHABLE = 4
    """The server, a worker or the database does not answer."""
    HUMAN_NEEDED = 10
    FAILED = 20
    CANCELLED = 30
    OUT_OF_TIME = 124
    """``--timeout`` is over and the run goes on; the code that timeout(1) uses."""
    INTERRUPTED = 130
    """Ctrl-C: 128 + SIGINT, as shells have it."""
    OUTPUT_CLOSED = 141
    """Whoever read our output has gone (``| head``): 128 + SIGPIPE."""


#: What ``--wait`` exits with when the run stands there; other states are not an end.
OF_STATE: Final = {
    RunState.COMPLETED: ExitCode.DONE,
    RunState.FAILED: ExitCode.FAILED,
    RunState.CANCELLED: ExitCode.CANCELLED,
    RunState.WAITING_APPROVAL: ExitCode.HUMAN_NEEDED,
    RunState.NEEDS_INTERVENTION: ExitCode.HUMAN_NEEDED,
}


class StarterError(Exception):
    """A verb cannot do what was asked: one line for the user, and the exit code."""

    code: ExitCode = ExitCode.UNEXPECTED

    def __init__(self, message: str, *, code: ExitCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def lines(self) -> list[str]:
        """Return what is printed, usually one line."""
        return [str(self)]


class WrongUse(StarterError):
    """The command line asks for something that cannot be."""

    code = ExitCode.WRONG_USE


class NotFound(WrongUse):
    """There is no such thing in this tenant."""


class Refused(WrongUse):
    """The run has looked at what was sent and does not take it."""


class PlanRefused(WrongUse):
    """The plan is not valid: each problem with file, path and reason."""

    def __init__(self, file: str, problems: Sequence[PlanError]) -> None:
        super().__init__(f"{file}: the plan is not valid")
        self.file = file
        self.problems = list(problems)

    @property
    def lines(self) -> list[str]:
        """Return ``file: path: reason`` for each problem."""
        return [f"{self.file}: {problem.where}: {problem.reason}" for problem in self.problems]


class NotReachable(StarterError):
    """A server, worker or database does not answer."""

    code = ExitCode.NOT_REACHABLE


class NoWorker(NotReachable):
    """The server answers, but no worker does."""
