"""One round of retention: hide what is old, delete what was hidden, collect what nobody refers to.

A round may be broken off anywhere, and done again. What is deleted is exported first. Then a row
says that it is going, then its files go, then its rows. A run of which that fails is kept and
named, and the round goes on with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.engine import forget_log
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.retention import deletion, hiding, policy
from surehand.activities.ledger.retention.content import (
    CHECKPOINTS,
    Content,
    Exported,
    content_of,
)
from surehand.activities.ledger.retention.deletion import Going, Moved
from surehand.activities.ledger.retention.policy import Policy
from surehand.activities.ledger.steps import drafts as draft_rows
from surehand.process.blobs import Collected, collect_unreferred, read_kept
from surehand.process.exits import ExitCode, SurehandError
from surehand.workflows.payload_codec import NotKept, StoreUnavailable, path_of, payloads_of

#: Runs that are looked at in one transaction.
PAGE: Final = 200
#: How an export fails that says something of its run alone: its chain is broken, or it cannot be
#: written. What else an export raises concerns all runs.
_OF_ONE_RUN: Final = (ExitCode.BROKEN, ExitCode.OUTPUT_LOST)

#: Says whether the Temporal server still has a run's history.
KnownToTemporal = Callable[[str], Awaitable[bool]]
#: Content of the artifact store, by its path; ``None``: the store has lost it.
Files = AsyncIterator[tuple[str, bytes | None]]
#: Writes what goes of a run to where it outlives it, and returns where.
Export = Callable[[Content, Files], Awaitable[Exported]]


@dataclass(frozen=True)
class Kept:
    """A run whose time is over, and what keeps it."""

    run_id: str
    why: str
    failed: ExitCode | None = None
    """What has failed of it, as an exit code; ``None``: it is kept on purpose."""


@dataclass(frozen=True)
class RetentionPart:
    """Some kinds of data of a run and its child runs."""

    run_id: str
    kinds: tuple[str, ...]
    exports: tuple[str, ...] = ()


@dataclass
class Round:
    """What a round has done, or would do."""

    hidden: list[RetentionPart] = field(default_factory=list)
    deleted: list[RetentionPart] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    files: Collected = field(default_factory=Collected)
    lost: int = 0
    """Files of what was exported that the artifact store has lost."""


@dataclass(frozen=True)
class Retention:
    """Whose data is looked after, by whom, and by which policy."""

    ledger: Ledger
    artifacts: ArtifactStore
    tenant: str
    policy: Policy
    by: str
    known: KnownToTemporal
    export: Export | None = None
    unexported: bool = False
    """Whether data goes that was not exported."""

    async def look(self) -> Round:
        """Return what a round would do, and do nothing."""
        found = Round()
        for root, kind in await self._over():
            why = await self.ledger.transact(self.tenant, hiding.why_kept, root)
            if why is None:
                found.deleted.append(RetentionPart(root, (kind,)))
            else:
                found.kept.append(Kept(root, why))
        async for candidate in self._due(found):
            why = await self.ledger.transact(self.tenant, hiding.why_kept, candidate.run_id)
            if why is None:
                found.hidden.append(RetentionPart(candidate.run_id, candidate.kinds))
            else:
                found.kept.append(Kept(candidate.run_id, why))
        grace = self.policy.grace
        for run_id in await self.ledger.transact(self.tenant, deletion.over_checkpoints, grace):
            found.deleted.append(RetentionPart(run_id, (CHECKPOINTS,)))
        for run_id in await self.ledger.transact(self.tenant, hiding.due_checkpoints):
            found.hidden.append(RetentionPart(run_id, (CHECKPOINTS,)))
        return found

    async def round(self) -> Round:
        """Hide, delete and collect.

        What fails of one run keeps that run. What concerns all of them ends the round. Raises
        ``LedgerUnavailable``, ``StoreUnavailable`` or ``NotPermitted``.
        """
        done = Round()
        try:
            await self._go_on(done)
        except LedgerUnavailable:
            raise
        except Exception:
            # A role that may not delete may not record it, either.
            refused = hiding.NotPermitted, hiding.DatabaseRefuses
            with suppress(LedgerUnavailable, *refused), hiding.permitted(self.ledger):
                await self.ledger.transact(self.tenant, policy.record_round, failed=True)
            raise
        failed = any(one.failed is not None for one in done.kept)
        await self.ledger.transact(self.tenant, policy.record_round, failed=failed)
        return done

    async def _go_on(self, done: Round) -> None:
        async for candidate in self._due(done):

            def hide(tx: Transaction, one: hiding.Candidate = candidate) -> str | None:
                return hiding.hide(tx, one, by=self.by, grace=self.policy.grace)

            async with self._apart(done, candidate.run_id):
                why = await self.ledger.transact(self.tenant, hide)
                if why is None:
                    done.hidden.append(RetentionPart(candidate.run_id, candidate.kinds))
                else:
                    done.kept.append(Kept(candidate.run_id, why))
        for root, kind in await self._over():
            async with self._apart(done, root):
                await self._delete(done, root, kind)
        await self._round_of_checkpoints(done)
        done.files = await self._collect()
        await asyncio.to_thread(forget_log, self.ledger.engine)

    async def _round_of_checkpoints(self, done: Round) -> None:
        grace = self.policy.grace
        for run_id in await self.ledger.transact(self.tenant, hiding.due_checkpoints):
            async with self._apart(done, run_id):
                await self.ledger.transact(
                    self.tenant, hiding.hide_checkpoints, run_id, grace=grace
                )
                done.hidden.append(RetentionPart(run_id, (CHECKPOINTS,)))
        for run_id in await self.ledger.transact(self.tenant, deletion.over_checkpoints, grace):
            async with self._apart(done, run_id):
                await self._delete_checkpoints(done, run_id)

    @asynccontextmanager
    async def _apart(self, done: Round, run_id: str) -> AsyncIterator[None]:
        """Have what fails of a run keep it, and name it."""
        try:
            with hiding.permitted(self.ledger):
                yield
        except SurehandError as error:
            if error.code not in _OF_ONE_RUN:
                raise
            done.kept.append(Kept(run_id, str(error), error.code))
        except StoreUnavailable as error:
            # It is away, unless it answers this.
            await self.artifacts.blobs.store_id()
            done.kept.append(Kept(run_id, str(error), ExitCode.NOT_REACHABLE))
        except hiding.DatabaseRefuses as error:
            done.kept.append(Kept(run_id, str(error), ExitCode.UNEXPECTED))

    async def _due(self, found: Round) -> AsyncIterator[hiding.Candidate]:
        after: tuple[int, str] | None = None
        while True:

            def look(
                tx: Transaction, behind: tuple[int, str] | None = after
            ) -> list[hiding.Candidate]:
                return hiding.due(tx, self.policy, behind, PAGE)

            page = await self.ledger.transact(self.tenant, look)
            for candidate in page:
                if not candidate.kinds:
                    continue
                if (has := await self._temporal_has(candidate.run_id)) is None:
                    yield candidate
                else:
                    why = f"Temporal has the history of {has} until its own retention is over"
                    found.kept.append(Kept(candidate.run_id, why))
            if len(page) < PAGE:
                return
            after = (page[-1].closed_ms, page[-1].run_id)

    async def _over(self) -> list[tuple[str, str]]:
        """Return what goes now; of a kind that the policy does not name any more, nothing does."""
        found = await self.ledger.transact(self.tenant, deletion.over)
        return [(root, kind) for root, kind in found if kind in self.policy.kept]

    async def _temporal_has(self, root: str) -> str | None:
        """Return the run of a tree that Temporal still has: it can be reset, and reads payloads."""
        for run_id in await self.ledger.transact(self.tenant, hiding.tree, root):
            if await self.known(run_id):
                return run_id
        return None

    async def _delete(self, done: Round, root: str, kind: str) -> None:
        if await self._must_stay(done, root, kind):
            return
        if (has := await self._temporal_has(root)) is not None:
            why = f"Temporal has the history of {has} until its own retention is over"
            done.kept.append(Kept(root, why))
            return

        stays = await self.ledger.transact(self.tenant, deletion.why_stays, root, kind)
        if stays is not None:
            done.kept.append(Kept(root, stays))
            return
        exports = dict[str, Exported]()
        # That a run goes is an event of its own, which its export has, too.
        if kind != "runs":
            exports = await self._exports(done, root, kind)

        def go(tx: Transaction) -> Going | str:
            return deletion.go(tx, root, kind, by=self.by)

        going = await self.ledger.transact(self.tenant, go)
        if isinstance(going, str):
            done.kept.append(Kept(root, going))
            return
        if kind == "runs":
            exports = await self._exports(done, root, kind)

        def look(tx: Transaction) -> None:
            deletion.require_same(tx, kind, exports)

        def delete(tx: Transaction) -> object:
            return deletion.delete(tx, going, by=self.by, exports=exports)

        files = tuple(file for one in exports.values() for file in one.files)
        async with self._unmoved(done, RetentionPart(root, (kind,), files)):
            # What the next export is to have, too, is not removed.
            await self.ledger.transact(self.tenant, look)
            await self._remove_files(going)
            await self.ledger.transact(self.tenant, delete)

    async def _delete_checkpoints(self, done: Round, run_id: str) -> None:
        if await self._must_stay(done, run_id, CHECKPOINTS):
            return
        exported = await self._exported(done, run_id, CHECKPOINTS, run_id)

        def delete(tx: Transaction) -> object:
            return deletion.delete_checkpoints(tx, run_id, exported, self.policy.grace)

        files = () if exported is None else exported.files
        async with self._unmoved(done, RetentionPart(run_id, (CHECKPOINTS,), files)):
            await self.ledger.transact(self.tenant, delete)

    @asynccontextmanager
    async def _unmoved(self, done: Round, part: RetentionPart) -> AsyncIterator[None]:
        """Have a part deleted, or kept if it has changed since it was exported."""
        try:
            yield
        except Moved as moved:
            done.kept.append(Kept(part.run_id, f"{moved}: the next round goes on"))
            return
        done.deleted.append(part)

    async def _must_stay(self, done: Round, run_id: str, kind: str) -> bool:
        """Return whether something stays: nobody exports it, or its files are not in this store."""
        if self.export is None and not self.unexported:
            done.kept.append(Kept(run_id, f"{kind} are not exported"))
            return True
        if why := await self.artifacts.blobs.elsewhere(run_id):
            done.kept.append(Kept(run_id, why, ExitCode.NOT_REACHABLE))
            return True
        return False

    async def _exports(self, done: Round, root: str, kind: str) -> dict[str, Exported]:
        """Export what goes of a run and its child runs."""
        tree = await self.ledger.transact(self.tenant, hiding.tree, root)
        found = {run_id: await self._exported(done, run_id, kind, root) for run_id in tree}
        return {run_id: one for run_id, one in found.items() if one is not None}

    async def _exported(self, done: Round, run_id: str, kind: str, root: str) -> Exported | None:
        """Export what goes of a run; ``None``: nobody wants it."""
        if self.export is None:
            return None
        content = await self.ledger.transact(
            self.tenant, content_of, run_id, kind, self.policy.grace
        )
        if kind == "runs":
            chain, _, head = await self.ledger.transact(self.tenant, chain_of, run_id)
            content = replace(content, chain=tuple(chain), head=head)
        return await self.export(content, self._files_of(done, content, root))

    async def _files_of(self, done: Round, content: Content, root: str) -> Files:
        """Yield what the artifact store has of what goes."""
        blobs = self.artifacts.blobs
        for sha256 in content.artifacts:
            path = path_of(self.tenant, sha256)
            try:
                yield path, await read_kept(blobs, path)
            except NotKept:
                done.lost += 1
                yield path, None
        if content.kind in ("runs", "messages") and content.run_id == root:
            # All of the tree's are in one folder, by the run at its top.
            async for path in blobs.kept_in(payloads_of(root)):
                yield path, await blobs.get(path)

    async def _remove_files(self, going: Going) -> None:
        """Remove what is only these runs'; artifacts may be others', too: they are collected."""
        if going.kind in ("runs", "steps"):
            for run_id in going.runs:
                over = await self.ledger.transact(self.tenant, draft_rows.over, run_id)
                await self.artifacts.remove_drafts(self.tenant, over)
                if await self.ledger.transact(self.tenant, draft_rows.over, run_id):
                    raise StoreUnavailable(f"drafts of run {run_id} cannot be removed now")
        if going.kind in ("runs", "messages"):
            await self.artifacts.blobs.remove(payloads_of(going.root))

    async def _collect(self) -> Collected:
        def referred(tx: Transaction) -> tuple[set[str], int]:
            return deletion.referred_to(tx), tx.now_ms

        found, now_ms = await self.ledger.transact(self.tenant, referred)
        return await collect_unreferred(self.artifacts.blobs, self.tenant, found, now_ms)
