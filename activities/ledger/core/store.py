"""The ledger's one door: transactions of one tenant that write their events last.

All that works on the ledger is a plain function of a ``Transaction``. From an event loop,
``transact`` has one done in a thread, from BEGIN to COMMIT in one hop; whatever runs in a thread
already opens a ``transaction``.

Renewals of calls under way come first, then outcomes, and some connections are kept for each: while
other work, however much, waits for its turn, nobody loses a lease over it. Transactional calls are
long: they have places of their own, in which tenants take turns.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import CursorResult, Engine, Executable

from surehand.activities.ledger.core.engine import (
    CONNECTIONS,
    FOR_RENEWALS,
    KEPT_BACK,
    PATIENCE,
    TRANSACTIONAL,
    LedgerUnavailable,
    enter_transaction,
    first_line,
    make_engine,
    unreachable,
)
from surehand.activities.ledger.core.sealed import KeyNeeded, KnownKey
from surehand.activities.ledger.core.transaction import Observer, RunNotFound, Transaction
from surehand.process.ciphers import RememberedKeys, RunKey
from surehand.process.off_loop import call_off_loop
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.identity import DEFAULT_TENANT, root_run_id, tenant_problem
from surehand.workflows.payload_codec import KeyErased, KeyUnavailable

T = TypeVar("T")
P = ParamSpec("P")


class Turn(Enum):
    """What a transaction is for; those named first come first."""

    RENEWAL = "renewal"
    """Keeps the lease of a call under way."""
    OUTCOME = "outcome"
    """Records what has come of a call."""
    OTHER = "other"


#: How long a transaction waits for its turn; then the database counts as away. Temporal gives an
#: attempt up after 20 s: one that nobody waits for must not be in the way of its own retry. What is
#: in hand is written by nobody else.
_TURN_PATIENCE: Final = {
    Turn.RENEWAL: timedelta(seconds=60),
    Turn.OUTCOME: timedelta(seconds=60),
    Turn.OTHER: timedelta(seconds=10),
}


_Queue = deque[asyncio.Future[None]]


async def _wait_in(queue: _Queue, leave: Callable[[], None]) -> None:
    """Wait to be called; if we are cancelled right after that, ``leave`` gives back what we got."""
    called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.append(called)
    try:
        await called
    except BaseException:
        if called.done() and not called.cancelled():
            leave()
        raise


def _call_first(queue: _Queue) -> bool:
    """Call the first one that is still there; ``False``: nobody is."""
    while queue:
        called = queue.popleft()
        if not called.done():
            called.set_result(None)
            return True
    return False


class Turns:
    """As many transactions at once as there are connections, and the rest in queues."""

    def __init__(self, most: int, kept: int = 0, for_renewals: int = 0) -> None:
        """Make the queues.

        Of ``most`` turns, ``kept`` are for renewals and outcomes alone, and ``for_renewals`` of
        these for renewals.
        """
        self.most = most
        self._taken = 0
        self._limits = {
            Turn.RENEWAL: most,
            Turn.OUTCOME: most - for_renewals,
            Turn.OTHER: most - kept,
        }
        self._queues = {turn: _Queue() for turn in Turn}

    @classmethod
    def of(cls, engine: Engine) -> Turns:
        """Return the turns of an engine's connections; SQLite has one, for one writer."""
        if engine.dialect.name == "sqlite":
            return cls(1)
        return cls(CONNECTIONS, KEPT_BACK, FOR_RENEWALS)

    @asynccontextmanager
    async def turn(self, turn: Turn) -> AsyncIterator[None]:
        """Wait for a turn and have it for as long as the block lasts."""
        if self._taken < self._limits[turn]:
            self._taken += 1
        else:
            async with asyncio.timeout(_TURN_PATIENCE[turn].total_seconds()):
                await _wait_in(self._queues[turn], self._leave)
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._taken -= 1
        for turn, queue in self._queues.items():
            while self._taken < self._limits[turn] and _call_first(queue):
                self._taken += 1


class Places:
    """As many calls at once as there are places; tenants take turns, however many each has waiting.

    So one that has queued a hundred of them keeps another one's waiting for one call of its own.
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._queues: dict[str, _Queue] = {}
        """By tenant, the one whose turn is next first."""

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place and have it for as long as the block lasts."""
        if self._free:
            self._free -= 1
        else:
            await _wait_in(self._queues.setdefault(tenant, deque()), self._leave)
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            called = _call_first(queue)
            del self._queues[tenant]
            if queue:
                self._queues[tenant] = queue  # behind all others
            if called:
                return
        self._free += 1


async def _wait_through(pending: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until it is done; return what has cancelled us meanwhile, if anything has."""
    cancelled: asyncio.CancelledError | None = None
    while not pending.done():
        try:
            await asyncio.wait({pending})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


#: Read at once: a row that is fetched later would be fetched in the event loop.
_AT_ONCE: Final = {"prebuffer_rows": True}


class LongTransaction:
    """A transaction that is open while its tool works; each piece of it is done in a thread."""

    def __init__(self, tx: Transaction, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self.tx = tx
        self._in_thread = in_thread
        # A tool may have several statements under way; a connection has one.
        self._one = asyncio.Lock()
        self._ended = False

    async def do(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do something in it, and return what that returns.

        Once it has ended, the connection is somebody else's: then this raises.
        """
        async with self._one:
            if self._ended:
                raise RuntimeError("the call is over, and so is its transaction")
            done: T = await self._in_thread(partial(work, self.tx, *args, **kwargs))
            return done

    async def end(self, work: Callable[[], Any], then: Callable[[Any], None] | None = None) -> None:
        """Commit it or roll it back, behind the statement that is under way."""
        self._ended = True
        cancelled = await _wait_through(asyncio.ensure_future(self._one.acquire()))
        try:
            await self._in_thread(work, then)
        finally:
            self._one.release()
            if cancelled is not None:
                raise cancelled


class Session:
    """The ledger's SQL session of one call of a ``transactional`` tool.

    What is written here commits together with the outcome of the call, or not at all. There is no
    ``commit`` and no ``rollback``: to give up, raise; a ``No`` gives up, too.
    """

    def __init__(self, transaction: LongTransaction) -> None:
        self._transaction = transaction

    async def execute(
        self,
        statement: Executable,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> CursorResult[Any]:
        """Run an SQL statement (SQLAlchemy Core, or ``sqlalchemy.text``)."""

        def executed(tx: Transaction) -> CursorResult[Any]:
            return tx.connection.execute(statement, parameters, execution_options=_AT_ONCE)

        return await self._transaction.do(executed)


__all__ = [
    "Ledger",
    "LedgerUnavailable",
    "Observer",
    "RunNotFound",
    "Session",
    "TenantInvalid",
    "Transaction",
    "open_ledger",
]

_NONE: Final[Mapping[str, RunKey | KeyErased]] = {}
#: Runs whose head a process remembers.
_MOST_HEADS: Final = 1000


class TenantInvalid(ValueError):
    """There can be no tenant of that name: nothing is read or written for it."""


class Ledger:
    """A ledger database."""

    def __init__(
        self,
        engine: Engine,
        observer: Observer | None = None,
        channels: tuple[str, ...] = (),
        patience: timedelta = PATIENCE,
    ) -> None:
        self.engine = engine
        self._patience = patience
        self._turns = Turns.of(engine)
        # One for each turn: whoever has a turn never waits for a thread.
        self._threads = ThreadPoolExecutor(self._turns.most, thread_name_prefix="ledger")
        self.one_writer = engine.dialect.name == "sqlite"
        """While a transaction is open, no other one begins, in any process."""
        self.transactional = Places(1 if self.one_writer else TRANSACTIONAL)
        """Held by each call of a transactional tool, from before its claim on."""
        self._observer = observer
        self._channels = channels
        self.on_news: Callable[[], None] | None = None
        """Called after each transaction of this process that has something to tell people."""
        self.tenants: set[str] = set()
        """Tenants that this process has worked for; row-level security lists none."""
        self.keys: RememberedKeys | None = None
        """The keys of runs, with which people's values are sealed; ``None``: nothing is."""
        self.passkey_origins: tuple[str, ...] = ()
        """The pages whose passkeys' proofs count; none: no passkey counts."""
        self._heads: dict[str, dict[str, ChainHead]] = defaultdict(dict)
        """The newest head of each run that this process has seen, by tenant."""
        self._remembering = threading.Lock()
        self._open: set[ExitStack] = set()
        """Long transactions."""

    def close(self) -> None:
        """End its threads and connections, and roll back what is open."""
        self._threads.shutdown()
        closed = LedgerUnavailable("the ledger is closed")
        for stack in list(self._open):
            # No thread is left to end it, and on SQLite nobody else could write.
            stack.__exit__(LedgerUnavailable, closed, None)
        self.engine.dispose()

    async def transact(
        self,
        tenant: str,
        work: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do something in one transaction, as ``run_transaction`` does; return what it returns."""
        result, _ = await self.run_transaction(tenant, lambda tx: work(tx, *args, **kwargs))
        return result

    async def record(
        self,
        tenant: str,
        run_id: str,
        work: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[T, ChainHead]:
        """Do the same for a run, and return its head after the transaction beside the result."""

        def watched(tx: Transaction) -> T:
            tx.watch(run_id)
            return work(tx, *args, **kwargs)

        result, tx = await self.run_transaction(tenant, watched)
        return result, tx.heads[run_id]

    async def ping(self, limit: timedelta) -> None:
        """See whether the database answers, past all work that waits for its turn."""
        await self.run_transaction(DEFAULT_TENANT, lambda tx: None, Turn.RENEWAL, limit)

    async def run_transaction(
        self,
        tenant: str,
        work: Callable[[Transaction], T],
        turn: Turn = Turn.OTHER,
        limit: timedelta = timedelta.max,
    ) -> tuple[T, Transaction]:
        """Do something in one transaction, in a thread; it is rolled back if it raises.

        Whoever is cancelled meanwhile is told once the transaction has ended, either way. If the
        database is away at the commit (``LedgerUnavailable``), its outcome is unknown: every caller
        must be able to run its transaction again. ``limit`` is for a statement, if it is less than
        the patience. It returns the transaction as it has ended, too.
        """
        held: dict[str, RunKey | KeyErased] = {}

        def whole() -> tuple[T, Transaction]:
            with self._begin(tenant, min(limit, self._patience), held=held) as tx:
                return work(tx), tx

        while True:
            try:
                with self._judged(tenant) as committed:
                    async with self._turns.turn(turn):
                        return await self._in_thread(whole, lambda done: committed(done[1]))
            except KeyNeeded as needed:
                for root in needed.roots:
                    if isinstance(erased := held.get(root), KeyErased):
                        raise erased from needed
                held |= await self.fetch_keys(needed)

    async def with_keys(self, work: Callable[[], T], about: object = None) -> T:
        """Do something that needs keys of runs but no transaction, once they are at hand.

        If ``about`` is large, a thread does it. It raises ``KeyErased``.
        """
        while True:
            try:
                return await call_off_loop(lambda _: work(), about)
            except KeyNeeded as needed:
                for found in (await self.fetch_keys(needed)).values():
                    if isinstance(found, KeyErased):
                        raise found from needed

    async def fetch_keys(self, needed: KeyNeeded) -> dict[str, RunKey | KeyErased]:
        """Return keys of runs that are not at hand, and which of them were erased."""
        assert self.keys is not None, "nothing is sealed without keys"
        found: dict[str, RunKey | KeyErased] = {}
        for root in needed.roots:
            try:
                found[root] = await self.keys.key_of(root, make=needed.make)
            except KeyErased as erased:
                found[root] = erased
            except KeyUnavailable as error:
                raise LedgerUnavailable(str(error)) from error
        return found

    @asynccontextmanager
    async def long_transaction(
        self, tenant: str, run_id: str, limit: timedelta
    ) -> AsyncIterator[LongTransaction]:
        """Open a transaction for a transactional tool; it commits at the end of the block.

        The key of the run that calls the tool is at hand for all of it. ``limit`` is the tool's.
        """
        held: dict[str, RunKey | KeyErased] = {}
        if self.keys is not None:
            held = await self.fetch_keys(KeyNeeded([root_run_id(run_id)], make=True))
        with self._judged(tenant) as committed:
            async with self._turns.turn(Turn.OTHER):
                stack = ExitStack()
                self._open.add(stack)
                stack.callback(self._open.discard, stack)
                statement, idle = min(limit, self._patience), limit + self._patience
                opening = self._begin(tenant, statement, idle, held)
                try:
                    tx = await self._in_thread(partial(stack.enter_context, opening))
                except BaseException as error:
                    how = (type(error), error, error.__traceback__)
                    await self._in_thread(partial(stack.__exit__, *how))
                    raise
                opened = LongTransaction(tx, self._in_thread)
                try:
                    yield opened
                except BaseException as error:
                    how = (type(error), error, error.__traceback__)
                    await opened.end(partial(stack.__exit__, *how))
                    raise
                await opened.end(stack.close, lambda _: committed(tx))

    @contextmanager
    def transaction(self, tenant: str) -> Iterator[Transaction]:
        """Open a transaction in this thread; commits at the end, rolls back on any exception.

        It waits for no turn: from a worker's event loop, ``transact`` is the way. So it is for all
        that may be sealed: here no key is fetched.
        """
        with self._judged(tenant) as committed:
            with self._begin(tenant, self._patience) as tx:
                yield tx
            committed(tx)

    async def _in_thread(self, work: Callable[[], T], then: Callable[[T], None] | None = None) -> T:
        """Have a thread do something to its end; whoever is cancelled meanwhile is told then.

        So nothing that is cut off is left in a state that nobody knows. ``then`` is done here with
        its result, also for one that was cancelled.
        """
        context = contextvars.copy_context()
        hop = asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)
        cancelled = await _wait_through(hop)
        try:
            result = hop.result()
            if then is not None:
                then(result)
        finally:
            if cancelled is not None:
                raise cancelled
        return result

    @contextmanager
    def _begin(
        self,
        tenant: str,
        limit: timedelta,
        idle: timedelta | None = None,
        held: Mapping[str, RunKey | KeyErased] = _NONE,
    ) -> Iterator[Transaction]:
        entered = enter_transaction(self.engine, tenant, limit, idle or limit)
        with entered as (connection, now_ms, began):
            tx = Transaction(
                *(connection, tenant, now_ms, began, self._channels, self.passkey_origins),
                last_seen=self._heads[tenant],
                keys=self._known_keys(held),
            )
            yield tx
            tx.write_events()
            tx.commit_sent()

    def _known_keys(self, held: Mapping[str, RunKey | KeyErased]) -> KnownKey | None:
        if self.keys is None:
            return None
        known = self.keys.known
        return lambda root: held.get(root) or known(root)

    @contextmanager
    def _judged(self, tenant: str) -> Iterator[Callable[[Transaction], None]]:
        """Measure a transaction and say what is wrong with it; yields what tells of its commit."""
        problem = tenant_problem(tenant)
        if problem is not None:
            raise TenantInvalid(f"tenant {tenant[:80]!r}: {problem}")
        start, outcome = time.monotonic(), "rolled_back"

        def committed(tx: Transaction) -> None:
            nonlocal outcome
            outcome = "committed"
            self.tenants.add(tenant)
            self._remember(tenant, tx.heads)
            tx.tell_events(self._observer)
            if tx.has_news and self.on_news is not None:
                self.on_news()

        try:
            yield committed
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
        with self._remembering:
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
    """Open a ledger and end its threads and connections afterwards."""
    ledger = Ledger(make_engine(database_url, patience), observer, channels, patience)
    try:
        yield ledger
    finally:
        ledger.close()
