"""One round of a worker's outbox as a process of its own, for tests that kill it in the middle."""

from __future__ import annotations

import asyncio
import os
import sys

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.notifiers import load_notifiers
from surehand.activities.outbox import Outbox
from surehand.activities.worker.settings import load_settings


async def send_once(tenant: str) -> None:
    """Send what is due by all notifiers of the settings, once."""
    settings = load_settings(dict(os.environ))
    async with open_ledger(settings.database_url) as ledger:
        ledger.tenants.add(tenant)
        with Outbox(ledger, load_notifiers(settings)) as outbox:
            for channel in settings.notify:
                await outbox.run_once(channel)


if __name__ == "__main__":
    asyncio.run(send_once(sys.argv[1]))
