"""The shop honours our key, and cannot be asked afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from surehand import Dedupes
from surehand.examples.shop import tools as shop
from surehand.examples.shop.tools import *  # noqa: F403
from surehand.workflows.contracts.tools import Recovery

_BY_KEY = {"recovery": Recovery.DEDUPES, "dedupes": Dedupes(window=timedelta(hours=24))}
refund = replace(shop.refund, lookup=None, settle=None, **_BY_KEY)
