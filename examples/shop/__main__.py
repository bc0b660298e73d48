"""``python -m examples.shop``: runs the shop until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import socket
from pathlib import Path
from typing import Final

import uvicorn

from examples.shop.app import build
from examples.shop.connections import Connections

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


def main() -> None:
    """Run the shop."""
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090, help="0 takes a free one")
    parser.add_argument("--db", type=Path, default=Path("shop.sqlite"), help="SQLite file")
    options = parser.parse_args()
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
    with (
        socket.create_server((options.host, options.port)) as listener,
        contextlib.suppress(KeyboardInterrupt),
    ):
        AnnouncingServer(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
