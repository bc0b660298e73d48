"""Tools that take long and tell of their progress."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from surehand import READ, WRITE, Dedupes, ToolContext, tool

PAGES: Final = {"page": 3, "of": 9}


class Nothing(BaseModel):
    """No params."""


async def _work(ctx: ToolContext) -> dict[str, Any]:
    if ctx.earlier_progress is not None:
        return {"went_on_from": ctx.earlier_progress}
    ctx.progress({"page": 2, "of": 9})
    ctx.progress(PAGES)
    await asyncio.Event().wait()  # until its worker is killed
    raise AssertionError


@tool("pages.count", effect=READ)
async def count(params: Nothing, ctx: ToolContext) -> int:
    """Count the pages."""
    return 9


@tool("pages.read", effect=READ, timeout=timedelta(minutes=5))
async def read(params: Nothing, ctx: ToolContext) -> dict[str, Any]:
    """Read page after page."""
    return await _work(ctx)


@tool(
    "pages.write",
    effect=WRITE,
    timeout=timedelta(minutes=5),
    dedupes=Dedupes(timedelta(hours=1)),
    irreversible=True,
)
async def write(params: Nothing, ctx: ToolContext) -> dict[str, Any]:
    """Write page after page."""
    return await _work(ctx)
