"""What a transactional tool gets of the ledger: its transaction, without its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import CursorResult, Executable

from surehand.activities.ledger.core.transaction import Transaction

T = TypeVar("T")
P = ParamSpec("P")

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

        Raises:
            RuntimeError: It has ended: the connection is somebody else's by now.
        """
        async with self._one:
            if self._ended:
                raise RuntimeError("the call is over, and so is its transaction")
            done: T = await self._in_thread(partial(work, self.tx, *args, **kwargs))
            return done

    async def end(self, work: Callable[[], Any], then: Callable[[Any], None] | None = None) -> None:
        """Commit it or roll it back, behind the statement that is under way."""
        self._ended = True
        idle = asyncio.ensure_future(self._one.acquire())
        cancelled: asyncio.CancelledError | None = None
        while not idle.done():
            try:
                await asyncio.wait({idle})
            except asyncio.CancelledError as error:
                cancelled = error
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
