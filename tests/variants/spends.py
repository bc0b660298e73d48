"""The shop's tools, and some that use up budget in calls which fail."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from surehand import READ, WRITE, Dedupes, Permanent, ToolContext, Transient, tool
from surehand.examples.shop.tools import *  # noqa: F403


class Asked(BaseModel):
    fails: int
    """How many attempts fail."""
    how: str = "transient"


async def _spend(params: Asked, ctx: ToolContext) -> dict[str, int]:
    ctx.spend(tokens=10, money="0.1")
    if ctx.attempt <= params.fails:
        if params.how == "transient":
            raise Transient("the model is busy")
        raise Permanent("the model refuses")
    return {"attempt": ctx.attempt}


@tool("model.ask", effect=READ, timeout=timedelta(seconds=5))
async def ask(params: Asked, ctx: ToolContext) -> dict[str, int]:
    """Ask a model."""
    return await _spend(params, ctx)


@tool(
    "model.order", effect=WRITE, dedupes=Dedupes(timedelta(hours=1)), timeout=timedelta(seconds=5)
)
async def order(params: Asked, ctx: ToolContext) -> dict[str, int]:
    """Have a model do something."""
    return await _spend(params, ctx)
