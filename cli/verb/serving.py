"""What verbs that serve over HTTP share: where they listen, and how they are served."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from surehand.process.exits import NotReachable, WrongUse

#: Requests at a time; the others are told to come later.
MOST_REQUESTS: Final = 100

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>\d{1,5})"
)


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        WrongUse: The text is no address; the option that has it is named.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise WrongUse(f"{option} {text}: it looks like 127.0.0.1:8000, or [::1]:8000")
    return match["six"] or match["host"], int(match["port"])


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve_app(app_at: Callable[[str], Any], option: str, address: tuple[str, int]) -> None:
    """Serve an ASGI application until Ctrl-C ends it.

    Args:
        app_at: Returns the application; it is told its URL, once others reach it.
        option: The one that has the address.
        address: Host and port; 0 is any free one.

    Raises:
        NotReachable: It cannot listen there.
    """
    import uvicorn

    with _listen(option, *address) as opened:
        config = uvicorn.Config(
            app_at(f"http://{in_url(address[0])}:{opened.getsockname()[1]}"),
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_REQUESTS,
            timeout_graceful_shutdown=5,
        )
        with suppress(KeyboardInterrupt):
            await uvicorn.Server(config).serve(sockets=[opened])


def in_url(host: str) -> str:
    """Return a host as URLs have it."""
    return f"[{host}]" if ":" in host else host


def _listen(option: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise NotReachable(f"{option} {host}:{port}: {error.strerror or error}") from error
