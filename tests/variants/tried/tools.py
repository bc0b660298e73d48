"""Tools that are functions."""

from __future__ import annotations

from tests.variants import tried


async def get_order(order_id: str) -> dict[str, str]:
    """Read an order."""
    return {"order_id": order_id, "total": "12.50"}


async def refund(order_id: str, amount: str) -> str:
    """Pay it back."""
    return tried.refuse_effect()
