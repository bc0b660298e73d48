"""A loop of one's own, and agents that cannot be tried."""

from __future__ import annotations

import time
from typing import Any

from tests.variants.tried.tools import get_order, refund


async def clerk(given: Any) -> str:
    order = await get_order("order-1")
    await refund(order["order_id"], amount=order["total"])
    return "paid back"


async def reader(given: Any) -> str:
    await get_order("order-1")
    return "read"


async def by_chance(given: Any) -> str:
    await refund("order-1", amount=str(time.time_ns()))
    return "paid back"


def blocking(given: Any) -> str:
    raise AssertionError("it is not run")


number = 7
