"""Nothing tells what became of a refund: only a human can settle it."""

from __future__ import annotations

from dataclasses import replace

from surehand.examples.shop import tools as shop
from surehand.examples.shop.tools import *  # noqa: F403
from surehand.workflows.contracts.tools import Recovery

refund = replace(shop.refund, lookup=None, settle=None, recovery=Recovery.HUMAN)
