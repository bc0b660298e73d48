"""A receiver at which notifications arrive, and a worker's outbox that sends them there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from surehand.activities.ledger.core.store import Transaction, open_ledger
from surehand.activities.ledger.core.tables import notifications
from surehand.activities.ledger.outbox.notification import SEND_LIMIT, Notification, Notifier
from surehand.activities.outbox import Outbox
from surehand.process.children import Child, python
from tests.ledger.scene import Scene

ROOT: Final = Path(__file__).parents[2]
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


class OnArrival(Protocol):
    """An outside service, and what happens when something reaches it, before it answers."""

    on_arrival: Callable[[], None]


async def kill_outbox_on_arrival(
    service: OnArrival, tenant: str, settings: Mapping[str, str], log: Path
) -> str:
    """Kill a process that sends what is due while it waits for the answer; return its output."""
    environment = {f"SUREHAND_{name.upper()}": value for name, value in settings.items()}
    doomed = Child(
        python("tests.outbox_process", tenant),
        environment={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        log=log,
    )
    service.on_arrival = lambda: doomed.signal(signal.SIGKILL)
    assert await asyncio.to_thread(doomed.wait, 60) == -signal.SIGKILL
    service.on_arrival = lambda: None
    return doomed.output()
