"""How processes and verbs end: the exit codes, and the errors that carry them.

The codes are an API: scripts branch on them. ``--help`` and
``docs/reference/commands.md`` list them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NoReturn, Self

if TYPE_CHECKING:
    from surehand.workflows.contracts.approvals import Verdict
    from surehand.workflows.contracts.base import Unreadable
    from surehand.workflows.plan.references import PlanError

#: Exit code of a command whose last output could not be written (EX_IOERR of sysexits.h).
OUTPUT_LOST: Final = 74


def leave(code: int) -> NoReturn:
    """End this process now, with this exit code and no other.

    The Temporal SDK runs threads, which can abort the interpreter while it shuts
    down: a command that did its job then ends with 134 or 139 (4 to 13 % of short client
    processes). So every main that used a Temporal client or worker ends here: logs and standard
    streams are flushed, then the process leaves without the interpreter's shutdown.

    Nothing registered with ``atexit`` runs and no ``finally`` block of a caller does: close
    what needs closing (worker, database) before.
    """
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            # A process started with `>&-` has no such stream.
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            pass
        except (OSError, ValueError):  # A full disk; a stream that was closed before.
            code = code or OUTPUT_LOST
    os._exit(code)


def end_by_signal_in_order() -> None:
    """Let SIGTERM and a closed terminal end this process as Ctrl-C does: its children are stopped.

    SIGINT is set, too, because shells start background processes with it ignored. A terminal that
    closes does not end what was started with ``nohup``.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    for number in (signal.SIGTERM, *(() if stays else (signal.SIGHUP,))):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


class ExitCode(IntEnum):
    """Exit codes of the starter, each with its meaning as ``--help`` and the reference tell it."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    DONE = 0, "done; `start`: the server has the run, and keeps it until a worker takes it"
    UNEXPECTED = 1, "an error in Surehand; `--debug` shows it"
    WRONG_USE = 2, "wrong use, an invalid plan, not found, a refused decision"
    BROKEN = 3, "an audit, `stats` or a drill found a break, or a drill missed a point"
    NOT_REACHABLE = 4, "the server, a worker or the database does not answer"
    UNANSWERED = 5, "sent, but no worker has answered; it counts as soon as one is back"
    HUMAN_NEEDED = 10, "a human is needed"
    FAILED = 20, "the run failed"
    CANCELLED = 30, "the run was cancelled"
    OUTPUT_LOST = OUTPUT_LOST, "the output could not be written"
    # The code that timeout(1) uses; 128 and the number of SIGINT, or of SIGPIPE, as shells have it.
    OUT_OF_TIME = 124, "`--timeout` is over; the run goes on"
    INTERRUPTED = 130, "Ctrl-C"
    OUTPUT_CLOSED = 141, "the reader of the output has gone"


class SurehandError(Exception):
    """What was asked cannot be done: one sentence, and the exit code of a verb.

    Example:
        >>> error = WrongUse("refund.yaml: no such file")
        >>> isinstance(error, SurehandError), str(error), int(error.code)
        (True, 'refund.yaml: no such file', 2)
    """

    code: ExitCode = ExitCode.UNEXPECTED

    def __init__(self, message: str, *, code: ExitCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def lines(self) -> list[str]:
        """Return what is printed, usually one line."""
        return [str(self)]


class WrongUse(SurehandError):
    """The request is impossible: a wrong name, a file that is not there, a run that has ended.

    Example:
        >>> try:
        ...     await client.start("nowhere.yaml")
        ... except WrongUse as error:
        ...     int(error.code)
        2
    """

    code = ExitCode.WRONG_USE


class NotFound(WrongUse):
    """There is no such thing in this tenant."""


class NoSuchRun(NotFound):
    """There is no such run in this tenant.

    Example:
        >>> try:
        ...     await client.run("refund-404").state()
        ... except NoSuchRun as error:
        ...     int(error.code)
        2
    """


class NeverTakenUp(WrongUse):
    """The run has ended before a worker saw it: it knows nothing of itself."""


class Refused(WrongUse):
    """The run refuses the message, and says why.

    Example:
        >>> try:
        ...     await run.answer("sent twice")  # it asks for an approval, not for an answer
        ... except Refused as error:
        ...     int(error.code)
        2
    """


class DecisionRefused(Refused):
    """A decision does not count; ``verdict`` says why.

    Example:
        >>> [request] = (await run.view()).pending
        >>> old = SeenRequest(approval_id=request.approval_id, params_hash="sha256:" + "0" * 64)
        >>> try:
        ...     await run.approve(old)
        ... except DecisionRefused as refused:
        ...     refused.verdict.code
        <VerdictCode.WRONG_HASH: 'wrong_hash'>
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.approval_id}: {verdict.message} ({verdict.code})")
        self.verdict = verdict


class StartNotTaken(WrongUse):
    """The worker does not open the run: nothing proves who has started it, or it is another's.

    Or its tenant has as many open runs as its quota allows.

    Example:
        >>> run = await client.start("refund.yaml")  # unsigned, where only signed starts count
        >>> try:
        ...     await run.taken_up()
        ... except StartNotTaken as error:
        ...     int(error.code)
        2
    """


class PlanRefused(WrongUse):
    """The plan is not valid: each problem with file, path and reason.

    Example:
        >>> try:
        ...     await client.start({"steps": [{"id": "pay", "tol": "shop.pay"}]})
        ... except PlanRefused as refused:
        ...     refused.lines
        ["plan: steps.0 (pay).tol: unknown field; did you mean 'tool'?"]
    """

    def __init__(self, file: str, problems: Sequence[PlanError]) -> None:
        super().__init__(f"{file}: the plan is not valid")
        self.file = file
        self.problems = list(problems)

    @property
    def lines(self) -> list[str]:
        """Return ``file: path: reason`` for each problem."""
        return [f"{self.file}: {problem.where}: {problem.reason}" for problem in self.problems]


class CutOff(SurehandError):
    """The server has ended the run (terminated, or timed out). The run has undone nothing.

    Example:
        >>> await temporal.get_workflow_handle(run.run_id).terminate()
        >>> try:
        ...     await run.wait()
        ... except CutOff as error:
        ...     int(error.code)
        20
    """

    code = ExitCode.FAILED


class NotReachable(SurehandError):
    """A server, worker or database does not answer.

    Example:
        >>> try:
        ...     await Client.connect(user="uma")  # TEMPORAL_ADDRESS is where no server is
        ... except NotReachable as error:
        ...     int(error.code)
        4
    """

    code = ExitCode.NOT_REACHABLE


class NoWorker(NotReachable):
    """The server answers, but no worker does. Nothing was sent.

    Example:
        >>> try:
        ...     await run.cancel()
        ... except NoWorker as error:
        ...     int(error.code)
        4
    """


class TaskFails(NoWorker):
    """A worker takes the run up, and its code fails there: nobody can answer for it."""


class OutOfReach(SurehandError):
    """The run's answer is in an artifact store that this program cannot reach.

    Example:
        >>> issubclass(OutOfReach, SurehandError), int(OutOfReach.code)
        (True, 4)
    """

    code = ExitCode.NOT_REACHABLE

    def __init__(self, what: str, payload: Unreadable) -> None:
        super().__init__(f"{what}: {payload}")
        self.payload = payload


class OutputLost(SurehandError):
    """A file that was asked for cannot be written."""

    code = ExitCode.OUTPUT_LOST


class Unanswered(SurehandError):
    """The message was sent, and no worker has answered. It counts once a worker is back.

    Example:
        >>> error = Unanswered("run refund-7: sent; it counts once a worker is back")
        >>> isinstance(error, SurehandError), int(error.code)
        (True, 5)
    """

    code = ExitCode.UNANSWERED


class Left(Unanswered):
    """With ``leave=True``: nobody has answered. The message counts once a worker is back.

    Example:
        >>> try:
        ...     await run.cancel(leave=True)
        ... except Left as left:
        ...     left.run_id == run.run_id
        True
    """

    code = ExitCode.DONE

    def __init__(self, message: str, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id
