"""The same tools after a deploy that has shortened the refund's time, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.variants import refund_patient

read_order = refund_patient.read_order
calculate_refund = refund_patient.calculate_refund
cancel_refund = refund_patient.cancel_refund
restock = refund_patient.restock
undo_restock = refund_patient.undo_restock
send_mail = refund_patient.send_mail

SECOND = timedelta(seconds=1)
refund = replace(refund_patient.refund, timeout=SECOND, settle=SECOND)
