"""A transactional tool: its effect is a row in the ledger's own database."""

from __future__ import annotations

import asyncio
from typing import Final

from pydantic import BaseModel
from sqlalchemy import text

from activities.failures import Permanent
from activities.toolbox import WRITE, No, ToolContext, Undo, tool

#: Long enough to be killed in (`activities.crashpoints.DURING`), and far below the time limit.
_WORK: Final = 0.4  # seconds
TABLE: Final = "CREATE TABLE IF NOT EXISTS credits (tenant TEXT, account TEXT, amount INTEGER)"
_ADD: Final = text("INSERT INTO credits (tenant, account, amount) VALUES (:tenant, :account, :n)")


class Credit(BaseModel):
    """So much for an account."""

    account: str
    amount: int


class Account(BaseModel):
    """An account."""

    account: str


async def _book(ctx: ToolContext, account: str, amount: int) -> None:
    assert ctx.session is not None
    await ctx.session.execute(_ADD, {"tenant": ctx.tenant, "account": account, "n": amount})


@tool("credits.take", effect=WRITE, transactional=True, irreversible=True)
async def take(params: Credit, ctx: ToolContext) -> dict[str, int]:
    """Take credits from an account."""
    await _book(ctx, params.account, -params.amount)
    return {"taken": params.amount}


@tool(
    "credits.add",
    effect=WRITE,
    transactional=True,
    key=lambda params: f"credit:{params.account}",
    compensate=Undo("credits.take", params=lambda params, receipt: params),
)
async def add(params: Credit, ctx: ToolContext) -> dict[str, int] | No:
    """Add credits to an account."""
    await _book(ctx, params.account, params.amount)
    await asyncio.sleep(_WORK)
    if params.amount > 1000:
        return No("too many credits")
    return {"added": params.amount}


@tool("credits.refuse", effect=WRITE, transactional=True, irreversible=True)
async def refuse(params: Account, ctx: ToolContext) -> None:
    """Book, and fail for good."""
    await _book(ctx, params.account, 1)
    raise Permanent("not today")
