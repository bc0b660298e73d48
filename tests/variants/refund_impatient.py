"""The same tools after a deploy that has shortened the refund's time, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.variants import refund_slow_bank

read_order = refund_slow_bank.read_order
calculate_refund = refund_slow_bank.calculate_refund
cancel_refund = refund_slow_bank.cancel_refund
restock = refund_slow_bank.restock
undo_restock = refund_slow_bank.undo_restock
send_mail = refund_slow_bank.send_mail

SECOND = timedelta(seconds=1)
refund = replace(refund_slow_bank.refund, timeout=SECOND, settle=SECOND)
