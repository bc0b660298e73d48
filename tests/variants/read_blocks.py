"""The read never answers and cannot be stopped: it blocks the event loop of its worker."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

from surehand import ToolContext
from surehand.examples.shop import tools as shop
from surehand.examples.shop.tools import *  # noqa: F403


async def _block(params: Any, ctx: ToolContext) -> None:
    threading.Event().wait()


read_order = replace(shop.read_order, fn=_block, timeout=timedelta(seconds=1))
