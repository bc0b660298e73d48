"""Runs the verbs of a page as copies of a starter that has loaded them all.

To load a verb takes a second of a core, and the pages have five hundred of them. README, tutorial
and run-it.md start each of theirs as their reader does; so do all pages what they start in the
background, and what they feed.

As a program, this is what their shell calls instead of `surehand`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final

#: Names the socket.
SOCKET: Final = "TESTS_QUICK_STARTER"
#: For a page's shell, which has the socket's name. A verb that is fed is one of its own.
QUICK: Final = f"""
quick() {{
    if [ /dev/stdin -ef /dev/null ]; then
        python -I -S '{__file__}' surehand "$@"
    else
        surehand "$@"
    fi
}}
"""


@contextmanager
def quick_starter(folder: Path) -> Iterator[dict[str, str]]:
    """Fork verbs for whoever asks; yields the variables by which a page's shell does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        Thread(target=_accept, args=(listener,), name="quick starter", daemon=True).start()
        yield {SOCKET: str(folder / "socket")}
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            asking, _ = listener.accept()
        except OSError:
            return
        Thread(target=_serve, args=(asking,), daemon=True).start()


def _serve(asking: socket.socket) -> None:
    """Fork a verb, say how it has ended, and kill it if nobody waits for that any more."""
    from surehand.process.children import can_fork
    from tests.cli.starter import loaded

    with asking, asking.makefile() as lines:
        asked: dict[str, Any] = json.loads(lines.readline())
        if not can_fork(asked["environment"]):
            return
        outputs = Path(f"/proc/{asked['pid']}/fd")
        process = loaded().start(
            asked["arguments"],
            environment=asked["environment"],
            folder=Path(asked["folder"]),
            log=outputs / "1",
            errors=outputs / "2",
        )

        def tell() -> None:
            asking.sendall(f"{process.wait()}\n".encode())

        Thread(target=tell, daemon=True).start()
        lines.read()  # returns once the program below has ended
        process.send_signal(signal.SIGKILL)


def ask() -> None:
    asked = {
        "pid": os.getpid(),
        "arguments": sys.argv[1:],
        "environment": {name: text for name, text in os.environ.items() if name != SOCKET},
        "folder": os.getcwd(),
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[SOCKET])
        server.sendall(json.dumps(asked).encode() + b"\n")
        code = server.makefile().readline()
    if not code:
        os.execvp("surehand", sys.argv[1:])
    os._exit(int(code) % 256)


if __name__ == "__main__":
    ask()
