"""Attempts that stand still where a test wants them to, die at crash points, and come back late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, create_engine, make_url

from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction
from surehand.activities.worker.crash_points import Crash, CrashPoint
from tests.ledger_databases import OWNER

T = TypeVar("T")

#: Far beyond the machine's own clock, which the ledger must never see.
_START_MS: Final = 4_000_000_000_000


_DATABASES_CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_TESTS_CLOCK: Final = "current_setting('surehand_test.now_ms')::bigint"


class Killed(BaseException):
    """The process of an attempt is gone; nothing in it may go on."""


@dataclass
class Clock:
    """The one clock of ledger, attempts and outside world; for ``process/clock.py`` in these."""

    now_ms: int = _START_MS

    def now(self) -> float:
        """Return seconds, as ``surehand.process.clock.now`` does."""
        return self.now_ms / 1000


@dataclass(eq=False)
class Attempt:
    """One attempt of an activity, in a process of its own that can stand still or die."""

    name: str
    crash_at: CrashPoint | None = None
    loses: int = 0
    """The number of the transaction that commits without its attempt hearing of it; 0: none."""
    sleepy: bool = False
    """Stands still before its first transaction."""
    hasty: bool = False
    """Never stands still: everything outside answers truly and at once."""
    stands: str = ""
    deadline_ms: int | None = None
    """When the call under way has to have ended."""
    task: asyncio.Task[Any] = field(init=False)
    _told: asyncio.Future[str] | None = None
    _still: asyncio.Event = field(default_factory=asyncio.Event)
    _transactions: int = 0

    async def stands_at(self, place: str) -> str:
        """Stand still until told how to go on."""
        if self.hasty:
            return "truth"
        self.stands, self._told = place, asyncio.get_running_loop().create_future()
        self._still.set()
        told = await self._told
        self.stands = ""
        if told == "killed":
            raise Killed
        return told

    async def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        token = _CURRENT.set(self)
        self.task = asyncio.create_task(work)
        _CURRENT.reset(token)
        await self._moves()

    async def go_on(self, told: str) -> None:
        """Let it go on, until it stands still again or has ended."""
        assert self._told is not None
        self._still.clear()
        self._told.set_result(told)
        await self._moves()

    async def kill(self) -> None:
        await self.go_on("killed")

    def loses_this_answer(self) -> bool:
        """Count a transaction and return whether its answer gets lost."""
        self._transactions += 1
        return self._transactions == self.loses

    async def _moves(self) -> None:
        standing = asyncio.create_task(self._still.wait())
        await asyncio.wait({self.task, standing}, return_when=asyncio.FIRST_COMPLETED)
        standing.cancel()
        await asyncio.wait({standing})


_CURRENT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def current() -> Attempt:
    attempt = _CURRENT.get()
    assert attempt is not None
    return attempt


class DyingCrash(Crash):
    """Ends the attempt instead of the process."""

    def at(self, tool: str, step: str, point: CrashPoint) -> None:
        """Die here, if this is the place."""
        if current().crash_at is point:
            raise Killed

    @contextmanager
    def during(self, tool: str, step: str) -> Iterator[None]:
        """Do nothing: an attempt can be killed wherever it stands in its call."""
        yield


class ClockedLedger(Ledger):
    """A real ledger under the test's clock, whose answers can get lost."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine)
        self._clock = clock
        # Each attempt stands for a process of its own.
        self.transactional = asyncio.Semaphore(1000)

    async def run_transaction(
        self, tenant: str, work: Callable[[Transaction], T], *_: Any
    ) -> tuple[T, Transaction]:
        """Make a transaction that takes place when the test's clock says."""
        attempt = _CURRENT.get()
        if attempt is not None and attempt.sleepy:
            attempt.sleepy = False
            await attempt.stands_at("start")
        with self.transaction(tenant) as tx:
            result = work(tx)
        if attempt is not None and attempt.loses_this_answer():
            raise LedgerUnavailable("the answer to the commit was lost")
        return result, tx

    @contextmanager
    def transaction(self, tenant: str) -> Iterator[Transaction]:
        """Open one here and now: an example has a hundred, and no thread to wait for."""
        # No two at the same time: what is newest would be anybody's guess.
        self._clock.now_ms += 1
        with super().transaction(tenant) as tx:
            tx.now_ms, tx.began = self._clock.now_ms, self._clock.now()
            yield tx


def take_the_tests_clock(ledger_url: str) -> None:
    """Have PostgreSQL's functions ask for the time that a ``ClockedLedger`` tells them."""
    owner = create_engine(make_url(ledger_url).set(username=OWNER))
    with owner.begin() as connection:
        found = connection.exec_driver_sql(
            "SELECT pg_get_functiondef(oid) FROM pg_proc"
            " WHERE pronamespace = 'public'::regnamespace AND strpos(prosrc, 'clock_timestamp') > 0"
        )
        made = [function.replace(_DATABASES_CLOCK, _TESTS_CLOCK) for function in found.scalars()]
        assert made
        assert not any("clock_timestamp" in function for function in made)
        for function in made:
            connection.exec_driver_sql(function.replace("%", "%%"))
    owner.dispose()
