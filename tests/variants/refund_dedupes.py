"""The shop honours our key, and cannot be asked afterwards."""

from __future__ import annotations

from datetime import timedelta

from surehand import WRITE, Dedupes, tool
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
    dedupes=Dedupes(window=timedelta(hours=24)),
    compensate=shop.refund.compensate,
    approval=shop.refund.approval,
    describe=shop.refund.describe,
)(shop.refund.fn)
