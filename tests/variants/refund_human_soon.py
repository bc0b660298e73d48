"""Only a human can settle a refund, and soon: a call of it is over within two seconds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.variants import refund_human
from tests.variants.refund_human import *  # noqa: F403

refund = replace(refund_human.refund, timeout=timedelta(seconds=2))
