"""The first read, and each refund after it was paid, want more memory than there is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Final

from surehand import READ, No, ToolContext, tool
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import Order, OrderParams, Refund, RefundParams
from surehand.examples.shop.tools import *  # noqa: F403

TOO_MUCH: Final = 64 * 1024**3  # bytes
_reads = itertools.count(1)


@tool(shop.read_order.name, effect=READ, timeout=shop.read_order.timeout)
async def read_order(params: OrderParams, ctx: ToolContext) -> Order | No:
    """Read an order, into a large buffer at first."""
    if next(_reads) == 1:
        bytearray(TOO_MUCH)
    return await shop.read_order.fn(params, ctx)


async def _pay(params: RefundParams, ctx: ToolContext) -> Refund | No:
    """Pay, and load a large receipt."""
    paid = await shop.refund.fn(params, ctx)
    bytearray(TOO_MUCH)
    return paid


refund = replace(shop.refund, fn=_pay)
