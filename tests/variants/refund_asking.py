"""A refund that asks a human for its reason, and notes that ask twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from surehand import READ, ToolContext, tool
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import RefundParams
from surehand.examples.shop.tools import *  # noqa: F403


async def _refund(params: RefundParams, ctx: ToolContext) -> Any:
    await ctx.ask("Why is this refunded?", {"type": "string", "minLength": 3})
    return await shop.refund.fn(params, ctx)


refund = replace(shop.refund, fn=_refund)


class Nothing(BaseModel):
    """No params."""


@tool("notes.ask_twice", effect=READ)
async def ask_twice(params: Nothing, ctx: ToolContext) -> list[object]:
    """Ask for two things, one after the other."""
    return [await ctx.ask("First?"), await ctx.ask("Second?", {"type": "integer"})]
