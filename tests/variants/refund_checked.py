"""A refund that is approved for the order as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from surehand import Permanent, ToolContext
from surehand.examples.shop import tools as shop
from surehand.examples.shop.client import send
from surehand.examples.shop.tools import *  # noqa: F403


async def order_as_it_is(params: Any, ctx: ToolContext) -> Any:
    order = (await send("GET", f"/orders/{params.order_id}", ctx)).json()
    if params.currency != order["currency"]:
        raise Permanent(f"{order['order_id']} was paid in {order['currency']}")
    return order


refund = replace(shop.refund, precondition=order_as_it_is)
