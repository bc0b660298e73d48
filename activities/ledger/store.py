"""The ledger's one door: transactions of one tenant that write their events last."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from activities.ledger.engine import (
    PATIENCE,
    TRANSACTIONAL,
    LedgerUnavailable,
    enter_transaction,
    first_line,
    make_engine,
    unreachable,
)
from activities.ledger.transaction import Observer, RunNotFound, Transaction
from activities.ledger.turns import Turns
from workflows.contracts import ChainHead
from workflows.identity import tenant_problem

__all__ = [
    "Ledger",
    "LedgerUnavailable",
    "Observer",
    "RunNotFound",
    "TenantInvalid",
    "Transaction",
    "open_ledger",
]

#: Runs whose head a process remembers.
_MOST_HEADS: Final = 1000


class TenantInvalid(ValueError):
    """There can be no tenant of that name: nothing is read or written for it."""


class Ledger:
    """A ledger database."""

    def __init__(
        self,
        engine: AsyncEngine,
        observer: Observer | None = None,
        channels: tuple[str, ...] = (),
    ) -> None:
        self.engine = engine
        self._turns = Turns.of(engine)
        self.one_writer = engine.dialect.name == "sqlite"
        """While a transaction is open, no other one begins, in any process."""
        self.transactional = asyncio.Semaphore(1 if self.one_writer else TRANSACTIONAL)
        """Held by each call of a transactional tool, from before its claim on."""
        self._observer = observer
        self._channels = channels
        self.on_news: Callable[[], None] | None = None
        """Called after each transaction of this process that has something to tell people."""
        self.tenants: set[str] = set()
        """Tenants that this process has worked for; row-level security lists none."""
        self._heads: dict[str, dict[str, ChainHead]] = defaultdict(dict)
        """The newest head of each run that this process has seen, by tenant."""

    @asynccontextmanager
    async def transaction(self, tenant: str, *, first: bool = False) -> AsyncIterator[Transaction]:
        """Open a write transaction; commits at the end, rolls back on any exception.

        Args:
            tenant: Whose.
            first: It keeps or records a call that is under way: other work lets it pass.

        Raises:
            TenantInvalid: Nobody can be called so.
            LedgerUnavailable: The database is away. When that happens at the commit, its outcome
                is unknown: every caller must be able to run its transaction again.
        """
        problem = tenant_problem(tenant)
        if problem is not None:
            raise TenantInvalid(f"tenant {tenant[:80]!r}: {problem}")
        start, outcome = time.monotonic(), "rolled_back"
        try:
            async with self._turns.turn(first=first), self.engine.begin() as connection:
                now_ms = await enter_transaction(connection, tenant)
                self.tenants.add(tenant)
                last_seen = self._heads[tenant]
                transaction = Transaction(
                    connection, tenant, now_ms, self._channels, last_seen=last_seen
                )
                yield transaction
                await transaction.write_events()
            outcome = "committed"
            self._remember(tenant, transaction.heads)
            transaction.tell_events(self._observer)
            if transaction.has_news and self.on_news is not None:
                self.on_news()
        except Exception as error:
            if unreachable(error):
                outcome = "unavailable"
                raise LedgerUnavailable(
                    f"ledger database: {type(error).__name__}: {first_line(error)}"
                ) from error
            raise
        finally:
            if self._observer is not None:
                self._observer.transaction(outcome, time.monotonic() - start)

    def _remember(self, tenant: str, heads: Mapping[str, ChainHead]) -> None:
        known = self._heads[tenant]
        for run_id, head in heads.items():
            known.pop(run_id, None)
            known[run_id] = head
        while len(known) > _MOST_HEADS:
            del known[next(iter(known))]


@asynccontextmanager
async def open_ledger(
    database_url: str,
    observer: Observer | None = None,
    channels: tuple[str, ...] = (),
    patience: timedelta = PATIENCE,
) -> AsyncIterator[Ledger]:
    """Open a ledger and dispose of its connections afterwards.

    Args:
        database_url: Where it is.
        observer: Told what the ledger does.
        channels: The notifiers for which what people have to know is written to the outbox.
        patience: How long a statement, or the wait for another writer, may take.
    """
    engine = make_engine(database_url, patience)
    try:
        yield Ledger(engine, observer, channels)
    finally:
        await engine.dispose()
