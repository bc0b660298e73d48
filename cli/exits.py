"""How a verb ends: the exit codes, and the errors that carry them.

The codes are an API: scripts branch on them. The README and ``--help`` list them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from cli.process import OUTPUT_LOST
from workflows.contracts import PlanError, RunState
from workflows.payload_codec import Unreadable


class ExitCode(IntEnum):
    """Exit codes of the starter; ``MEANINGS`` says what each means."""

    DONE = 0
    UNEXPECTED = 1
    WRONG_USE = 2
    BROKEN = 3
    NOT_REACHABLE = 4
    UNANSWERED = 5
    HUMAN_NEEDED = 10
    FAILED = 20
    CANCELLED = 30
    OUTPUT_LOST = OUTPUT_LOST
    """EX_IOERR of sysexits.h."""
    OUT_OF_TIME = 124
    """The code that timeout(1) uses."""
    INTERRUPTED = 130
    """128 + SIGINT, as shells have it."""
    OUTPUT_CLOSED = 141
    """128 + SIGPIPE: whoever read our output has gone (``| head``)."""


#: As ``--help`` and the README tell them.
MEANINGS: Final = {
    ExitCode.DONE: "done; `start`: the server has the run, and keeps it until a worker is there",
    ExitCode.UNEXPECTED: "a mistake of ours; `--debug` shows it",
    ExitCode.WRONG_USE: "wrong use, an invalid plan, not found, a refused decision",
    ExitCode.BROKEN: "an audit, `stats` or a drill found a break, or a drill missed a point",
    ExitCode.NOT_REACHABLE: "the server, a worker or the database does not answer",
    ExitCode.UNANSWERED: "sent, but no worker has answered; it counts as soon as one is back",
    ExitCode.HUMAN_NEEDED: "a human is needed",
    ExitCode.FAILED: "the run failed",
    ExitCode.CANCELLED: "the run was cancelled",
    ExitCode.OUTPUT_LOST: "the output could not be written",
    ExitCode.OUT_OF_TIME: "`--timeout` is over, the run goes on",
    ExitCode.INTERRUPTED: "Ctrl-C",
    ExitCode.OUTPUT_CLOSED: "the reader of the output has gone",
}


#: What ``--wait`` exits with when the run stands there; other states are not an end.
OF_STATE: Final = {
    RunState.COMPLETED: ExitCode.DONE,
    RunState.FAILED: ExitCode.FAILED,
    RunState.CANCELLED: ExitCode.CANCELLED,
    RunState.WAITING_APPROVAL: ExitCode.HUMAN_NEEDED,
    RunState.NEEDS_INTERVENTION: ExitCode.HUMAN_NEEDED,
    RunState.PAUSED_PERMISSION: ExitCode.HUMAN_NEEDED,
    RunState.PAUSED_USER: ExitCode.HUMAN_NEEDED,
    RunState.WAITING_INPUT: ExitCode.HUMAN_NEEDED,
    RunState.PAUSED_BUDGET: ExitCode.HUMAN_NEEDED,
    RunState.PAUSED_FAILURE: ExitCode.HUMAN_NEEDED,
    RunState.WAITING_EVENT: ExitCode.HUMAN_NEEDED,
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


class NeverTakenUp(WrongUse):
    """The run has ended before a worker saw it: it knows nothing of itself."""


class Refused(WrongUse):
    """The run has looked at what was sent and does not take it."""


class StartNotTaken(WrongUse):
    """The worker does not open the run: nothing proves who has started it, or it is another's."""


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


class OutOfReach(StarterError):
    """What a run says is in an artifact store that cannot be reached from here."""

    code = ExitCode.NOT_REACHABLE

    def __init__(self, what: str, payload: Unreadable) -> None:
        super().__init__(f"{what}: {payload}")
        self.payload = payload


class OutputLost(StarterError):
    """A file that was asked for cannot be written."""

    code = ExitCode.OUTPUT_LOST


class Unanswered(StarterError):
    """Something was sent, and no worker has answered: it counts later."""

    code = ExitCode.UNANSWERED
