"""A refund that only those may make who are allowed to."""

from __future__ import annotations

from dataclasses import replace

from surehand.examples.shop import tools as shop

read_order = shop.read_order
calculate_refund = shop.calculate_refund
cancel_refund = shop.cancel_refund
restock = shop.restock
undo_restock = shop.undo_restock
send_mail = shop.send_mail

refund = replace(shop.refund, permission="refunds")
