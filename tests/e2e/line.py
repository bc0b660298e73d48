"""A line between a worker and the Temporal server that can go dead (a network partition)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self


class Line:
    """Forwards connections until it is cut; what uses it must not block this event loop.

    Cut, the server sees the connections end, while the worker hears nothing at all: no answer, and
    no end either. Mended, the worker finds its connections broken and may make new ones.
    """

    def __init__(self, target: str) -> None:
        """Prepare a line.

        Args:
            target: The server's ``host:port``.
        """
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._cut = asyncio.Event()
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def to(cls, target: str) -> AsyncIterator[Self]:
        """Listen on a port of its own, in front of a server's."""
        line = cls(target)
        server = await asyncio.start_server(line._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        line.address = f"{host}:{port}"
        try:
            yield line
        finally:
            line.mend()
            server.close()

    def cut(self) -> None:
        self._whole.clear()
        self._cut.set()

    def mend(self) -> None:
        self._cut.clear()
        self._whole.set()

    async def _serve(self, near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        host, port = self._target.rsplit(":", 1)
        far, into = await asyncio.open_connection(host, int(port))
        parts = {
            asyncio.create_task(_forward(near, into)),
            asyncio.create_task(_forward(far, out)),
            asyncio.create_task(self._cut.wait()),
        }
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await _close(into)
            await self._whole.wait()
            await _close(out)


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
