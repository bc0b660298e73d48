"""The refund never answers and cannot be stopped: it blocks the event loop of its worker."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

from surehand import ToolContext
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import RefundParams
from surehand.examples.shop.tools import *  # noqa: F403


async def _block(params: RefundParams, ctx: ToolContext) -> None:
    """Block for ever."""
    threading.Event().wait()


refund = replace(shop.refund, fn=_block, timeout=timedelta(seconds=1))
