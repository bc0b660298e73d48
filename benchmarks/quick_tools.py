"""Tools that do next to nothing: what a step of them costs is what its protection costs."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final

from pydantic import BaseModel, JsonValue

from activities.toolbox import READ, WRITE, Dedupes, ToolContext, tool

#: Short enough to be called inside the workflow task where a run's durability allows that.
DEADLINE: Final = timedelta(seconds=5)
_KEYS_KEPT: Final = Dedupes(timedelta(hours=24))


class Call(BaseModel):
    """Params of both tools."""

    takes: float = 0
    """Seconds that the call takes."""


async def answer(takes: float) -> dict[str, JsonValue]:
    """Return when the call began, by the machine's monotonic clock."""
    at = time.monotonic()
    if takes:
        await asyncio.sleep(takes)
    return {"at": at}


@tool("quick.read", effect=READ, timeout=DEADLINE)
async def read(params: Call, ctx: ToolContext) -> JsonValue:
    """Read nothing."""
    return dict(await answer(params.takes))


@tool("quick.write", effect=WRITE, timeout=DEADLINE, dedupes=_KEYS_KEPT, irreversible=True)
async def write(params: Call, ctx: ToolContext) -> JsonValue:
    """Change nothing."""
    return dict(await answer(params.takes))
