"""Each look at secret params is on record before anything of them is shown."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from typing import Final

from surehand.activities.ledger.approvals.reads import record_read
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.one_approval import OneApproval

#: Looks that are known to be on record. An older one is recorded once more.
MOST: Final = 10_000


class SecretReads:
    """The looks of those who are signed in now; once for each sign-in and request."""

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        """Make it; ``ledger`` takes the events, ``tenant`` is whose requests these are."""
        self._ledger = ledger
        self._tenant = tenant
        self._known = OrderedDict[tuple[str, str], None]()
        self._recording = asyncio.Lock()

    async def record(self, one: OneApproval, reader: str, cookie: str) -> None:
        """Record that somebody is shown a request, where its tool wants that and it can be read.

        Args:
            one: The request.
            reader: Who is signed in.
            cookie: Of this sign-in.

        Raises:
            LedgerUnavailable: It cannot be recorded, so nothing may be shown.
        """
        if not one.row["secret"] or one.row["params"] is None:
            return
        look = (hashlib.sha256(cookie.encode()).hexdigest(), one.row["approval_id"])
        async with self._recording:
            if look in self._known:
                return
            await self._ledger.transact(self._tenant, record_read, one.row, reader)
            self._known[look] = None
            if len(self._known) > MOST:
                self._known.popitem(last=False)
