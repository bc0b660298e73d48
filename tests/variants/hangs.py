"""A notifier that never comes back, and a read that only some may make."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from surehand import Notification
from surehand.examples.shop import tools as shop

read_order = replace(shop.read_order, name="orders.read_strict", permission="orders")


class Hangs:
    """Blocks its thread, as a client without a time-out would."""

    async def send(self, notification: Notification) -> None:
        """Say that it was called, and hang."""
        print("hangs from here on", file=sys.stderr, flush=True)
        while True:
            time.sleep(60)


notifier = Hangs()
