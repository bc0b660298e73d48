"""A run that asks which order is the newest, and hears of another one when it asks again.

``surehand drill tests/variants/newest.yaml`` finds its world here, too.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from surehand import READ, ToolContext, tool
from surehand.examples.shop import drill as shop_drill
from tests.variants.refund_ungated import cancel_refund, refund

if TYPE_CHECKING:
    from surehand import Context

__all__ = ["cancel_refund", "newest", "refund"]

#: In the folder of the case's workers: the run has asked before.
_ASKED: Final = Path("asked")


class Orders(BaseModel):
    """Two orders."""

    first: str
    then: str


@tool("orders.newest", effect=READ, timeout=timedelta(seconds=5))
async def newest(params: Orders, ctx: ToolContext) -> dict[str, str]:
    """Return which of two orders is the newest."""
    try:
        _ASKED.touch(exist_ok=False)
    except FileExistsError:
        return {"order_id": params.then}
    return {"order_id": params.first}


def fresh(context: Context) -> dict[str, Any]:
    """Make two paid orders for one more run."""
    return {name: shop_drill.fresh(context)["order_id"] for name in ("first", "then")}


def world(context: Context) -> dict[str, Any]:
    """Return how many refunds stand, of whichever order."""
    stand = 0
    with shop_drill._shop() as shop:
        for name in ("first", "then"):
            about = {"order_id": context.input[name]}
            counts = shop.get("/admin/counts", params=about).raise_for_status().json()
            stand += counts["refunds"] - counts["refund_cancellations"]
    return {"refunds_that_stand": stand}
