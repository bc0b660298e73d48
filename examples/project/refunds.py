"""Tools: what runs may do. Put your own in the place of these."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from pydantic import BaseModel, JsonValue

from surehand import WRITE, ApprovalPolicy, Dedupes, Found, No, NotFound, ToolContext, Undo, tool
from surehand.examples.bank import bank  # in its place: your provider's client


class Refund(BaseModel):
    """What a plan says about a refund."""

    order_id: str
    amount: Decimal


async def find(params: Refund, ctx: ToolContext) -> Found | NotFound:
    """Ask the bank what became of a call; its worker may have died in the middle."""
    refund = await bank.find(ctx.idempotency_key)
    return Found(refund) if refund else NotFound()


@tool(
    "refunds.pay",
    effect=WRITE,
    key=lambda p: f"refund:{p.order_id}",  # one refund for each order, whoever asks
    lookup=find,
    settle=timedelta(seconds=1),  # how much later than its deadline a call may still arrive
    compensate=Undo("refunds.take_back", params=lambda params, receipt: {"id": receipt["id"]}),
    approval=ApprovalPolicy(expires_in=timedelta(hours=4)),
    timeout=timedelta(seconds=10),
    describe=lambda p: f"Refund {p.amount} for {p.order_id}",
)
async def pay(params: Refund, ctx: ToolContext) -> JsonValue | No:
    """Pay money back for an order."""
    if not await bank.knows(params.order_id):
        return No("no such order")  # an answer: never retried, not an error
    return await bank.refund(params.order_id, params.amount, key=ctx.idempotency_key)


class TakeBack(BaseModel):
    """Which refund is taken back."""

    id: str


@tool("refunds.take_back", effect=WRITE, dedupes=Dedupes(timedelta(hours=24)), irreversible=True)
async def take_back(params: TakeBack, ctx: ToolContext) -> JsonValue:
    """Take a refund back: what undoes the other tool."""
    return await bank.cancel(params.id, key=ctx.idempotency_key)
