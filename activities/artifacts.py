"""The artifact store: large values kept outside history.

Content-addressed by sha256 in a folder, or in any object store that ``obstore`` reaches by URL.
Written atomically, verified on read. An outcome never waits for the store: what it does not take
at once is kept in the ledger itself.

Where runs have keys, all of that is sealed with the run's, and named by a digest that only this key
can make: nobody finds out by guessing what a run has kept. One run's are no other run's, unless the
ledger has given it one: the receipt of an effect that stood already, or what it was forked from.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import structlog

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import Kept, WrittenDraft
from surehand.process.blobs import Blobs, read_kept
from surehand.process.ciphers import RunKey
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.off_loop import call_off_loop, load_json
from surehand.process.settings import KEYS
from surehand.workflows.canonical_json import canonical_json, digest
from surehand.workflows.contracts.base import ARTIFACT, Artifact
from surehand.workflows.identity import root_run_id, tenant_of_run, tenant_problem
from surehand.workflows.payload_codec import KeyUnavailable, NotDecrypted, StoreUnavailable, path_of

log = structlog.get_logger()

#: An outcome is in hand: after this long without an answer the ledger keeps the value itself.
PATIENCE: Final = timedelta(seconds=5)
_LEDGER: Final = "ledger:"
#: An undo asks the store at most that many times; then a human decides.
MOST_READS: Final = 24
#: Pause before a run's key is asked for again.
KEY_PAUSE: Final = 1.0  # seconds


class ArtifactUnavailable(NotReachable):
    """The store does not answer, or not with what was kept there."""


class ArtifactStore:
    """A folder or an object store, and the ledger behind it."""

    def __init__(self, url: str, ledger: Ledger, *, largest_inline: int) -> None:
        """Open a store.

        ``url``: a folder's path, or a URL such as ``s3://bucket/path``. A value stays where it is
        up to ``largest_inline`` bytes of canonical JSON. Raises ``WrongUse``.
        """
        self.url = url
        self._ledger = ledger
        self._largest_inline = largest_inline
        try:
            self.blobs = Blobs(url)
        except StoreUnavailable as error:
            raise WrongUse(f"artifact store {url!r}: {error}") from error
        self.blobs.home_of = self._home_of
        self._store_id: str | None = None

    async def store_id(self) -> str | None:
        """Return what tells the store from others; ``None``: it does not answer."""
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                self._store_id = self._store_id or await self.blobs.store_id(make=True)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("artifact.store_unknown", store=self.url, error=str(error))
        return self._store_id

    async def _home_of(self, run_id: str) -> str | None:
        tenant = tenant_of_run(run_id)
        if tenant_problem(tenant) is not None:
            return None
        return await self._ledger.transact(tenant, artifact_rows.store_of, run_id)

    async def keep(
        self, tenant: str, run_id: str, value: Any, patience: timedelta = PATIENCE
    ) -> Kept:
        """Return a JSON value as it travels: itself if it is small, else a reference to it.

        Whatever the store says, it does not raise: what is not taken within ``patience``, the
        ledger keeps. Nor does a key that is away: it is waited for. Raises ``KeyErased``.
        """
        data = await call_off_loop(canonical_json, value)
        # A value that looks like a reference is kept as well, so that nobody takes it for one.
        refers = isinstance(value, dict) and ARTIFACT in value
        if len(data) <= self._largest_inline and not refers:
            return Kept(value)
        return await self.keep_bytes(tenant, run_id, data, "application/json", patience)

    async def keep_bytes(
        self, tenant: str, run_id: str, data: bytes, type_: str, patience: timedelta = PATIENCE
    ) -> Kept:
        """Return a reference to bytes, kept under their digest; it never raises, as ``keep``."""
        artifact, content = await self._sealed(tenant, run_id, data, type_)
        sha256 = artifact.sha256
        try:
            uri = path_of(tenant, sha256)
            async with asyncio.timeout(patience.total_seconds()):
                await self.blobs.put(uri, content)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("artifact.kept_in_ledger", sha256=sha256, store=self.url, error=str(error))
            return Kept(artifact.reference(), artifact, content)
        artifact = artifact.model_copy(update={"uri": uri})
        return Kept(artifact.reference(), artifact)

    async def keep_in_ledger(self, tenant: str, run_id: str, value: Any) -> Kept:
        """Return a small JSON value as an artifact that needs no store: the ledger has it."""
        data = canonical_json(value)
        artifact, content = await self._sealed(tenant, run_id, data, "application/json")
        return Kept(artifact.reference(), artifact, content)

    async def named(self, run_id: str, sha256: str) -> Artifact:
        """Return what a run has kept, by the digest of its content."""
        keys, root = self._ledger.keys, root_run_id(run_id)
        try:
            key = None if keys is None else await keys.key_of(root, make=True)
        except (KeyUnavailable, NotDecrypted) as error:
            raise ArtifactUnavailable(f"artifact {sha256} of run {run_id}: {error}") from error
        return _artifact(key, run_id, sha256, 0, "application/json")

    async def seal_part(self, run_id: str, about: bytes, data: bytes) -> bytes:
        """Return a part of what a call writes as it is kept, bound to what it is a part of."""
        key = await self._key(run_id)
        return data if key is None else key.seal(about, data)

    async def open_part(self, run_id: str, about: bytes, kept: bytes) -> bytes:
        """Return what ``seal_part`` was given. Raises ``ArtifactUnavailable``."""
        key = await self._key(run_id)
        try:
            return kept if key is None else key.open(about, kept)
        except NotDecrypted as error:
            raise ArtifactUnavailable(f"a part of what run {run_id} writes: {error}") from error

    async def _sealed(
        self, tenant: str, run_id: str, data: bytes, type_: str
    ) -> tuple[Artifact, bytes]:
        key = await self._key(run_id)

        def sealed(data: bytes) -> tuple[Artifact, bytes]:
            sha256 = hashlib.sha256(data).hexdigest()
            artifact = _artifact(key, run_id, sha256, len(data), type_)
            if key is None:
                return artifact, data
            return artifact, key.seal(_about(tenant, artifact), data, kept=True)

        return await call_off_loop(sealed, data)

    async def _key(self, run_id: str) -> RunKey | None:
        """Return a run's key, however long that takes: what is in hand is not kept in plain."""
        while self._ledger.keys is not None:
            try:
                return await self._ledger.keys.key_of(root_run_id(run_id), make=True)
            except KeyUnavailable as error:
                log.warning("artifact.waits_for_key", run_id=run_id, error=str(error))
                await asyncio.sleep(KEY_PAUSE)
        return None

    async def remove_drafts(self, tenant: str, drafts: Sequence[WrittenDraft]) -> None:
        """Remove what drafts have kept that are over; what the store does not do now is left."""
        for draft in drafts:
            try:
                async with asyncio.timeout(PATIENCE.total_seconds()):
                    await self.blobs.remove(folder_of(tenant, draft))
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("draft.not_removed", run_id=draft.run_id, error=str(error))
                continue
            await self._ledger.transact(tenant, artifact_rows.note_removed_draft, draft)

    async def read(self, tenant: str, run_id: str, artifact: Artifact) -> Any:
        """Return the value of an artifact, verified. Raises ``ArtifactUnavailable``."""
        return await load_json(await self.read_bytes(tenant, run_id, artifact))

    async def read_bytes(self, tenant: str, run_id: str, artifact: Artifact) -> bytes:
        """Return the content of an artifact, verified. Raises ``ArtifactUnavailable``."""
        where = f"artifact {artifact.uri[:200]} of tenant {tenant[:80]!r}"
        key = await self._key_to_read(where, tenant, run_id, artifact)
        try:
            # Never by the URI of a message: digest and tenant say where it is.
            path = path_of(tenant, artifact.sha256)
        except StoreUnavailable as error:
            raise ArtifactUnavailable(f"{where}: {error}") from error
        content, in_ledger = None, artifact.uri.startswith(_LEDGER)
        if in_ledger:
            kept = artifact_rows.artifact_content
            content = await self._ledger.transact(tenant, kept, artifact.sha256)
        if content is None:
            # The same value may be there, from when the store was up.
            try:
                content = await read_kept(self.blobs, path)
            except StoreUnavailable as error:
                also = ": the ledger does not have it, nor the store" if in_ledger else ""
                raise ArtifactUnavailable(f"{where}{also} at {self.url}: {error}") from error

        def opened(content: bytes) -> bytes:
            if key is not None:
                content = key.open(_about(tenant, artifact), content)
            sha256 = hashlib.sha256(content).hexdigest()
            if artifact.sha256 != (sha256 if key is None else key.digest_of(sha256)):
                raise NotDecrypted("it is not what was kept")
            return content

        try:
            return await call_off_loop(opened, content)
        except NotDecrypted as error:
            raise ArtifactUnavailable(f"{where} at {self.url}: {error}") from error

    async def _key_to_read(
        self, where: str, tenant: str, run_id: str, artifact: Artifact
    ) -> RunKey | None:
        root = artifact.sealed_for
        if root is None:
            return None
        if self._ledger.keys is None:
            raise ArtifactUnavailable(f"{where} is encrypted, and {KEYS} is not set here")
        if root != root_run_id(run_id):
            given = artifact_rows.may_read_artifact
            if not await self._ledger.transact(tenant, given, run_id, artifact.sha256):
                raise ArtifactUnavailable(f"{where} is of another run than {run_id[:200]!r}")
        try:
            return await self._ledger.keys.key_of(root, make=False)
        except (KeyUnavailable, NotDecrypted) as error:
            raise ArtifactUnavailable(f"{where}: {error}") from error


def folder_of(tenant: str, draft: WrittenDraft) -> str:
    """Return where in the store the parts of a draft are: of no other one."""
    of_step = digest([draft.run_id, draft.step_id]).removeprefix("sha256:")
    return f"{tenant}/drafts/{of_step}-{draft.number}"


def _artifact(key: RunKey | None, run_id: str, sha256: str, size: int, type_: str) -> Artifact:
    """Return the name of what the ledger keeps, by the digest of its content."""
    name = sha256 if key is None else key.digest_of(sha256)
    sealed_for = None if key is None else root_run_id(run_id)
    uri = f"{_LEDGER}{name}"
    return Artifact(sha256=name, uri=uri, bytes=size, type=type_, sealed_for=sealed_for)


def _about(tenant: str, artifact: Artifact) -> bytes:
    """Return what an artifact is bound to: whose it is, of which run, and its name."""
    return canonical_json(["artifact", tenant, artifact.sealed_for, artifact.sha256])
