"""The shop's tools, less patient and asking nobody, and a read that says something else later."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from pydantic import BaseModel

from surehand.activities.tools.tool import ToolContext
from surehand.activities.tools.toolbox import READ, tool
from tests.variants import quick_shop as shop

cancel_refund = shop.cancel_refund
restock = shop.restock
undo_restock = shop.undo_restock
send_mail = shop.send_mail
close_ticket = shop.close_ticket

refund = replace(shop.refund, approval=None)

#: Runs that are told of the other order when they ask again.
CHANGED: Final[set[str]] = set()


class Orders(BaseModel):
    """Two orders."""

    first: str
    then: str


@tool("orders.newest", effect=READ, timeout=timedelta(seconds=5))
async def newest(params: Orders, ctx: ToolContext) -> dict[str, str]:
    """Return which of two orders is the newest."""
    return {"order_id": params.then if ctx.run_id in CHANGED else params.first}
