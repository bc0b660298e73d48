"""A command that believes to be used by a person."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

#: Seconds. The slowest thing waited for takes ten; crowded machines take several times that.
LIMIT_S: Final = 120.0


class Terminal:
    """One command at a terminal of its own."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.text = ""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            wide = {"TERM": "xterm", "COLUMNS": "250", "LINES": "60"}
            os.execvpe(command[0], list(command), {**environment, **wide})

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, words: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            if not self._read():
                raise AssertionError(f"it ended without {words!r}: {self.text}")

    def end(self) -> int:
        """Wait until the command has ended and return its exit code."""
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self) -> bool:
        """Read what is there; ``False`` once the command has ended."""
        ready, _, _ = select.select([self._fd], [], [], 1.0)
        if ready:
            try:
                read = os.read(self._fd, 4096)
            except OSError:  # Linux: the other end has closed
                return False
            self.text += read.decode(errors="replace")
            return bool(read)
        return True
