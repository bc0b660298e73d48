"""A refund that only those may make who are allowed to."""

from __future__ import annotations

from dataclasses import replace

from surehand.examples.shop import tools as shop
from surehand.examples.shop.tools import *  # noqa: F403

refund = replace(shop.refund, permission="refunds")
