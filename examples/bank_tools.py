from datetime import timedelta
from decimal import Decimal

from pydantic import BaseModel, JsonValue

from surehand import WRITE, ApprovalPolicy, Dedupes, Found, No, NotFound, ToolContext, Undo, tool
from surehand.examples.bank import bank  # in its place: your provider's client


class Refund(BaseModel):
    order_id: str
    amount: Decimal


async def find(params: Refund, ctx: ToolContext) -> Found | NotFound:
    refund = await bank.find(ctx.idempotency_key)
    return Found(refund) if refund else NotFound()


@tool(
    "bank.refund",
    effect=WRITE,
    key=lambda p: f"refund:{p.order_id}",  # the business fact: once, whoever asks
    lookup=find,
    settle=timedelta(seconds=5),  # how a crash in the middle is settled
    # Both are JSON, as the ledger keeps them: params["order_id"], not params.order_id as above.
    compensate=Undo("bank.cancel", params=lambda params, receipt: {"refund_id": receipt["id"]}),
    approval=ApprovalPolicy(expires_in=timedelta(hours=4)),
    timeout=timedelta(seconds=10),
    describe=lambda p: f"Refund {p.amount} for {p.order_id}",
)
async def refund(params: Refund, ctx: ToolContext) -> JsonValue | No:
    """Pay money back for an order."""
    if not await bank.knows(params.order_id):
        return No("no such order")  # an answer: never retried, not an error
    return await bank.refund(params.order_id, params.amount, key=ctx.idempotency_key)


class Cancel(BaseModel):
    refund_id: str


# An undo is a tool, too: it says how a crash in its own middle is settled. Its key in the ledger is
# `undo:ef-...`, the entry that it undoes.
@tool("bank.cancel", effect=WRITE, dedupes=Dedupes(timedelta(hours=24)), irreversible=True)
async def cancel(params: Cancel, ctx: ToolContext) -> JsonValue:
    """Take a refund back."""
    return await bank.cancel(params.refund_id, key=ctx.idempotency_key)
