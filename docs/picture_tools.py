"""Tools of the runs that are in pictures: what they return is kept as artifacts."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, JsonValue

from surehand import READ, ToolContext, tool

#: More than travels inline.
_ORDERS = 200


class Month(BaseModel):
    """A month."""

    month: str


@tool("orders.of_month", effect=READ, timeout=timedelta(seconds=10))
async def orders(params: Month, ctx: ToolContext) -> JsonValue:
    """Return the orders of a month."""
    return [
        {"order_id": f"order-{number}", "month": params.month, "amount": "120.00"}
        for number in range(_ORDERS)
    ]


@tool("statements.write", effect=READ, timeout=timedelta(seconds=10))
async def statement(params: Month, ctx: ToolContext) -> JsonValue:
    """Write a statement of a month."""
    lines = [f"order-{number},{params.month},120.00\n" for number in range(_ORDERS)]
    await ctx.artifact.append("order,month,amount\n" + "".join(lines))
    return await ctx.artifact.finish(media_type="text/csv")
