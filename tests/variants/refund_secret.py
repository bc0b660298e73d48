"""The refund's params are secret: who is shown them is on record."""

from __future__ import annotations

from dataclasses import replace

from tests.variants import refund_human
from tests.variants.refund_human import *  # noqa: F403

refund = replace(refund_human.refund, secret_params=True)
