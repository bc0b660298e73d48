"""Tools as users write them when they do not think of us; what happened is noted in ``CALLS``."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any, Final

import httpx
from pydantic import BaseModel, Field

from surehand import READ, WRITE, ApprovalPolicy, Dedupes, No, Permanent, ToolContext, tool
from surehand.workflows.ports import HEARTBEAT_TIMEOUT

#: Calls by tool. Only tests that work in their own process look at it.
CALLS: Final[Counter[str]] = Counter()
DEDUPES: Final = Dedupes(window=timedelta(hours=1))
UNSPEAKABLE: Final = "the provider said \ud83d and \x00"

#: The shortest settle time there is.
AT_ONCE = timedelta(milliseconds=1)


class Nothing(BaseModel):
    """No params."""


class Order(BaseModel):
    """Params with a name that is no Python name."""

    order_id: str = Field(alias="order-id")


class Measured(BaseModel):
    """An output that JSON cannot say."""

    value: float


@tool("read.slow", effect=READ, timeout=timedelta(seconds=20))
async def slow(params: Nothing, ctx: ToolContext) -> str:
    """Take longer than Temporal waits for a sign of life."""
    CALLS["read.slow"] += 1
    await asyncio.sleep(HEARTBEAT_TIMEOUT.total_seconds() + 1.5)
    return "done"


@tool("read.fine", effect=READ)
async def fine(params: Nothing, ctx: ToolContext) -> str:
    """Read."""
    CALLS["read.fine"] += 1
    return "done"


@tool("read.no", effect=READ)
async def read_no(params: Nothing, ctx: ToolContext) -> No:
    """Answer no."""
    return No(UNSPEAKABLE, UNSPEAKABLE)


@tool("read.cancels", effect=READ)
async def read_cancels(params: Nothing, ctx: ToolContext) -> str:
    """End as a cancelled task does."""
    raise asyncio.CancelledError


@tool("read.broken", effect=READ)
async def read_broken(params: Nothing, ctx: ToolContext) -> str:
    """Have a bug."""
    return {"there": "it is"}["nope"]


@tool("write.broken", effect=WRITE, recovery="human", irreversible=True)
async def write_broken(params: Nothing, ctx: ToolContext) -> str:
    """Have a bug, in what it calls."""
    return str(int("nope"))


@tool("write.no", effect=WRITE, dedupes=DEDUPES, irreversible=True)
async def write_no(params: Nothing, ctx: ToolContext) -> No:
    """Answer no."""
    return No(UNSPEAKABLE, UNSPEAKABLE)


@tool("write.cancels", effect=WRITE, dedupes=DEDUPES, irreversible=True)
async def write_cancels(params: Nothing, ctx: ToolContext) -> str:
    """End as a cancelled task does."""
    raise asyncio.CancelledError


@tool("write.nan", effect=WRITE, dedupes=DEDUPES, irreversible=True)
async def nan(params: Nothing, ctx: ToolContext) -> Measured:
    """Return what is no JSON."""
    return Measured(value=float("nan"))


@tool("write.bytes", effect=WRITE, dedupes=DEDUPES, irreversible=True)
async def pdf(params: Nothing, ctx: ToolContext) -> dict[str, bytes]:
    """Return what is no JSON."""
    return {"pdf": b"\xff\xfe"}


async def says_nothing(params: Any, ctx: ToolContext) -> Any:
    """Forget to answer."""


async def lookup_cancels(params: Any, ctx: ToolContext) -> Any:
    """End as a cancelled task does."""
    raise asyncio.CancelledError


@tool("write.unfound", effect=WRITE, lookup=says_nothing, settle=AT_ONCE, irreversible=True)
async def unfound(params: Nothing, ctx: ToolContext) -> str:
    """Lose the answer."""
    raise httpx.ReadTimeout("lost")


@tool("write.unasked", effect=WRITE, lookup=lookup_cancels, settle=AT_ONCE, irreversible=True)
async def unasked(params: Nothing, ctx: ToolContext) -> str:
    """Lose the answer."""
    raise httpx.ReadTimeout("lost")


@tool("write.lost", effect=WRITE, recovery="human", irreversible=True)
async def lost(params: Nothing, ctx: ToolContext) -> str:
    """Lose the answer."""
    CALLS["write.lost"] += 1
    raise httpx.ReadTimeout("lost")


@tool("write.refused", effect=WRITE, recovery="human", irreversible=True)
async def refused(params: Nothing, ctx: ToolContext) -> str:
    """Fail for good, provably."""
    raise Permanent("no such account")


@tool("write.lost-then-down", effect=WRITE, dedupes=DEDUPES, irreversible=True)
async def lost_then_down(params: Nothing, ctx: ToolContext) -> str:
    """Lose the answer, then be away."""
    CALLS["write.lost-then-down"] += 1
    if CALLS["write.lost-then-down"] == 1:
        raise httpx.ReadTimeout("lost")
    raise httpx.ConnectError("no route")


@tool(
    "write.aliased",
    effect=WRITE,
    recovery="human",
    irreversible=True,
    approval=ApprovalPolicy(),
    key=lambda params: f"order-{params.order_id}",
    describe=lambda params: f"{1 / 0}",
)
async def aliased(params: Order, ctx: ToolContext) -> str:
    """Write."""
    return params.order_id
