"""Tools that are functions; and what the agents have in common."""

from __future__ import annotations

from typing import NoReturn

ORDER = {"order_id": "order-1"}
AMOUNT = {"amount": "12.50"}


def _fail() -> NoReturn:
    raise AssertionError("a comparison makes no write")


refuse_effect = _fail


async def get_order(order_id: str) -> dict[str, str]:
    """Read an order."""
    return {"order_id": order_id, "total": "12.50"}


async def refund(order_id: str, amount: str) -> str:
    """Pay it back."""
    return refuse_effect()
