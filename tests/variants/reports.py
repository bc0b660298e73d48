"""Tools that write a report line by line, and stop in its middle the first time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from surehand import READ, WRITE, Dedupes, ToolContext, tool

#: Where the first attempt stops, until its worker is killed.
MIDDLE: Final = 5
HEADING: Final = b"# Report\n"


class Report(BaseModel):
    lines: int = 8
    size: int = 40_000
    """Bytes of a line."""
    anew: bool = False
    """The attempt after a killed one begins anew."""
    stops: bool = True


def line(number: int, size: int) -> bytes:
    """Return a line that tells its number."""
    return f"{number:>{size - 1}}\n".encode()


def whole(report: Report) -> bytes:
    """Return what the report comes to."""
    lines = (line(number, report.size) for number in range(report.lines))
    return HEADING + b"".join(lines)


async def _written(report: Report, ctx: ToolContext) -> dict[str, Any]:
    stood = ctx.artifact.bytes_written
    if stood and report.anew:
        await ctx.artifact.restart()
    if ctx.artifact.bytes_written == 0:
        await ctx.artifact.append(HEADING.decode())
    written = (await ctx.artifact.read()).count(b"\n") - 1
    for number in range(written, report.lines):
        if number == MIDDLE and stood == 0 and report.stops:
            await asyncio.Event().wait()  # until its worker is killed
        await ctx.artifact.append(line(number, report.size))
    return {"stood": stood, "report": await ctx.artifact.finish(media_type="text/markdown")}


@tool("report.read", effect=READ, timeout=timedelta(minutes=2))
async def read(params: Report, ctx: ToolContext) -> dict[str, Any]:
    """Write a report on what there is."""
    return await _written(params, ctx)


@tool(
    "report.write",
    effect=WRITE,
    timeout=timedelta(minutes=2),
    dedupes=Dedupes(timedelta(hours=1)),
    irreversible=True,
)
async def write(params: Report, ctx: ToolContext) -> dict[str, Any]:
    """Write a report, and send it."""
    return await _written(params, ctx)
