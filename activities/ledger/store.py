"""The ledger's one door: transactions of one tenant that write their events last."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import structlog
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from activities.ledger.chain import event_hash
from activities.ledger.engine import (
    PATIENCE,
    LedgerUnavailable,
    enter_transaction,
    first_line,
    lock_name,
    make_engine,
    read_clock,
    unreachable,
)
from activities.ledger.tables import events, runs
from workflows.contracts import ChainHead

log = structlog.get_logger()

__all__ = ["Ledger", "LedgerUnavailable", "Observer", "RunNotFound", "Transaction", "open_ledger"]


class RunNotFound(Exception):
    """There is no such run in this tenant."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} not found")
        self.run_id = run_id


class Observer(Protocol):
    """Told what the ledger does; it must be quick and never raise."""

    def transaction(self, outcome: str, seconds: float) -> None:
        """Take note of a transaction: ``committed``, ``rolled_back`` or ``unavailable``."""

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        """Take note of an event that is committed."""


@dataclass(frozen=True)
class PendingEvent:
    """An event that waits for the end of its transaction to get its place in the chain."""

    type: str
    step_id: str | None
    body: dict[str, Any]


@dataclass
class Transaction:
    """One transaction of one tenant."""

    connection: AsyncConnection
    tenant: str
    now_ms: int
    """The database's clock at the start of the transaction, or at its newest ``tick``."""
    channels: tuple[str, ...] = ()
    """The notifiers by which people are told what happens in it."""
    pending: dict[str, list[PendingEvent]] = field(default_factory=lambda: defaultdict(list))
    has_news: bool = False
    """There is something in it to tell people."""
    heads: dict[str, ChainHead] = field(default_factory=dict)
    """The head of each run that got an event or was watched; filled when the transaction ends."""
    _watched: set[str] = field(default_factory=set)
    _reserved: dict[str, tuple[int, str]] = field(default_factory=dict)

    async def lock_step(self, run_id: str, step_id: str) -> None:
        """Let a step's claim and its undoing never pass each other unseen."""
        await lock_name(self.connection, f"step:{self.tenant}:{run_id}:{step_id}")

    async def lock_key(self, tool: str, key: str) -> None:
        """Let claims of one business key follow one another."""
        await lock_name(self.connection, f"key:{self.tenant}:{tool}:{key}")

    async def lock_call(self, run_id: str, step_id: str, tool: str, key: str) -> None:
        """Lock a step, then a business key."""
        step = f"step:{self.tenant}:{run_id}:{step_id}"
        await lock_name(self.connection, step, f"key:{self.tenant}:{tool}:{key}")

    async def lock_resource(self, resource: str) -> None:
        """Let leases of one resource follow one another; several are locked in order of names."""
        await lock_name(self.connection, f"resource:{self.tenant}:{resource}")

    async def tick(self) -> None:
        """Read the clock again: after waiting for a lock, what was read before it is too early."""
        self.now_ms = max(self.now_ms, await read_clock(self.connection))

    def event(
        self, run_id: str, type_: str, *, step_id: str | None = None, **body: Any
    ) -> PendingEvent:
        """Add an event to a run; it gets its ``seq`` when the transaction ends."""
        item = PendingEvent(type_, step_id, {k: v for k, v in body.items() if v is not None})
        self.pending[run_id].append(item)
        return item

    async def reserve_seq(self, run_id: str) -> int:
        """Take the run's chain now and return the ``seq`` of its next event.

        For the one row that has to know its place in the chain (a commit). It locks the run's row,
        so it comes after every other row lock of the transaction.
        """
        if run_id not in self._reserved:
            self._reserved[run_id] = await self._chain(run_id)
        return self._reserved[run_id][0] + len(self.pending[run_id]) + 1

    async def one(self, statement: Any) -> dict[str, Any] | None:
        """Return the first row of a statement, or ``None``."""
        row = (await self.connection.execute(statement)).mappings().first()
        return None if row is None else {str(name): value for name, value in row.items()}

    async def all(self, statement: Any) -> list[dict[str, Any]]:
        """Return all rows of a statement."""
        rows = (await self.connection.execute(statement)).mappings().all()
        return [{str(name): value for name, value in row.items()} for row in rows]

    async def execute(self, statement: Any) -> int:
        """Run a statement and return the number of rows it touched."""
        result = await self.connection.execute(statement)
        return int(result.rowcount)

    def watch(self, run_id: str) -> None:
        """Have ``heads`` tell this run's head at the end, even if it gets no event."""
        self._watched.add(run_id)

    async def _chain(self, run_id: str) -> tuple[int, str]:
        row = await self.one(
            select(runs.c.seq, runs.c.head)
            .where(runs.c.tenant_id == self.tenant, runs.c.run_id == run_id)
            # NO KEY: rows that refer to this run, inserted by parallel steps, hold a share of it.
            .with_for_update(key_share=True)
        )
        if row is None:
            raise RunNotFound(run_id)
        return int(row["seq"]), str(row["head"])

    async def write_events(self) -> None:
        """Chain the pending events; runs in order of run_id, so that writers never deadlock."""
        for run_id in sorted(self.pending):
            waiting = self.pending[run_id]
            if not waiting:
                continue
            seq, head = self._reserved.get(run_id) or await self._chain(run_id)
            rows = []
            for item in waiting:
                seq += 1
                event = {
                    "run_id": run_id,
                    "seq": seq,
                    "type": item.type,
                    "step_id": item.step_id,
                    "body": item.body,
                    "at_ms": self.now_ms,
                }
                previous, head = head, event_hash(head, event)
                rows.append({"tenant_id": self.tenant, **event, "previous": previous, "hash": head})
            await self.connection.execute(insert(events), rows)
            await self.execute(
                update(runs)
                .where(runs.c.tenant_id == self.tenant, runs.c.run_id == run_id)
                .values(seq=seq, head=head)
            )
            self.heads[run_id] = ChainHead(seq=seq, hash=head)
        for run_id in sorted(self._watched - self.heads.keys()):
            seq, head = await self._chain(run_id)
            self.heads[run_id] = ChainHead(seq=seq, hash=head)

    def tell_events(self, observer: Observer | None) -> None:
        """Say what has been committed: in the log, under the events' own names, and elsewhere."""
        for run_id, waiting in self.pending.items():
            for item in waiting:
                log.info(item.type, **{**item.body, "run_id": run_id, "step_id": item.step_id})
                if observer is not None:
                    observer.event(item.type, item.body)


class Ledger:
    """A ledger database."""

    def __init__(
        self,
        engine: AsyncEngine,
        observer: Observer | None = None,
        channels: tuple[str, ...] = (),
    ) -> None:
        self.engine = engine
        self._observer = observer
        self._channels = channels
        self.on_news: Callable[[], None] | None = None
        """Called after each transaction of this process that has something to tell people."""
        self.tenants: set[str] = set()
        """Tenants that this process has worked for; row-level security lists none."""

    @asynccontextmanager
    async def transaction(self, tenant: str) -> AsyncIterator[Transaction]:
        """Open a write transaction; commits at the end, rolls back on any exception.

        Raises:
            LedgerUnavailable: The database is away. When that happens at the commit, its outcome
                is unknown: every caller must be able to run its transaction again.
        """
        start, outcome = time.monotonic(), "rolled_back"
        try:
            async with self.engine.begin() as connection:
                now_ms = await enter_transaction(connection, tenant)
                self.tenants.add(tenant)
                transaction = Transaction(connection, tenant, now_ms, self._channels)
                yield transaction
                await transaction.write_events()
            outcome = "committed"
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
