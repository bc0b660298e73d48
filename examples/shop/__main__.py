"""``python -m surehand.examples.shop``: runs the shop until it is stopped, or for a command."""

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
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from surehand.examples.shop.app import build
from surehand.examples.shop.connections import Connections

#: Seconds that requests in flight get when the shop is stopped; a slow one may be told to take
#: minutes, and nobody waits for those.
GRACE_S: Final = 1


class AnnouncingServer(uvicorn.Server):
    """Says where it listens once it does: whoever started it reads the port from that line."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then print the address."""
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            print(f"shop listening on http://{host}:{port}", flush=True)


class ServerBeside(uvicorn.Server):
    """Serves while a command runs that finds it at ``SHOP_URL``."""

    def run_beside(self, command: list[str], listener: socket.socket) -> int:
        """Run the command and return its exit code."""
        host, port = listener.getsockname()[:2]
        environment = {**os.environ, "SHOP_URL": f"http://{host}:{port}"}
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


def main() -> int:
    """Run the shop and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m surehand.examples.shop", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090, help="0 takes a free one")
    parser.add_argument("--db", type=Path, default=Path("shop.sqlite"), help="SQLite file")
    parser.add_argument("command", nargs="*", help="after --: what runs while the shop does")
    options = parser.parse_args()
    try:
        listener = socket.create_server((options.host, options.port))
    except OSError as error:
        why = f"shop: it cannot listen on {options.host}, port {options.port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            why = f"Port {options.port} on {options.host} is taken: stop what listens there, or"
            why += " name another (--port)"
        print(why, file=sys.stderr)
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
            return ServerBeside(config).run_beside(options.command, listener)
        AnnouncingServer(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
