"""The process of a service: it listens, and serves until it is stopped or a command ends."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from surehand.examples.shop.faults import Connections

#: Seconds that requests in flight get when a service is stopped; a slow one may be told to take
#: minutes, and nobody waits for those.
GRACE_S: Final = 1


class CannotListen(Exception):
    """A port cannot be had; the message says why."""


class AnnouncingServer(uvicorn.Server):
    """Says where it listens once it does: whoever started it reads the port from that line."""

    def __init__(self, config: uvicorn.Config, name: str) -> None:
        super().__init__(config)
        self._name = name

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then print the address."""
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            print(f"{self._name} listening on http://{host}:{port}", flush=True)


class ServerBeside(uvicorn.Server):
    """Serves while a command runs that is told where, such as by ``SHOP_URL``."""

    def run_beside(self, command: list[str], listener: socket.socket, variable: str) -> int:
        """Run the command and return its exit code."""
        host, port = listener.getsockname()[:2]
        environment = {**os.environ, variable: f"http://{host}:{port}"}
        with subprocess.Popen(command, env=environment) as self._running:
            threading.Thread(target=self._stop_with_it, daemon=True).start()
            self.run(sockets=[listener])
            code = self._running.wait()
        return code if code >= 0 else 128 - code

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stay until the command has tidied up; Ctrl-C has reached it, too."""
        if sig != signal.SIGINT:
            self._running.terminate()

    def _stop_with_it(self) -> None:
        self._running.wait()
        self.should_exit = True


def parser_of(name: str, port: int, description: str | None) -> argparse.ArgumentParser:
    """Return the options that every service takes; ``port`` is where it listens by default."""
    program = f"python -m surehand.examples.{name}"
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=port, help="0 takes a free one")
    parser.add_argument("--db", type=Path, default=Path(f"{name}.sqlite"), help="SQLite file")
    parser.add_argument("command", nargs="*", help="after --: what runs while it does")
    return parser


def listening(name: str, host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        why = f"{name}: it cannot listen on {host}, port {port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            why = f"Port {port} on {host} is taken: stop what listens there, or name another"
            why += f" ({option})"
        raise CannotListen(why) from error


def serve(
    name: str, options: argparse.Namespace, build: Callable[[Path, Connections], Starlette]
) -> int:
    """Serve until it is stopped, or while the command of the options runs; return the exit code."""
    try:
        listener = listening(name, options.host, options.port)
    except CannotListen as error:
        print(error, file=sys.stderr)
        return 1
    options.db.parent.mkdir(parents=True, exist_ok=True)
    connections = Connections()
    config = uvicorn.Config(
        build(options.db, connections),
        host=options.host,
        port=options.port,
        http=connections.protocol(),
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
    )
    with listener, contextlib.suppress(KeyboardInterrupt):
        if options.command:
            variable = f"{name.upper()}_URL"
            return ServerBeside(config).run_beside(options.command, listener, variable)
        AnnouncingServer(config, name).run(sockets=[listener])
    return 0
