"""One round of retention: delete runs that ended long ago, collect files that nobody refers to.

A round may be broken off anywhere, and done again. A row says that a run is going, then its files
go, then its rows. A run of which that fails is kept and named, and the round goes on with the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Concatenate, Final, ParamSpec, TypeVar

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.engine import forget_log
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction
from surehand.activities.ledger.runs import deletion
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.process.blobs import Collected, collect_unreferred
from surehand.process.exits import ExitCode
from surehand.workflows.payload_codec import StoreUnavailable, payloads_of

T = TypeVar("T")
P = ParamSpec("P")

#: Runs that are looked at in one transaction.
PAGE: Final = 200

#: Says whether the Temporal server still has a run's history.
KnownToTemporal = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class Kept:
    """A run whose time is over, and what keeps it."""

    run_id: str
    why: str
    failed: ExitCode | None = None
    """What has failed of it, as an exit code; ``None``: it is kept on purpose."""


@dataclass
class Round:
    """What a round has done, or would do."""

    deleted: list[str] = field(default_factory=list)
    """Runs, each with its child runs."""
    kept: list[Kept] = field(default_factory=list)
    files: Collected = field(default_factory=Collected)


@dataclass(frozen=True)
class Retention:
    """Whose data is looked after, and by whom."""

    ledger: Ledger
    artifacts: ArtifactStore
    tenant: str
    kept: timedelta | None
    """How long a run is kept after its end; ``None``: for ever."""
    by: str
    known: KnownToTemporal

    async def look(self) -> Round:
        """Return what a round would do, and do nothing."""
        found = Round(deleted=await self._do(deletion.find_going))
        async for root in self._find_due(found):
            if (why := await self._do(deletion.why_kept, root)) is None:
                found.deleted.append(root)
            else:
                found.kept.append(Kept(root, why))
        return found

    async def round(self) -> Round:
        """Delete and collect.

        What fails of one run keeps that run. What concerns all of them ends the round. Raises
        ``LedgerUnavailable``, ``StoreUnavailable`` or ``NotPermitted``.
        """
        done = Round()
        try:
            await self._do_round(done)
        except LedgerUnavailable:
            raise
        except Exception:
            # A role that may not delete may not record it, either.
            refused = deletion.NotPermitted, deletion.DatabaseRefuses
            with suppress(LedgerUnavailable, *refused), deletion.explain_refusal(self.ledger):
                await self._do(deletion.record_round, failed=True)
            raise
        await self._do(deletion.record_round, failed=any(one.failed for one in done.kept))
        return done

    async def _do_round(self, done: Round) -> None:
        for root in await self._do(deletion.find_going):
            await self._delete(done, root)
        async for root in self._find_due(done):
            await self._delete(done, root)
        referred, now_ms = await self._do(deletion.read_references)
        done.files = await collect_unreferred(self.artifacts.blobs, self.tenant, referred, now_ms)
        await asyncio.to_thread(forget_log, self.ledger.engine)

    async def _do(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.ledger.transact(self.tenant, work, *args, **kwargs)

    async def _find_due(self, found: Round) -> AsyncIterator[str]:
        after: deletion.Candidate | None = None
        while True:
            page = await self._do(deletion.find_due, self.kept, after, PAGE)
            for candidate in page:
                if (why := await self._why_resettable(candidate.run_id)) is None:
                    yield candidate.run_id
                else:
                    found.kept.append(Kept(candidate.run_id, why))
            if len(page) < PAGE:
                return
            after = page[-1]

    async def _why_resettable(self, root: str) -> str | None:
        """Return which run of a tree Temporal still has: it can be reset, and reads payloads."""
        for run_id in await self._do(deletion.list_tree, root):
            if await self.known(run_id):
                return f"Temporal has the history of {run_id} until its own retention is over"
        return None

    async def _delete(self, done: Round, root: str) -> None:
        async with self._keep_failed(done, root):
            if elsewhere := await self.artifacts.blobs.elsewhere(root):
                done.kept.append(Kept(root, elsewhere, ExitCode.NOT_REACHABLE))
                return
            going = await self._do(deletion.begin_deletion, root, by=self.by)
            if isinstance(going, str):
                done.kept.append(Kept(root, going))
                return
            for run_id in going:
                await self._remove_drafts(run_id)
            # Artifacts may be others', too: they are collected.
            await self.artifacts.blobs.remove(payloads_of(root))
            await self._do(deletion.finish_deletion, going)
            done.deleted.append(root)

    @asynccontextmanager
    async def _keep_failed(self, done: Round, run_id: str) -> AsyncIterator[None]:
        """Have what fails of a run keep it, and name it."""
        try:
            with deletion.explain_refusal(self.ledger):
                yield
        except StoreUnavailable as error:
            # It is away, unless it answers this.
            await self.artifacts.blobs.store_id()
            done.kept.append(Kept(run_id, str(error), ExitCode.NOT_REACHABLE))
        except deletion.DatabaseRefuses as error:
            done.kept.append(Kept(run_id, str(error), ExitCode.UNEXPECTED))

    async def _remove_drafts(self, run_id: str) -> None:
        over = await self._do(artifact_rows.end_unneeded_drafts, run_id)
        await self.artifacts.remove_drafts(self.tenant, over)
        if await self._do(artifact_rows.end_unneeded_drafts, run_id):
            raise StoreUnavailable(f"drafts of run {run_id} cannot be removed now")
