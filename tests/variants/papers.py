"""Papers that are filed, and taken out again: what was done, and undone, in which order."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel, JsonValue

from surehand import READ, WRITE, Dedupes, ToolContext, Undo, tool

SECONDS: Final = timedelta(seconds=30)
DAY: Final = timedelta(hours=24)
#: What was done in this process, in its order.
LOG: Final[list[tuple[str, str]]] = []
#: The keys of calls that have taken a paper out: a busy worker may call again with the same one.
_TAKEN_OUT: Final = set[str]()


class Named(BaseModel):
    """Where it is written which paper is meant."""

    file: str


class Paper(BaseModel):
    """A paper; it is filed once a file of that name is there, if one is named."""

    name: str
    once: str = ""


@tool("papers.which", effect=READ, timeout=SECONDS)
async def which(params: Named, ctx: ToolContext) -> JsonValue:
    """Read which paper is meant."""
    return {"name": Path(params.file).read_text()}


@tool(
    "papers.file",
    effect=WRITE,
    key=lambda params: f"paper:{params.name}",
    dedupes=Dedupes(DAY),
    timeout=SECONDS,
    compensate=Undo("papers.take_out", params=lambda params, receipt: {"name": params["name"]}),
)
async def file(params: Paper, ctx: ToolContext) -> JsonValue:
    """File a paper."""
    while params.once and not Path(params.once).exists():
        await asyncio.sleep(0.02)
    LOG.append(("file", params.name))
    return {"filed": params.name}


@tool("papers.take_out", effect=WRITE, dedupes=Dedupes(DAY), irreversible=True, timeout=SECONDS)
async def take_out(params: Paper, ctx: ToolContext) -> JsonValue:
    """Take a paper out again."""
    if ctx.idempotency_key not in _TAKEN_OUT:
        _TAKEN_OUT.add(ctx.idempotency_key)
        LOG.append(("take out", params.name))
    return {}
