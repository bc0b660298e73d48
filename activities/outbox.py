"""Sending what the ledger's outbox holds: at least once, by one worker at a time, beside all runs.

Each notifier has a loop and a thread of its own, so that one that hangs or fails delays nobody.
What waits for whom is looked at in the transaction that takes a row, right before it is sent.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

import structlog

from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction
from surehand.activities.ledger.outbox import notification_rows as rows
from surehand.activities.ledger.outbox.notification import (
    CHATS,
    SEND_LIMIT,
    MaybeDelivered,
    NotDelivered,
    Notification,
    Notifier,
    ReceiverGone,
)
from surehand.activities.ledger.outbox.notification_rows import Taken, write_reminders
from surehand.activities.ledger.steps.entries import milliseconds
from surehand.activities.worker.settings import Secrets
from surehand.activities.worker.telemetry import Metrics
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plain_text import plain_line


class Courier:
    """Has one notifier send, in a thread with an event loop of its own, within a limit.

    A notifier of the user's may block, and swallow its cancellation. Then it may still send what
    nobody waits for any more, and its thread ends with the process.
    """

    def __init__(self, name: str, notifier: Notifier, limit: timedelta = SEND_LIMIT) -> None:
        self._notifier, self._limit = notifier, limit
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=f"notifier {name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def send(self, notification: Notification) -> str | None:
        """Have it sent; returns what the notifier does.

        Raises ``NotDelivered`` or ``MaybeDelivered``.
        """
        sending = asyncio.run_coroutine_threadsafe(self._send(notification), self._loop)
        try:
            async with asyncio.timeout(self._limit.total_seconds()):
                return await asyncio.wrap_future(sending)
        except TimeoutError as error:
            limit = f"{self._limit.total_seconds():g} s"
            raise MaybeDelivered(f"it was not sent within {limit}") from error

    async def _send(self, notification: Notification) -> str | None:
        try:
            return await self._notifier.send(notification)
        except NotDelivered:
            raise
        except BaseException as error:
            # SystemExit and a cancellation, too: they would go on into the worker's own loop.
            raise NotDelivered(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """End the thread, unless its notifier blocks it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)


log = structlog.get_logger()

#: How often a worker looks for what others have left, what is tried again, and reminders; what its
#: own transactions write is sent at once.
POLL: Final = timedelta(seconds=5)
#: Nobody else takes a row while it is sent and recorded; after a crash it is sent again by then.
LEASE: Final = 3 * SEND_LIMIT
#: Rows that one notifier sends at once.
BATCH: Final = 8
#: Pause after the first failed attempt; each later one is twice as long, up to the longest. Only
#: what may have arrived has no longest: each attempt may be one more that people get.
FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(minutes=10)
#: Share of a pause by which attempts are spread.
_JITTER: Final = 0.2
#: From its writing on; an attempt that fails after that is the last one.
GIVE_UP_AFTER: Final = timedelta(days=1)
_NOBODY: Final = "no worker has had this notifier for a day"
#: Characters of an error that are kept.
_LONGEST_ERROR: Final = 300


def pause_after(attempt: int, chance: float, longest: timedelta = LONGEST_PAUSE) -> timedelta:
    """Return the pause after a failed attempt.

    ``chance``, from 0 to 1, says where in the spread the pause lies.
    """
    # Fifteen doublings are more than a day; a thousand are too large a number.
    pause: timedelta = min(FIRST_PAUSE * (1 << min(attempt - 1, 15)), longest)
    return pause * (1 - _JITTER + 2 * _JITTER * chance)


@dataclass
class Outbox:
    """Sends what is due, by the notifiers of one worker. Use it in a ``with`` statement."""

    ledger: Ledger
    notifiers: InitVar[Mapping[str, Notifier]]
    metrics: Metrics = field(default_factory=Metrics)
    secrets: Secrets = field(default_factory=Secrets)
    clock: Callable[[Transaction], int] = lambda tx: tx.now_ms
    """Tells the time in milliseconds; by default the database does."""
    limit: InitVar[timedelta] = SEND_LIMIT
    approvals_url: str = ""

    def __post_init__(self, notifiers: Mapping[str, Notifier], limit: timedelta) -> None:
        """Start a thread for each notifier."""
        self._couriers = {name: Courier(name, one, limit) for name, one in notifiers.items()}
        self._news = {name: asyncio.Event() for name in notifiers}
        self._gone: set[str] = set()
        self._stopping = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for courier in self._couriers.values():
            courier.close()

    async def run(self, stopping: asyncio.Event) -> None:
        """Send what is due until the worker stops; what is being sent then is waited for."""
        self._stopping, self.ledger.on_news = stopping, self._wake
        loops = [asyncio.create_task(self._keep(name)) for name in self._couriers]
        await stopping.wait()
        self.ledger.on_news = None
        self._wake()
        await asyncio.gather(*loops)

    def _wake(self) -> None:
        for news in self._news.values():
            news.set()

    async def _keep(self, channel: str) -> None:
        news = self._news[channel]
        while not self._stopping.is_set():
            news.clear()
            await self.run_once(channel)
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), POLL.total_seconds())

    async def run_once(self, channel: str) -> Counter[str]:
        """Send what is due by one notifier, for all tenants that this worker knows of.

        It returns how many were ``reminded``, ``sent``, ``failed`` (to be tried again),
        ``given_up`` and ``dropped`` (nobody waits for them any more).
        """
        counts: Counter[str] = Counter()
        for tenant in sorted({DEFAULT_TENANT, *self.ledger.tenants}):
            try:
                more = True
                while more and not self._stopping.is_set():
                    more = await self._batch(tenant, channel, counts)
            except LedgerUnavailable as error:
                log.warning("ledger.unavailable", error=str(error), holding="notifications")
            except Exception:
                log.exception("notification.loop_failed", tenant=tenant, channel=channel)
        return counts

    async def _batch(self, tenant: str, channel: str, counts: Counter[str]) -> bool:
        """Send some; returns whether there may be more that can be sent."""
        served = self._couriers.keys() - self._gone

        def take(tx: Transaction) -> tuple[int, list[Taken], list[Taken], int, int]:
            now_ms = self.clock(tx)
            reminded = write_reminders(tx, now_ms)
            found = rows.find_unserved(tx, served, now_ms, older_than=GIVE_UP_AFTER)
            orphans = [one for one in found if rows.give_up(tx, one, _NOBODY)]
            if channel not in served:
                return reminded, orphans, [], 0, 0
            return reminded, orphans, *rows.take_due(tx, channel, now_ms, limit=BATCH, lease=LEASE)

        reminded, orphans, taken, dropped, held = await self.ledger.transact(tenant, take)
        counts["reminded"] += reminded
        for orphan in orphans:
            _say_given_up(orphan, orphan.channel, _NOBODY)
            self._count(counts, orphan.channel, "given_up")
        self._count(counts, channel, "dropped", dropped)
        outcomes = await asyncio.gather(*(self._send(tenant, channel, one) for one in taken))
        for outcome in outcomes:
            self._count(counts, channel, outcome)
        # Where all of them fail, the rest would, too: other tenants' turn.
        return len(taken) + dropped + held == BATCH and (not taken or "sent" in outcomes)

    async def _send(self, tenant: str, channel: str, taken: Taken) -> str:
        """Send one and record what became of it; returns its outcome."""
        error: NotDelivered | None = None
        message: str | None = None
        try:
            told = taken.notification.linked(self.approvals_url)
            message = await self._couriers[channel].send(told)
        except NotDelivered as raised:
            error = raised
        try:
            if error is not None:
                return await self._failed(tenant, channel, taken, error)

            def sent(tx: Transaction) -> None:
                kept = message if channel in CHATS else None
                rows.record_sent(tx, taken.notification.delivery_id, self.clock(tx), kept)

            await self.ledger.transact(tenant, sent)
            return "sent"
        except LedgerUnavailable as away:
            # It is sent again once its lease is over.
            log.warning("ledger.unavailable", error=str(away), holding="a notification's outcome")
            return "unrecorded"

    async def _failed(self, tenant: str, channel: str, taken: Taken, error: NotDelivered) -> str:
        reason = self.secrets.hide(plain_line(error, _LONGEST_ERROR))
        gone = isinstance(error, ReceiverGone)
        if gone and channel not in self._gone:
            self._gone.add(channel)
            log.error("notifier.disabled", channel=channel, error=reason, until="the next start")
        longest = GIVE_UP_AFTER if isinstance(error, MaybeDelivered) else LONGEST_PAUSE
        pause = max(pause_after(taken.attempt, random.random(), longest), error.retry_after)
        end_ms = taken.written_ms + milliseconds(GIVE_UP_AFTER)

        def record(tx: Transaction) -> bool:
            now_ms = self.clock(tx)
            if gone or now_ms >= end_ms:
                return rows.give_up(tx, taken, reason)
            # However long the receiver wants to be left alone: once more before it is over.
            rows.put_off(tx, taken, reason, min(now_ms + milliseconds(pause), end_ms))
            return False

        if await self.ledger.transact(tenant, record):
            _say_given_up(taken, channel, reason)
            return "given_up"
        log.warning(
            "notification.not_sent",
            notification_id=taken.notification.delivery_id,
            channel=channel,
            attempt=taken.attempt,
            error=reason,
        )
        return "failed"

    def _count(self, counts: Counter[str], channel: str, outcome: str, number: int = 1) -> None:
        if number:
            counts[outcome] += number
            self.metrics.notified(channel, outcome, number)


def _say_given_up(taken: Taken, channel: str, reason: str) -> None:
    note = taken.notification
    log.error(
        "notification.given_up",
        notification_id=note.delivery_id,
        channel=channel,
        run_id=note.run_id,
        kind=note.kind,
        subject=note.subject,
        attempts=taken.attempt,
        error=reason,
    )
