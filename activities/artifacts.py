"""The artifact store: large values kept outside history.

Content-addressed by sha256 in a folder, or in any object store that ``obstore`` reaches by URL.
Written atomically, verified on read. An outcome never waits for the store: what it does not take
at once is kept in the ledger itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import structlog

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.process.blobs import Blobs
from surehand.workflows.contracts.artifacts import ARTIFACT, Artifact
from surehand.workflows.identity import (
    canonical_json,
    tenant_of_run,
    tenant_problem,
)
from surehand.workflows.payload_codec import StoreUnavailable, path_of

log = structlog.get_logger()

#: An outcome is in hand: after this long without an answer the ledger keeps the value itself.
PATIENCE: Final = timedelta(seconds=5)
_LEDGER: Final = "ledger:"
#: Pause before the store is asked again. An undo asks at most ``MOST_READS`` times; then a human
#: decides.
READ_PAUSE: Final = timedelta(seconds=5)
MOST_READS: Final = 24


class ArtifactUnavailable(Exception):
    """The store does not answer, or not with what was kept there."""


class ArtifactsMisconfigured(Exception):
    """The store's URL cannot be used; the message says why."""


class ArtifactStore:
    """A folder or an object store, and the ledger behind it."""

    def __init__(self, url: str, ledger: Ledger, *, largest_inline: int) -> None:
        """Open a store.

        Args:
            url: A folder's path, or a URL such as ``s3://bucket/path``, ``gs://...``, ``az://...``.
            ledger: Keeps what the store does not take.
            largest_inline: Bytes of canonical JSON up to which a value stays where it is.

        Raises:
            ArtifactsMisconfigured: No store understands that URL.
        """
        self.url = url
        self._ledger = ledger
        self._largest_inline = largest_inline
        try:
            self.blobs = Blobs(url)
        except StoreUnavailable as error:
            raise ArtifactsMisconfigured(f"artifact store {url!r}: {error}") from error
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

    async def keep(self, tenant: str, value: Any, patience: timedelta = PATIENCE) -> Kept:
        """Return a JSON value as it travels: itself if it is small, else a reference to it.

        Whatever the store says, it never raises: what is not taken within ``patience``, the ledger
        keeps.
        """
        data = canonical_json(value)
        # A value that looks like a reference is kept as well, so that nobody takes it for one.
        if len(data) <= self._largest_inline and not _looks_like_one(value):
            return Kept(value)
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            uri = path_of(tenant, sha256)
            async with asyncio.timeout(patience.total_seconds()):
                await self.blobs.put(uri, data)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("artifact.kept_in_ledger", sha256=sha256, store=self.url, error=str(error))
            return _in_ledger(data)
        artifact = Artifact(sha256=sha256, uri=uri, bytes=len(data))
        return Kept(artifact.reference(), artifact)

    async def read(self, tenant: str, artifact: Artifact) -> Any:
        """Return the value of an artifact, verified.

        Raises:
            ArtifactUnavailable: It is not there, or not what was kept.
        """
        return json.loads(await self.read_bytes(tenant, artifact))

    async def read_bytes(self, tenant: str, artifact: Artifact) -> bytes:
        """Return the content of an artifact, verified.

        Raises:
            ArtifactUnavailable: It is not there, or not what was kept.
        """
        where = f"artifact {artifact.uri[:200]} of tenant {tenant[:80]!r}"
        try:
            # Never by the URI of a message: digest and tenant say where it is.
            path = path_of(tenant, artifact.sha256)
        except StoreUnavailable as error:
            raise ArtifactUnavailable(f"{where}: {error}") from error
        content, in_ledger = None, artifact.uri.startswith(_LEDGER)
        if in_ledger:
            kept = artifact_rows.content_of
            content = await self._ledger.transact(tenant, kept, artifact.sha256)
        if content is None:
            # The same value may be there, from when the store was up.
            try:
                content = await self.blobs.get(path)
            except StoreUnavailable as error:
                also = ": the ledger does not have it, nor the store" if in_ledger else ""
                raise ArtifactUnavailable(f"{where}{also} at {self.url}: {error}") from error
        if hashlib.sha256(content).hexdigest() != artifact.sha256:
            raise ArtifactUnavailable(f"{where} at {self.url} is not what was kept")
        return content

    async def read_all(self, tenant: str, wanted: Mapping[str, Artifact]) -> dict[str, Any]:
        """Return the values of several artifacts, by the same names.

        Raises:
            ArtifactUnavailable: One is not there, or not what was kept.
        """
        return {name: await self.read(tenant, artifact) for name, artifact in wanted.items()}


def kept_in_ledger(value: Any) -> Kept:
    """Return a small JSON value as an artifact that needs no store: the ledger has its content."""
    return _in_ledger(canonical_json(value))


def _in_ledger(data: bytes) -> Kept:
    sha256 = hashlib.sha256(data).hexdigest()
    artifact = Artifact(sha256=sha256, uri=f"{_LEDGER}{sha256}", bytes=len(data))
    return Kept(artifact.reference(), artifact, data)


def _looks_like_one(value: Any) -> bool:
    return isinstance(value, dict) and ARTIFACT in value
