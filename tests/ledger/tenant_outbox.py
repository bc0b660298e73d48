"""A receiver at which notifications arrive, and a worker's outbox that sends them there."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from surehand.activities.ledger.core.store import Transaction, open_ledger
from surehand.activities.ledger.core.tables import notifications
from surehand.activities.ledger.outbox.notification import SEND_LIMIT, Notification, Notifier
from surehand.activities.outbox import Outbox
from tests.ledger.scene import Scene

RECEIVER: Final = "receiver"


@dataclass
class Receiver:
    """A notifier that keeps what it gets, and refuses while it is told to."""

    got: list[Notification] = field(default_factory=list)
    tried: int = 0
    refuses: Exception | None = None

    async def send(self, notification: Notification) -> None:
        self.tried += 1
        if self.refuses is not None:
            raise self.refuses
        self.got.append(notification)

    @property
    def told(self) -> list[tuple[str, str, int]]:
        """What arrived: kind, subject and number."""
        return [(one.kind, one.subject, one.number) for one in self.got]


@dataclass
class Clock:
    """The database's clock, and whatever is added to it."""

    later: timedelta = timedelta(0)

    def __call__(self, tx: Transaction) -> int:
        return tx.now_ms + self.later // timedelta(milliseconds=1)


@dataclass
class TenantOutbox:
    """One tenant as a worker sees it that has one notifier."""

    scene: Scene
    receiver: Receiver
    clock: Clock
    outbox: Outbox

    async def send(self, after: timedelta | None = None) -> Counter[str]:
        """Have what is due sent, as if it were so much later than when the test began."""
        if after is not None:
            self.clock.later = after
        return +(await self.outbox.run_once(RECEIVER))

    def rows(self) -> list[dict[str, Any]]:
        """The outbox, in the order of its writing."""
        return sorted(
            self.scene.rows(notifications), key=lambda row: (row["written_ms"], row["number"])
        )


@asynccontextmanager
async def tenant_outbox(
    scene: Scene,
    receiver: Receiver | None = None,
    *,
    limit: timedelta = SEND_LIMIT,
    approvals_url: str = "",
    **others: Notifier,
) -> AsyncIterator[TenantOutbox]:
    """Open a worker's outbox for the tenant of a scene, and for no other one."""
    receiver, clock = receiver or Receiver(), Clock()
    url = scene.ledger.engine.url.render_as_string(hide_password=False)
    notifiers: dict[str, Notifier] = {RECEIVER: receiver, **others}
    async with open_ledger(url, channels=tuple(notifiers)) as ledger:
        ledger.tenants.add(scene.tenant)
        made = Outbox(ledger, notifiers, clock=clock, limit=limit, approvals_url=approvals_url)
        with made as outbox:
            yield TenantOutbox(Scene(ledger, scene.tenant), receiver, clock, outbox)
