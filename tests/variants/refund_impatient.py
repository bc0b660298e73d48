"""The same tools after a deploy that has shortened the refund's time, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.variants import refund_slow_bank
from tests.variants.refund_slow_bank import *  # noqa: F403

SECOND = timedelta(seconds=1)
refund = replace(refund_slow_bank.refund, timeout=SECOND, settle=SECOND)
