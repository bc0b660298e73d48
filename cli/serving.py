"""What verbs that serve over HTTP share: where they listen, and how they are served."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
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


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


#: Returns an ASGI application; it is told its URL, once others reach it.
AppAt = Callable[[str], Any]


@dataclass(frozen=True)
class Served:
    """An ASGI application, and where it listens."""

    app_at: AppAt
    option: str
    """The one that has the address."""
    address: tuple[str, int]
    """Host and port; 0 is any free one."""


async def serve_apps(*served: Served) -> None:
    """Serve ASGI applications, each at an address of its own, until Ctrl-C ends all of them."""
    import uvicorn

    with ExitStack() as opened:
        sockets = [opened.enter_context(_listen(one.option, *one.address)) for one in served]
        ports = [socket.getsockname()[1] for socket in sockets]
        if len(set(ports)) < len(ports):
            # By its port a request is told apart.
            raise WrongUse(f"{served[-1].option}: it needs a port of its own")
        apps: dict[int, Any] = {}
        config = uvicorn.Config(
            _by_port(apps),
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_REQUESTS * len(served),
            timeout_graceful_shutdown=5,
        )
        # One server for all of them: a signal ends it once, and no other one is left half ended.
        server = uvicorn.Server(config)
        # Its own handlers are there only once it has begun. Before, a signal was told as an error.
        server.capture_signals = nullcontext  # type: ignore[assignment,method-assign]
        with _ended_by_signals(server.handle_exit):
            for one, port in zip(served, ports, strict=True):
                apps[port] = one.app_at(f"http://{in_url(one.address[0])}:{port}")
            await server.serve(sockets=sockets)


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


def _by_port(apps: Mapping[int, Any]) -> Any:
    """Return an application that is another one at each port on which it is reached."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        # The socket's own port, which nothing that is sent can change. What begins and ends the
        # process has none.
        reached = scope.get("server") if scope["type"] != "lifespan" else None
        chosen = next(iter(apps.values())) if reached is None else apps[reached[1]]
        await chosen(scope, receive, send)

    return app


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(option: str, host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise NotReachable(f"{option} {host}:{port}: {error.strerror or error}") from error
