"""What verbs that serve over HTTP share: where they listen, and how they are served."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from surehand.process.exits import NotReachable, WrongUse

#: Requests at a time; the others are told to come later.
MOST_REQUESTS: Final = 100

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>\d{1,5})"
)


def parse_address(option: str, text: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise WrongUse(f"{option} {text}: it looks like 127.0.0.1:8000, or [::1]:8000")
    return match["six"] or match["host"], int(match["port"])


async def serve_app(app_at: Callable[[str], Any], option: str, address: tuple[str, int]) -> None:
    """Serve an ASGI application until Ctrl-C ends it; it is made once its URL is known.

    ``option`` is the one that has the address; as its port, 0 is any free one.
    """
    import uvicorn

    with _open_socket(option, *address) as listening:
        url = f"http://{in_url(address[0])}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            "",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_REQUESTS,
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        # Its own handlers are there only once it has begun. Before, a signal was told as an error.
        server.capture_signals = nullcontext  # type: ignore[assignment,method-assign]
        with _ended_by_signals(server.handle_exit):
            # It tells its URL: whoever reads that may end it at once.
            config.app = app_at(url)
            await server.serve(sockets=[listening])


@contextmanager
def _ended_by_signals(end: Callable[[int, None], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, end, number, None)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _open_socket(option: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise NotReachable(f"{option} {host}:{port}: {error.strerror or error}") from error
