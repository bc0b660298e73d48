"""What a call leaves in the ledger while it runs: drafts of artifacts, and how far it has come.

A draft is written part by part: durable, fenced, whole at the end. What is small is in its row,
what is larger in the artifact store, in a folder of the draft's own: so it can be removed, and
nothing else with it.

Progress is put into the ledger every few minutes, so that it is there without Temporal, too. The
newest word is with the heartbeats (``tools/call_reports.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import structlog

from surehand.activities.artifacts import ArtifactUnavailable, folder_of
from surehand.activities.effects.leases import DATABASE_PAUSE, LeaseLost
from surehand.activities.effects.recorder import write_surely
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import DraftPart, WrittenDraft
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.activities.tools.call_reports import Draft, Progress, current_progress, take_progress
from surehand.activities.tools.failures import OutcomeUnknown, Permanent
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.payload_codec import NotKept, StoreUnavailable

log = structlog.get_logger()
T = TypeVar("T")

#: Bytes that a draft's row keeps: each part that is written rewrites them.
LARGEST_TAIL: Final = 64 * 1024


class KeptDraft(Draft):
    """What one attempt writes."""

    def __init__(
        self,
        worker: WorkerContext,
        call: ClaimRequest,
        still_ours: Callable[[Transaction], bool],
        *,
        only_reads: bool,
    ) -> None:
        """Write for a call.

        ``still_ours`` locks what says whose call it is, and tells whether it is this attempt's.
        """
        super().__init__()
        self._worker = worker
        self._call = call
        self._still_ours = still_ours
        self._written: WrittenDraft | None = None
        self._sure = True
        """Whether that is what stands: a tool may cancel what it writes in the middle."""
        # A write may have had its effect already: what it raises must not say that it had none.
        self._too_large = Permanent if only_reads else OutcomeUnknown

    async def open(self) -> None:
        """Find what earlier attempts have written; a first one looks for nothing.

        So a call that writes nothing pays nothing until it is tried again.
        """
        # What a step's first attempt would find was written in an earlier life of the run.
        if self._call.attempt > 1:
            await self._find()

    @property
    def _key(self) -> tuple[str, str, str]:
        return self._call.run_id, self._call.step_id, self._call.params_hash

    async def _find(self) -> None:
        found = await self._fenced(lambda tx: artifact_rows.find_draft(tx, *self._key))
        if found is not None:
            self._stands(found)
        self._sure = True

    @property
    def is_written(self) -> bool:
        """Whether there is anything of it in the ledger, as far as this attempt knows."""
        return self._written is not None

    def end(self, tx: Transaction) -> None:
        """Record with the call's outcome that nothing more is written."""
        if self._written is not None:
            artifact_rows.end_draft(tx, self._written)

    async def _append(self, data: bytes) -> None:
        if not self._sure:
            await self._find()
        self._sure = False
        before = self._written or await self._begin()
        tail = await self._tail(before) + data
        sealed = await self._worker.artifacts.seal_part(*self._of(before), tail)
        after = replace(before, size=before.size + len(data), tail=sealed)
        if len(tail) > LARGEST_TAIL:
            part = DraftPart(uuid.uuid4().hex, hashlib.sha256(sealed).hexdigest(), len(tail))
            path = f"{folder_of(self._call.tenant, before)}/{part.name}"
            await _once_it_answers(lambda: self._worker.artifacts.blobs.put(path, sealed))
            after = replace(after, parts=(*before.parts, part), tail=b"")

        def write(tx: Transaction) -> bool:
            return artifact_rows.write_draft(tx, before, after)

        try:
            if not await self._fenced(write):
                raise self._overtaken()
        except LeaseLost:
            # Whoever removes what is over may have done so before this part came.
            tenant, worker = self._call.tenant, self._worker
            if await worker.ledger.transact(tenant, artifact_rows.is_draft_over, before):
                await worker.artifacts.remove_drafts(tenant, [before])
            raise
        self._stands(after)
        self._sure = True

    async def _begin(self) -> WrittenDraft:
        return await self._fenced(lambda tx: artifact_rows.begin_draft(tx, *self._key))

    async def _read(self, start: int) -> bytes:
        if not self._sure:
            await self._find()
        if self._written is None:
            return b""
        found, at = list[bytes](), 0
        for part in self._written.parts:
            if at + part.size > start:
                found.append((await self._part(part))[max(0, start - at) :])
            at += part.size
        tail = await self._tail(self._written)
        return b"".join([*found, tail[max(0, start - at) :]])

    async def _restart(self) -> None:
        if self._written is not None or not self._sure:
            self._stands(await self._begin())
            self._sure = True

    async def _keep(self, content: bytes, media_type: str) -> str:
        call = self._call
        kept = await self._worker.artifacts.keep_bytes(
            call.tenant, call.run_id, content, media_type
        )
        step = (call.run_id, call.step_id)
        await self._fenced(lambda tx: artifact_rows.record_artifact(tx, *step, kept))
        return kept.digest.removeprefix("sha256:")

    def _stands(self, now: WrittenDraft) -> None:
        self._written, self._size = now, now.size
        current_progress().bytes_written = now.size

    async def _fenced(self, work: Callable[[Transaction], T]) -> T:
        """Do something in a transaction in which the call is still this attempt's."""

        def fenced(tx: Transaction) -> T:
            if not self._still_ours(tx):
                raise self._overtaken()
            return work(tx)

        ledger, tenant = self._worker.ledger, self._call.tenant
        return await write_surely(lambda: ledger.transact(tenant, fenced))

    def _overtaken(self) -> LeaseLost:
        return LeaseLost("another attempt has taken this call over: it writes no more")

    async def _part(self, part: DraftPart) -> bytes:
        assert self._written is not None
        path = f"{folder_of(self._call.tenant, self._written)}/{part.name}"
        blobs = self._worker.artifacts.blobs
        try:
            content = await _once_it_answers(lambda: blobs.get(path))
        except NotKept as error:
            raise ArtifactUnavailable(f"a part of the draft is lost: {path}") from error
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise ArtifactUnavailable(f"a part of the draft is not what was written: {path}")
        return await self._worker.artifacts.open_part(*self._of(self._written), content)

    async def _tail(self, of: WrittenDraft) -> bytes:
        if not of.tail:
            return b""
        return await self._worker.artifacts.open_part(*self._of(of), of.tail)

    def _of(self, draft: WrittenDraft) -> tuple[str, bytes]:
        """Return the run whose key seals a draft, and what its parts are bound to."""
        folder = folder_of(self._call.tenant, draft)
        return self._call.run_id, canonical_json(["draft", folder])


async def _once_it_answers(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the store, however long it does not answer: the call's own limit ends that."""
    while True:
        try:
            return await ask()
        except NotKept:
            raise
        except StoreUnavailable as error:
            log.warning("draft.waits_for_store", error=str(error))
            await asyncio.sleep(DATABASE_PAUSE)


@asynccontextmanager
async def follow_progress(
    worker: WorkerContext, call: ToolCall, attempt: Attempt
) -> AsyncIterator[None]:
    """Take what a call says of its progress, for as long as the block lasts."""
    doing, earlier = attempt.doing, None
    if doing.told_before is not None and doing.told_before["step_id"] == call.step_id:
        earlier = doing.told_before["progress"]
    progress = doing.progress = Progress(call.step_id, earlier)
    checkpoints = _Checkpoints(worker, call, attempt.number, progress)
    checkpoints.wait()
    try:
        with take_progress(progress):
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
                artifact_rows.record_artifact(tx, call.run_id, call.step_id, kept)
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
