"""A transactional tool: its effect is a row in the ledger's own database.

``surehand drill tests/variants/credits.yaml`` finds its world here, too.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel
from sqlalchemy import text

from surehand import WRITE, No, Permanent, ToolContext, Undo, tool
from surehand.activities.ledger.core.store import open_ledger

if TYPE_CHECKING:
    from surehand import Context

#: Long enough to be killed in (`crashpoints.DURING`), and far below the time limit.
_WORK: Final = 0.4  # seconds
TABLE: Final = "CREATE TABLE IF NOT EXISTS credits (tenant TEXT, account TEXT, amount INTEGER)"
_ADD: Final = text("INSERT INTO credits (tenant, account, amount) VALUES (:tenant, :account, :n)")
_OF: Final = text("SELECT amount FROM credits WHERE account = :account ORDER BY amount")


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


async def fresh(context: Context) -> dict[str, Any]:
    """Make the table in a drill's ledger, and name an account for one more run."""
    async with open_ledger(context.database_url) as ledger:
        with ledger.transaction("default") as tx:
            tx.execute(text(TABLE))
    return {"account": f"account-{uuid.uuid4().hex[:12]}"}


async def world(context: Context) -> dict[str, Any]:
    """Return what was booked on a run's account."""
    of_run = _OF.bindparams(account=context.input["account"])
    async with open_ledger(context.database_url) as ledger:
        with ledger.transaction("default") as tx:
            booked = [row["amount"] for row in tx.all(of_run)]
    return {"effects": {"bookings": len(booked)}, "booked": booked}
