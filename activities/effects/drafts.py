"""Keeping what a call writes part by part: durable, fenced, whole at the end.

What is small is in the draft's row, what is larger in the artifact store, in a folder of the
draft's own: so it can be removed, and nothing else with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import structlog

from surehand.activities.artifacts import ArtifactUnavailable, folder_of
from surehand.activities.effects.leases import LeaseLost
from surehand.activities.effects.recorder import DATABASE_PAUSE, written
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps import drafts as draft_rows
from surehand.activities.ledger.steps.drafts import DraftPart, WrittenDraft
from surehand.activities.tools.call_reports import Draft, note_written
from surehand.activities.tools.failures import OutcomeUnknown, Permanent
from surehand.activities.worker.context import WorkerContext
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.payload_codec import NotKept, StoreUnavailable

log = structlog.get_logger()
T = TypeVar("T")

#: Bytes that a draft's row keeps: each part that is written rewrites them.
LARGEST_TAIL: Final = 64 * 1024


@dataclass(frozen=True)
class Writer:
    """The call that writes, and whether it still may."""

    tenant: str
    run_id: str
    step_id: str
    params_hash: str
    first: bool
    """It is the step's first attempt: what there is was written in an earlier life of the run."""
    still_ours: Callable[[Transaction], bool]
    """Locks what says whose call it is, and tells whether it is this attempt's."""
    only_reads: bool


class KeptDraft(Draft):
    """What one attempt writes."""

    def __init__(self, worker: WorkerContext, writer: Writer) -> None:
        super().__init__()
        self._worker = worker
        self._writer = writer
        self._written: WrittenDraft | None = None
        self._sure = True
        """Whether that is what stands: a tool may cancel what it writes in the middle."""
        # A write may have had its effect already: what it raises must not say that it had none.
        self._too_large = Permanent if writer.only_reads else OutcomeUnknown

    async def open(self) -> None:
        """Find what earlier attempts have written; a first one looks for nothing.

        So a call that writes nothing pays nothing until it is tried again.
        """
        if not self._writer.first:
            await self._find()

    async def _find(self) -> None:
        writer = self._writer
        wanted = (writer.run_id, writer.step_id, writer.params_hash)
        found = await self._fenced(lambda tx: draft_rows.standing(tx, *wanted))
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
            draft_rows.end(tx, self._written)

    async def _append(self, data: bytes) -> None:
        if not self._sure:
            await self._find()
        self._sure = False
        before = self._written or await self._begun()
        tail = await self._tail(before) + data
        sealed = await self._worker.artifacts.seal_part(*self._of(before), tail)
        after = replace(before, size=before.size + len(data), tail=sealed)
        if len(tail) > LARGEST_TAIL:
            part = DraftPart(uuid.uuid4().hex, hashlib.sha256(sealed).hexdigest(), len(tail))
            path = f"{folder_of(self._writer.tenant, before)}/{part.name}"
            await _once_it_answers(lambda: self._worker.artifacts.blobs.put(path, sealed))
            after = replace(after, parts=(*before.parts, part), tail=b"")

        def write(tx: Transaction) -> bool:
            return draft_rows.write(tx, before, after)

        try:
            if not await self._fenced(write):
                raise self._overtaken()
        except LeaseLost:
            # Whoever removes what is over may have done so before this part came.
            tenant, worker = self._writer.tenant, self._worker
            if await worker.ledger.transact(tenant, draft_rows.is_over, before):
                await worker.artifacts.remove_drafts(tenant, [before])
            raise
        self._stands(after)
        self._sure = True

    async def _begun(self) -> WrittenDraft:
        writer = self._writer
        begin = (writer.run_id, writer.step_id, writer.params_hash)
        return await self._fenced(lambda tx: draft_rows.begin(tx, *begin))

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
            self._stands(await self._begun())
            self._sure = True

    async def _keep(self, content: bytes, media_type: str) -> str:
        writer = self._writer
        whose = (writer.tenant, writer.run_id)
        kept = await self._worker.artifacts.keep_bytes(*whose, content, media_type)
        step = (writer.run_id, writer.step_id)
        await self._fenced(lambda tx: artifact_rows.record(tx, *step, kept))
        return kept.digest.removeprefix("sha256:")

    def _stands(self, now: WrittenDraft) -> None:
        self._written, self._size = now, now.size
        note_written(now.size)

    async def _fenced(self, work: Callable[[Transaction], T]) -> T:
        """Do something in a transaction in which the call is still this attempt's."""

        def fenced(tx: Transaction) -> T:
            if not self._writer.still_ours(tx):
                raise self._overtaken()
            return work(tx)

        ledger, tenant = self._worker.ledger, self._writer.tenant
        return await written(lambda: ledger.transact(tenant, fenced))

    def _overtaken(self) -> LeaseLost:
        return LeaseLost("another attempt has taken this call over: it writes no more")

    async def _part(self, part: DraftPart) -> bytes:
        assert self._written is not None
        path = f"{folder_of(self._writer.tenant, self._written)}/{part.name}"
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
        folder = folder_of(self._writer.tenant, draft)
        return self._writer.run_id, canonical_json(["draft", folder])


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
