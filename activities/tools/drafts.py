"""What a call writes of an artifact, part by part: the tool's side of it.

``effects/drafts.py`` keeps it. By itself a draft is in memory: that is what a tool gets in a test.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Final

from pydantic import JsonValue

from surehand.activities.tools.failure_classes import Permanent
from surehand.activities.tools.output_json import LARGEST

#: Longest media type: it is a column of the artifact's row.
_LONGEST_TYPE: Final = 80
_MEDIA_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(;.*)?", re.ASCII)


class Draft:
    r"""What a call writes of an artifact; ``ctx.artifact`` of a tool.

    What was written outlives a crash: the attempt after it has it before it, and goes on from its
    end. On success the step's output refers to what ``finish`` has made of it.

    Example:
        >>> @tool("report.write", effect=READ)
        ... async def write(params: Order, ctx: ToolContext) -> dict[str, JsonValue]:
        ...     if ctx.artifact.bytes_written == 0:
        ...         await ctx.artifact.append("# Report\n")
        ...     await ctx.artifact.append(f"{params.order_id} was paid.\n")
        ...     return await ctx.artifact.finish(media_type="text/markdown")
        >>> (await write.fn(Order(order_id="order-7"), ctx))["bytes"]
        27
    """

    #: What is raised past the largest size; a draft that is kept knows what it means for its call.
    _too_large: type[Exception] = Permanent

    def __init__(self) -> None:
        self._size = 0
        self._memory = bytearray()
        # A tool may write from several tasks: parts follow one another.
        self._one_at_a_time = asyncio.Lock()

    @property
    def bytes_written(self) -> int:
        """How much stands, in bytes; what earlier attempts have written is in it."""
        return self._size

    async def append(self, part: bytes | str) -> None:
        """Write a part behind what stands; it is durable when this returns. Text is UTF-8.

        Args:
            part: It.

        Raises:
            Permanent: More than 64 MiB in all. From a write, which may have had its effect
                already, ``OutcomeUnknown``.
        """
        data = part.encode() if isinstance(part, str) else bytes(part)
        async with self._one_at_a_time:
            size = self._size + len(data)
            if size > LARGEST:
                raise self._too_large(f"an artifact of {size} bytes: it has {LARGEST} at most")
            if data:
                await self._append(data)

    async def read(self, last: int | None = None) -> bytes:
        """Return what stands, what earlier attempts have written first.

        Args:
            last: Only so many bytes of its end.
        """
        async with self._one_at_a_time:
            start = 0 if last is None else max(0, self._size - last)
            return await self._read(start)

    async def restart(self) -> None:
        """Begin anew: nothing stands any more."""
        async with self._one_at_a_time:
            await self._restart()

    async def finish(self, media_type: str = "application/octet-stream") -> dict[str, JsonValue]:
        """Make one artifact of what stands, and return the reference for the tool's output.

        It is ``{"artifact": "sha256:...", "bytes": 27, "media_type": "text/markdown"}``; the digest
        is that of the whole content, and where a run is encrypted one that only its key can make.
        ``artifacts RUN DIGEST`` prints it.

        Args:
            media_type: What it is, such as ``text/markdown``.

        Raises:
            ValueError: No media type.
        """
        if len(media_type) > _LONGEST_TYPE or not _MEDIA_TYPE.fullmatch(media_type):
            raise ValueError(f"{media_type[:100]!r} is no media type such as 'text/markdown'")
        async with self._one_at_a_time:
            content = await self._read(0)
            sha256 = await self._keep(content, media_type)
        return {"artifact": f"sha256:{sha256}", "bytes": len(content), "media_type": media_type}

    async def _append(self, data: bytes) -> None:
        self._memory += data
        self._size = len(self._memory)

    async def _read(self, start: int) -> bytes:
        return bytes(self._memory[start:])

    async def _restart(self) -> None:
        self._memory.clear()
        self._size = 0

    async def _keep(self, content: bytes, media_type: str) -> str:
        """Keep the whole, and return the digest that it is named by."""
        return hashlib.sha256(content).hexdigest()


class NoDraft(Draft):
    """In the place of a draft where nothing is written: each use of it raises."""

    @property
    def bytes_written(self) -> int:
        """Nothing is written here."""
        raise self._refused()

    async def _append(self, data: bytes) -> None:
        raise self._refused()

    async def _read(self, start: int) -> bytes:
        raise self._refused()

    async def _restart(self) -> None:
        raise self._refused()

    def _refused(self) -> RuntimeError:
        return RuntimeError(
            "only a tool's own call writes an artifact: no lookup, precondition or undo,"
            " and no transactional tool"
        )
