"""Checkpoints of a long call: its progress, put into the ledger every few minutes.

So they are there without Temporal, too. The newest word is with the heartbeats (``progress.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.tools.call_reports import Progress, progressing
from surehand.activities.worker.attempt import Attempt
from surehand.activities.worker.context import WorkerContext
from surehand.workflows.contracts.tools import ToolCall

log = structlog.get_logger()


@asynccontextmanager
async def following(worker: WorkerContext, call: ToolCall, attempt: Attempt) -> AsyncIterator[None]:
    """Take what a call says of its progress, for as long as the block lasts."""
    doing, earlier = attempt.doing, None
    if doing.told_before is not None and doing.told_before["step_id"] == call.step_id:
        earlier = doing.told_before["progress"]
    progress = doing.progress = Progress(
        call.step_id, earlier, attempt=call.attempts_before + attempt.number
    )
    checkpoints = _Checkpoints(worker, call, attempt.number, progress)
    checkpoints.wait()
    try:
        with progressing(progress):
            yield
    finally:
        await checkpoints.end()
        doing.progress = None
        if earlier is not None:  # a batch may come to the step it is about only later
            doing.told_before = None


@dataclass
class _Checkpoints:
    """Puts a long call's progress into the ledger every few minutes."""

    worker: WorkerContext
    call: ToolCall
    number: int
    progress: Progress
    _next: asyncio.TimerHandle | None = field(default=None, init=False)
    _saving: asyncio.Task[None] | None = field(default=None, init=False)

    def wait(self) -> None:
        # A timer and no task: hardly any call is long enough to need one.
        every = self.worker.checkpoint_every.total_seconds()
        self._next = asyncio.get_running_loop().call_later(every, self._begin)

    async def end(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._saving is not None:
            # One that waits for its turn is left out: it must not outlast its call.
            self._saving.cancel()
            await asyncio.wait({self._saving})

    def _begin(self) -> None:
        if self._saving is None or self._saving.done():
            self._saving = asyncio.ensure_future(self._save())
        self.wait()

    async def _save(self) -> None:
        call, said = self.call, self.progress.newest
        kept = None
        if said is not None:
            store = self.worker.artifacts
            kept = await store.keep_in_ledger(call.tenant, call.run_id, said)

        def save(tx: Transaction) -> None:
            if kept is not None:
                artifact_rows.record(tx, call.run_id, call.step_id, kept)
            tx.event(
                call.run_id,
                "step.progress",
                step_id=call.step_id,
                tool=call.tool.name,
                attempt=call.attempts_before + self.number,
                progress=kept and kept.digest,
            )

        try:
            await self.worker.ledger.transact(call.tenant, save)
        except Exception as error:
            # The call goes on: its outcome is what counts, and the next checkpoint is due soon.
            log.warning("checkpoint.left_out", step_id=call.step_id, reason=repr(error))
