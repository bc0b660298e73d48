"""Tools whose call kills its own worker before anybody hears the answer, the first time."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from benchmarks.outside import arrive, seen
from benchmarks.tools import LOOKUP_DEADLINE, LOOKUP_SETTLE
from surehand.activities.tools.answers import Dedupes, Found, NotFound
from surehand.activities.tools.tool import ToolContext
from surehand.activities.tools.toolbox import WRITE, tool


class Nothing(BaseModel):
    """No params."""


@tool("killed.put", effect=WRITE, dedupes=Dedupes(timedelta(hours=24)), irreversible=True)
async def put(params: Nothing, ctx: ToolContext) -> None:
    """Change something; the same key changes nothing the second time."""
    arrive(ctx.idempotency_key, dedupes=True)


async def find_order(params: Nothing, ctx: ToolContext) -> Found | NotFound:
    """Ask whether an order has arrived."""
    return Found(None) if seen(ctx.idempotency_key) else NotFound()


@tool(
    "killed.order",
    effect=WRITE,
    timeout=LOOKUP_DEADLINE,
    lookup=find_order,
    settle=LOOKUP_SETTLE,
    irreversible=True,
)
async def order(params: Nothing, ctx: ToolContext) -> None:
    """Change something; every call does so again."""
    arrive(ctx.idempotency_key)
