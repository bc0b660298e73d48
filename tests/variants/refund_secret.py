"""The refund's params are secret: who is shown them is on record."""

from __future__ import annotations

from surehand import WRITE, tool
from surehand.examples.shop import tools as shop

read_order = shop.read_order
calculate_refund = shop.calculate_refund
cancel_refund = shop.cancel_refund
restock = shop.restock
undo_restock = shop.undo_restock
send_mail = shop.send_mail
close_ticket = shop.close_ticket

refund = tool(
    shop.refund.name,
    effect=WRITE,
    timeout=shop.refund.timeout,
    key=shop.refund.key,
    recovery="human",
    compensate=shop.refund.compensate,
    approval=shop.refund.approval,
    describe=shop.refund.describe,
    secret_params=True,
)(shop.refund.fn)
