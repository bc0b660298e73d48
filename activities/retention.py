"""One round of retention: hide what is old, delete what was hidden, collect what nobody refers to.

A round may be broken off anywhere, and done again. A row says that a run is going, then the run is
exported, then its files go, then its rows. A run of which that fails is kept and
named, and the round goes on with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.engine import forget_log
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.retention import deletion, hiding
from surehand.activities.ledger.retention.hiding import Policy
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.process.blobs import Collected, collect_unreferred, read_kept
from surehand.process.exits import ExitCode, SurehandError
from surehand.workflows.payload_codec import NotKept, StoreUnavailable, path_of, payloads_of

T = TypeVar("T")
P = ParamSpec("P")

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
Export = Callable[[deletion.Content, Files], Awaitable[deletion.Exported]]


@dataclass(frozen=True)
class Kept:
    """A run whose time is over, and what keeps it."""

    run_id: str
    why: str
    failed: ExitCode | None = None
    """What has failed of it, as an exit code; ``None``: it is kept on purpose."""


@dataclass(frozen=True)
class RetentionPart:
    """A run and its child runs, or its saved checkpoints."""

    run_id: str
    kind: Literal["runs", "checkpoints"]
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
        for root in await self._find_over():
            await self._foresee(found, found.deleted, root)
        async for root in self._find_due(found):
            await self._foresee(found, found.hidden, root)
        for run_id in await self._do(deletion.find_checkpoints_over, self.policy.grace):
            found.deleted.append(RetentionPart(run_id, deletion.CHECKPOINTS))
        for run_id in await self._do(hiding.find_due_checkpoints):
            found.hidden.append(RetentionPart(run_id, deletion.CHECKPOINTS))
        return found

    async def _foresee(self, found: Round, done: list[RetentionPart], root: str) -> None:
        if (why := await self._do(hiding.why_kept, root)) is None:
            done.append(RetentionPart(root, deletion.RUNS))
        else:
            found.kept.append(Kept(root, why))

    async def round(self) -> Round:
        """Hide, delete and collect.

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
            refused = hiding.NotPermitted, hiding.DatabaseRefuses
            with suppress(LedgerUnavailable, *refused), hiding.explain_refusal(self.ledger):
                await self._do(hiding.record_round, failed=True)
            raise
        await self._do(hiding.record_round, failed=any(one.failed for one in done.kept))
        return done

    async def _do_round(self, done: Round) -> None:
        grace = self.policy.grace
        async for root in self._find_due(done):
            async with self._keep_failed(done, root):
                why = await self._do(hiding.hide_run, root, by=self.by, grace=grace)
                if why is None:
                    done.hidden.append(RetentionPart(root, deletion.RUNS))
                else:
                    done.kept.append(Kept(root, why))
        for root in await self._find_over():
            async with self._keep_failed(done, root):
                await self._delete(done, root)
        for run_id in await self._do(hiding.find_due_checkpoints):
            async with self._keep_failed(done, run_id):
                await self._do(hiding.hide_checkpoints, run_id, grace=grace)
                done.hidden.append(RetentionPart(run_id, deletion.CHECKPOINTS))
        for run_id in await self._do(deletion.find_checkpoints_over, grace):
            async with self._keep_failed(done, run_id):
                await self._delete_checkpoints(done, run_id)
        referred, now_ms = await self._do(deletion.read_references)
        done.files = await collect_unreferred(self.artifacts.blobs, self.tenant, referred, now_ms)
        await asyncio.to_thread(forget_log, self.ledger.engine)

    async def _do(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.ledger.transact(self.tenant, work, *args, **kwargs)

    @asynccontextmanager
    async def _keep_failed(self, done: Round, run_id: str) -> AsyncIterator[None]:
        """Have what fails of a run, or has changed since it was exported, keep it, and name it."""
        try:
            with hiding.explain_refusal(self.ledger):
                yield
        except deletion.Moved as moved:
            done.kept.append(Kept(run_id, f"{moved}: the next round goes on"))
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

    async def _find_due(self, found: Round) -> AsyncIterator[str]:
        after: hiding.Candidate | None = None
        while True:
            page = await self._do(hiding.find_due, self.policy.kept, after, PAGE)
            for candidate in page:
                if (why := await self._why_resettable(candidate.run_id)) is None:
                    yield candidate.run_id
                else:
                    found.kept.append(Kept(candidate.run_id, why))
            if len(page) < PAGE:
                return
            after = page[-1]

    async def _find_over(self) -> list[str]:
        """Return what goes now; nothing does where runs are kept for ever now."""
        return [] if self.policy.kept is None else await self._do(deletion.find_over)

    async def _why_resettable(self, root: str) -> str | None:
        """Return which run of a tree Temporal still has: it can be reset, and reads payloads."""
        for run_id in await self._do(hiding.list_tree, root):
            if await self.known(run_id):
                return f"Temporal has the history of {run_id} until its own retention is over"
        return None

    async def _delete(self, done: Round, root: str) -> None:
        if await self._must_stay(done, root, deletion.RUNS):
            return
        why = await self._why_resettable(root) or await self._do(deletion.why_stays, root)
        if why is not None:
            done.kept.append(Kept(root, why))
            return
        # That a run goes is an event of its own, which its export has, too.
        going = await self._do(deletion.let_go, root, by=self.by)
        if isinstance(going, str):
            done.kept.append(Kept(root, going))
            return
        exports = await self._export_tree(done, root)
        # What the next export is to have, too, is not removed.
        await self._do(deletion.require_same, deletion.RUNS, exports)
        await self._remove_files(going)
        await self._do(deletion.delete_going, going, by=self.by, exports=exports)
        files = tuple(file for one in exports.values() for file in one.files)
        done.deleted.append(RetentionPart(root, deletion.RUNS, files))

    async def _delete_checkpoints(self, done: Round, run_id: str) -> None:
        if await self._must_stay(done, run_id, deletion.CHECKPOINTS):
            return
        exported = await self._export_run(done, run_id, deletion.CHECKPOINTS, run_id)
        await self._do(deletion.delete_checkpoints, run_id, exported, self.policy.grace)
        files = () if exported is None else exported.files
        done.deleted.append(RetentionPart(run_id, deletion.CHECKPOINTS, files))

    async def _must_stay(self, done: Round, run_id: str, kind: str) -> bool:
        """Return whether something stays: nobody exports it, or its files are not in this store."""
        if self.export is None and not self.unexported:
            done.kept.append(Kept(run_id, f"{kind} are not exported"))
        elif elsewhere := await self.artifacts.blobs.elsewhere(run_id):
            done.kept.append(Kept(run_id, elsewhere, ExitCode.NOT_REACHABLE))
        else:
            return False
        return True

    async def _export_tree(self, done: Round, root: str) -> dict[str, deletion.Exported]:
        tree = await self._do(hiding.list_tree, root)
        found = {
            run_id: await self._export_run(done, run_id, deletion.RUNS, root) for run_id in tree
        }
        return {run_id: one for run_id, one in found.items() if one is not None}

    async def _export_run(
        self, done: Round, run_id: str, kind: str, root: str
    ) -> deletion.Exported | None:
        """Export what goes of a run; ``None``: nobody wants it."""
        if self.export is None:
            return None
        content = await self._do(deletion.content_of, run_id, kind, self.policy.grace)
        if kind == deletion.RUNS:
            chain, _, head = await self._do(chain_of, run_id)
            content = replace(content, chain=tuple(chain), head=head)
        return await self.export(content, self._read_files(done, content, root))

    async def _read_files(self, done: Round, content: deletion.Content, root: str) -> Files:
        """Yield what the artifact store has of what goes."""
        blobs = self.artifacts.blobs
        for sha256 in content.artifacts:
            path = path_of(self.tenant, sha256)
            try:
                yield path, await read_kept(blobs, path)
            except NotKept:
                done.lost += 1
                yield path, None
        if content.kind == deletion.RUNS and content.run_id == root:
            # All of the tree's are in one folder, by the run at its top.
            async for path in blobs.kept_in(payloads_of(root)):
                yield path, await blobs.get(path)

    async def _remove_files(self, going: deletion.Going) -> None:
        """Remove what is only these runs'; artifacts may be others', too: they are collected."""
        for run_id in going.runs:
            over = await self._do(artifact_rows.end_unneeded_drafts, run_id)
            await self.artifacts.remove_drafts(self.tenant, over)
            if await self._do(artifact_rows.end_unneeded_drafts, run_id):
                raise StoreUnavailable(f"drafts of run {run_id} cannot be removed now")
        await self.artifacts.blobs.remove(payloads_of(going.root))
