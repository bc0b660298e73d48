"""The refund never answers and cannot be stopped: it blocks the event loop of its worker."""

from __future__ import annotations

import threading
from datetime import timedelta

from surehand import WRITE, ToolContext, tool
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import RefundParams

read_order = shop.read_order
calculate_refund = shop.calculate_refund
cancel_refund = shop.cancel_refund
restock = shop.restock
undo_restock = shop.undo_restock
send_mail = shop.send_mail
close_ticket = shop.close_ticket


@tool(
    shop.refund.name,
    effect=WRITE,
    timeout=timedelta(seconds=1),
    key=shop.refund.key,
    lookup=shop.refund.lookup,
    settle=shop.refund.settle,
    compensate=shop.refund.compensate,
    approval=shop.refund.approval,
    describe=shop.refund.describe,
)
async def refund(params: RefundParams, ctx: ToolContext) -> None:
    """Block for ever."""
    threading.Event().wait()
