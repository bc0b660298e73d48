"""A worker's own HTTP endpoints, answered by its event loop: one that hangs does not answer.

It takes no library: a few paths, no bodies to read, and each connection is closed behind its
answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Final

from surehand.activities.worker.telemetry import AddressError

#: How long a request may take to come in, and bytes of its head.
_REQUEST_PATIENCE: Final = timedelta(seconds=5)
_LONGEST_REQUEST: Final = 8192


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    status: HTTPStatus
    body: bytes
    kind: str = "application/json"

    @classmethod
    def document(cls, status: HTTPStatus, document: Mapping[str, object]) -> Answer:
        """Return a JSON document as an answer."""
        return cls(status, json.dumps(document).encode() + b"\n")


#: What answers at a path.
Answering = Callable[[], Awaitable[Answer]]


@asynccontextmanager
async def answering(what: str, address: str, paths: Mapping[str, Answering]) -> AsyncIterator[None]:
    """Answer whoever asks at an address, for as long as the block lasts; empty: nobody.

    Args:
        what: The setting that names the address.
        address: ``ip:port``.
        paths: What answers at each of them.

    Raises:
        AddressError: It is taken, or not this machine's.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(
            partial(_answer, paths), host.strip("[]"), int(port), limit=_LONGEST_REQUEST
        )
    except OSError as error:
        raise AddressError(what, address, error.strerror or str(error)) from error
    try:
        yield
    finally:
        server.close()


async def _answer(
    paths: Mapping[str, Answering], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        async with asyncio.timeout(_REQUEST_PATIENCE.total_seconds()):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.decode("latin-1").partition(" ")
        answer = await _judge(paths, method, rest.partition(" ")[0].partition("?")[0])
        lines = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.kind}",
            f"Content-Length: {len(answer.body)}",
            "Connection: close",
        )
        shown = b"" if method == "HEAD" else answer.body
        writer.write("\r\n".join([*lines, "", ""]).encode() + shown)
        await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # Whoever has asked so gets no answer.
    finally:
        writer.close()


async def _judge(paths: Mapping[str, Answering], method: str, path: str) -> Answer:
    if method not in ("GET", "HEAD"):
        return Answer.document(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD"})
    if path not in paths:
        error = f"only {' and '.join(paths)}"
        return Answer.document(HTTPStatus.NOT_FOUND, {"error": error})
    return await paths[path]()
