"""MCP servers that begin as copies of one that has loaded the SDK: to load it takes a second.

``python -m tests.mcp.warm SOCKET`` makes them. ``python warm.py SOCKET FOLDER`` is what a client
starts: it hands on its input, output and environment, and ends when the server does. A server whose
program is killed is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import NoReturn

#: Bytes of what is told: a folder and an environment.
_TOLD = 64 * 1024


def hand_on(address: str, folder: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        told = json.dumps({"folder": folder, "environment": dict(os.environ)})
        socket.send_fds(server, [told.encode()], [0, 1, 2])
        os.close(0)
        os.close(1)
        server.recv(1)


def make(address: str) -> NoReturn:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        print("listening", flush=True)
        from tests.mcp import served

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
        while True:
            program, _ = listening.accept()
            if not os.fork():
                listening.close()
                become(program)
                try:
                    served.main()
                finally:
                    os._exit(0)
            program.close()


def become(program: socket.socket) -> None:
    """Take the place of a program."""
    told, handed, *_ = socket.recv_fds(program, _TOLD, 3)
    for number, file in enumerate(handed):
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    as_program = json.loads(told)
    os.environ.clear()
    os.environ.update(as_program["environment"])
    sys.argv = ["served", "stdio", as_program["folder"]]

    def end_with_it() -> None:
        program.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_it, daemon=True).start()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        make(sys.argv[1])
    hand_on(*sys.argv[1:])
