"""The shop's tools with a refund that may take ten minutes: its bank is slow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from surehand.examples.shop import tools as shop
from surehand.examples.shop.tools import *  # noqa: F403

refund = replace(shop.refund, timeout=timedelta(minutes=10), approval=None)
