"""The tools of ``examples/refund.yaml`` as the shop's are, but for the shop: they answer at once.

Keys, lookups, undos and the approval of the refund are those of the example. Temporal alone makes
the same calls by the same functions (``benchmarks.plain``).
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from surehand.activities.tools.tool import Tool, ToolContext
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import (
    CalculateParams,
    Line,
    Mailed,
    MailParams,
    Order,
    OrderParams,
    Refund,
    Refundable,
    RefundParams,
    Restocked,
    RestockParams,
)

_PAID: Final = Decimal("120.00")


def order_of(params: OrderParams) -> Order:
    """Return an order that was paid."""
    return Order(
        order_id=params.order_id,
        status="paid",
        currency="EUR",
        paid=_PAID,
        refunded=Decimal(0),
        customer_email="customer@example.com",
        lines=(Line(sku="mug-blue", quantity=2), Line(sku="tea-green", quantity=1)),
    )


def refundable_of(params: CalculateParams) -> Refundable:
    """Return what was paid."""
    return Refundable(amount=params.paid)


def refund_of(params: RefundParams) -> Refund:
    """Pay nothing back."""
    return Refund(
        refund_id=f"refund-{params.order_id}",
        order_id=params.order_id,
        amount=params.amount,
        currency=params.currency,
    )


def restock_of(params: RestockParams) -> Restocked:
    """Put nothing back."""
    number = f"restock-{params.order_id}"
    return Restocked(restock_id=number, order_id=params.order_id, lines=params.lines)


def mail_of(params: MailParams) -> Mailed:
    """Send nothing."""
    return Mailed(mail_id=f"mail-{params.order_id}", to=params.to)


def _at_once(one: Tool, answer: Any) -> Tool:
    async def fn(params: Any, ctx: ToolContext) -> Any:
        return answer(params)

    return replace(one, fn=fn)


read_order: Final = _at_once(shop.read_order, order_of)
calculate_refund: Final = _at_once(shop.calculate_refund, refundable_of)
refund: Final = _at_once(shop.refund, refund_of)
restock: Final = _at_once(shop.restock, restock_of)
send_mail: Final = _at_once(shop.send_mail, mail_of)
# Named by what would undo a refund and a restock; nothing is undone here.
cancel_refund: Final = shop.cancel_refund
undo_restock: Final = shop.undo_restock
