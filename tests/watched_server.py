"""A Temporal server of the tests, which is replaced as soon as it answers nothing any more.

The development server keeps one SQLite connection. If a client is killed, or stops waiting, while
its request is in a statement, that statement can stay open; from then on SQLite answers every other
one with ``interrupted (9)``. The server lives on and serves nobody, with a file as in memory. Tests
kill many clients: without a new server, all later tests of the process would fail, each after its
time limit.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

from surehand.process.dev_server import DevServer

#: What the server logs in this state, and now and then in good health.
SUSPECT: Final = b"interrupted (9)"
#: Seconds between two looks at its log.
_LOOK_S: Final = 1.0
#: Seconds that a healthy server may take to answer on a machine that is very busy.
_ANSWER_S: Final = 20.0


class WatchedServer:
    """A server in memory, on one port; its runs are gone when it is replaced.

    Attributes:
        server: The one that serves now.
        replaced: A line for each that was replaced.
    """

    def __init__(self, cli: Path, log: Path) -> None:
        """Start it.

        Args:
            cli: The Temporal CLI.
            log: Where it writes its warnings.
        """
        self._cli, self._log = cli, log
        self.replaced: list[str] = []
        self.server = self._start(0)
        self._replacing, self._ended = Lock(), Event()
        self._watcher = Thread(target=self._watch_log, name="server's log", daemon=True)
        self._watcher.start()

    def _start(self, port: int) -> DevServer:
        return DevServer.start(cli=self._cli, log_file=self._log, ui_port=None, port=port)

    def close(self) -> None:
        self._ended.set()
        self._watcher.join()
        self.server.kill()  # a good end takes ten seconds

    def _watch_log(self) -> None:
        seen = 0
        while not self._ended.wait(_LOOK_S):
            with self._log.open("rb") as log:
                log.seek(seen)
                new = log.read()
            seen += len(new)
            if SUSPECT in new:
                self.replace_if_silent()

    def replace_if_silent(self) -> None:
        """Ask the server for the number of its runs; replace it if it does not answer."""
        with self._replacing:
            if self._answers():
                return
            port = self.server.port
            self.server.kill()
            self.server = self._start(port)
            self.replaced.append(
                f"The Temporal server on {self.server.address} answered nothing any more, which is"
                f" a fault of its own, and was replaced; see {self._log}"
            )

    def _answers(self) -> bool:
        ask = [self._cli, "workflow", "count", "--address", self.server.address]
        try:
            return subprocess.run(ask, capture_output=True, timeout=_ANSWER_S).returncode == 0
        except subprocess.TimeoutExpired:
            return False
