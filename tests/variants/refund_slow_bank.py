"""The shop's tools with a refund that may take ten minutes: its bank is slow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from surehand.examples.shop import tools as shop

read_order = shop.read_order
calculate_refund = shop.calculate_refund
cancel_refund = shop.cancel_refund
restock = shop.restock
undo_restock = shop.undo_restock
send_mail = shop.send_mail

refund = replace(shop.refund, timeout=timedelta(minutes=10), approval=None)
