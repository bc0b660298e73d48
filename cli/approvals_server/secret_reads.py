"""Each look at secret params is on record before anything of them is shown."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from surehand.activities.ledger.approvals.reads import (
    record_question_read,
    record_read,
    secret_requests,
)
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.history.one_approval import OneApproval
from surehand.workflows.contracts.interrupts import Interrupt

#: Looks that are known to be on record. An older one is recorded once more.
MOST: Final = 10_000


class SecretReads:
    """The looks of those who are signed in now; once for each sign-in and request or question."""

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        """Make it; ``ledger`` takes the events, ``tenant`` is whose requests these are."""
        self._ledger = ledger
        self._tenant = tenant
        self._known = OrderedDict[tuple[str, ...], None]()
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
        look = ("approval", one.row["approval_id"])
        await self._once(look, cookie, partial(record_read, row=one.row, reader=reader))

    async def record_questions(
        self, run_id: str, questions: Iterable[Interrupt], reader: str, cookie: str
    ) -> None:
        """Record that somebody is shown what a run's questions are about, where that is secret.

        Args:
            run_id: The run that asks.
            questions: What it asks.
            reader: Who is signed in.
            cookie: Of this sign-in.

        Raises:
            LedgerUnavailable: It cannot be recorded, so nothing may be shown.
        """
        for asked in questions:
            if asked.secret:
                look = ("question", run_id, asked.interrupt_id)
                write = partial(record_question_read, run_id=run_id, asked=asked, reader=reader)
                await self._once(look, cookie, write)

    async def record_artifact(self, run_id: str, step_id: str, reader: str, cookie: str) -> None:
        """Record that somebody is handed what a step has kept: large params are kept, too.

        Args:
            run_id: The run.
            step_id: The step.
            reader: Who is signed in.
            cookie: Of this sign-in.

        Raises:
            LedgerUnavailable: It cannot be recorded, so nothing may be handed out.
        """
        for row in await self._ledger.transact(self._tenant, secret_requests, run_id, step_id):
            look = ("approval", row["approval_id"])
            await self._once(look, cookie, partial(record_read, row=row, reader=reader))

    async def _once(
        self, look: tuple[str, ...], cookie: str, write: Callable[[Transaction], None]
    ) -> None:
        known = (hashlib.sha256(cookie.encode()).hexdigest(), *look)
        async with self._recording:
            if known in self._known:
                return
            await self._ledger.transact(self._tenant, write)
            self._known[known] = None
            if len(self._known) > MOST:
                self._known.popitem(last=False)
