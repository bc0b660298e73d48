"""A way to PostgreSQL that is cut at a COMMIT: nobody knows then whether it happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Final

#: What the driver sends, and what the server answers.
_COMMIT: Final = b"COMMIT;\x00"
_DONE: Final = b"COMMIT\x00"


class Cut(Enum):
    """Where the connection is cut."""

    BEFORE = "before it reaches the server"
    AFTER = "before its answer reaches the client"


class CommitCutter:
    """Forwards connections; once armed, cuts the one on which the next COMMIT is sent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._armed: Cut | None = None
        self._waiting: set[int] = set()
        self.port = 0
        self.cuts = 0

    def arm(self, cut: Cut) -> None:
        """Cut the next COMMIT, once."""
        self._armed = cut

    @classmethod
    @asynccontextmanager
    async def before(cls, port: int) -> AsyncIterator[CommitCutter]:
        """Listen on a port of its own, in front of a server's."""
        cutter = cls(port)
        server = await asyncio.start_server(cutter._serve, "127.0.0.1", 0)
        cutter.port = server.sockets[0].getsockname()[1]
        async with server:
            yield cutter

    async def _serve(self, near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        far, into = await asyncio.open_connection("127.0.0.1", self._target)
        name = id(out)
        there = asyncio.create_task(self._forward(near, into, name))
        back = asyncio.create_task(self._back(far, out, name))
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for task in (there, back):
            task.cancel()
        for writer in (into, out):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _forward(
        self, near: asyncio.StreamReader, into: asyncio.StreamWriter, name: int
    ) -> None:
        while data := await near.read(65536):
            if self._armed is not None and _COMMIT in data:
                cut, self._armed = self._armed, None
                self.cuts += 1
                if cut is Cut.BEFORE:
                    return
                self._waiting.add(name)
            into.write(data)
            await into.drain()

    async def _back(self, far: asyncio.StreamReader, out: asyncio.StreamWriter, name: int) -> None:
        while data := await far.read(65536):
            if name in self._waiting and _DONE in data:
                return
            out.write(data)
            await out.drain()
