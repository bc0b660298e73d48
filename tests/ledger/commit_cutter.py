"""A way to PostgreSQL that is cut at a COMMIT: nobody knows then whether it happened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final

#: What the driver sends, and how the server's answer ends: of a call that is a transaction by
#: itself, too, which has its text as long as it is not prepared.
_COMMITS: Final = {
    b"COMMIT\x00": b"COMMIT\x00",
    b"record_write(": b"SELECT 1\x00",
    b"record_read(": b"SELECT 1\x00",
}


class Cut(Enum):
    """Where the connection is cut."""

    BEFORE = "before it reaches the server"
    AFTER = "before its answer reaches the client"


class CommitCutter:
    """Forwards connections; once armed, cuts the one on which the next COMMIT is sent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._armed: Cut | None = None
        self._waiting: dict[int, bytes] = {}
        self.port = 0
        self.cuts = 0

    def arm(self, cut: Cut) -> None:
        self._armed = cut

    @classmethod
    @contextmanager
    def before(cls, port: int) -> Iterator[CommitCutter]:
        """Listen on a port of its own, in front of a server's, in a thread of its own."""
        cutter, loop = cls(port), asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        listening = asyncio.start_server(cutter._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, loop).result()
        cutter.port = server.sockets[0].getsockname()[1]
        try:
            yield cutter
        finally:
            asyncio.run_coroutine_threadsafe(_end(server), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _serve(self, near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        far, into = await asyncio.open_connection("127.0.0.1", self._target)
        name = id(out)
        there = asyncio.create_task(self._forward(near, into, name))
        back = asyncio.create_task(self._back(far, out, name))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            for writer in (into, out):
                writer.close()
        for writer in (into, out):
            with suppress(OSError):
                await writer.wait_closed()

    async def _forward(
        self, near: asyncio.StreamReader, into: asyncio.StreamWriter, name: int
    ) -> None:
        while data := await near.read(65536):
            done = next((done for sent, done in _COMMITS.items() if sent in data), None)
            if self._armed is not None and done is not None:
                cut, self._armed = self._armed, None
                self.cuts += 1
                if cut is Cut.BEFORE:
                    return
                self._waiting[name] = done
            into.write(data)
            await into.drain()

    async def _back(self, far: asyncio.StreamReader, out: asyncio.StreamWriter, name: int) -> None:
        while data := await far.read(65536):
            if name in self._waiting and self._waiting[name] in data:
                return
            out.write(data)
            await out.drain()


async def _end(server: asyncio.Server) -> None:
    """Close it, and what it has under way."""
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # in which what was closed is let go of
