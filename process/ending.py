"""How Surehand's processes end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from typing import Final, NoReturn

#: Exit code of a command whose last output could not be written (EX_IOERR of sysexits.h).
OUTPUT_LOST: Final = 74

_GUARD: Final = 'read -r word || kill -s "$1" "$2"'


def leave(code: int) -> NoReturn:
    """End this process now, with this exit code and no other.

    The Temporal SDK runs threads of its own, which can abort the interpreter while it shuts
    down: a command that did its job then ends with 134 or 139 (4 to 13 % of short client
    processes). So every main that used a Temporal client or worker ends here: logs and standard
    streams are flushed, then the process leaves without the interpreter's shutdown.

    Nothing registered with ``atexit`` runs and no ``finally`` block of a caller does: close
    what needs closing (worker, database) before.

    Args:
        code: The exit code. A success becomes ``OUTPUT_LOST`` if what was printed could not be
            written; a reader that closed the pipe early (``| head``) is no failure.
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


class Guard:
    """Ends a child process when this process is gone, however that ended.

    A shell waits on a pipe whose only write end is held here: the pipe closes when this process
    ends, by SIGKILL too. (Linux's PR_SET_PDEATHSIG would not do: it fires when the *thread*
    that started the child ends.)
    """

    def __init__(self, pid: int, signal_name: str = "KILL") -> None:
        """Start to watch over the child ``pid``."""
        # A session of its own, so that no signal to a whole group takes the guard away first.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", signal_name, str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """The child has ended and its pid may soon be somebody else's; no-op the second time."""
        if self._shell.poll() is None:
            self._shell.communicate(b"done\n")
