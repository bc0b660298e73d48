"""Bytes under a path, in a folder or in any object store that ``obstore`` reaches by URL.

Written atomically, and never changed: whoever keeps something names it by its content.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from workflows.payload_codec import NotKept, StoreUnavailable


class Blobs:
    """A folder or an object store."""

    def __init__(self, url: str, *, make: bool = True) -> None:
        """Open a store.

        Args:
            url: A folder's path, or a URL such as ``s3://bucket/path``, ``gs://...``, ``az://...``.
            make: Whether a folder that is not there is made.

        Raises:
            StoreUnavailable: No store understands that URL, or there is no such folder.
        """
        self.url = url
        self._folder = None if "://" in url else Path(url).absolute()
        if self._folder is not None and not make and not self._folder.is_dir():
            raise StoreUnavailable(f"there is no folder {url!r} here")
        try:
            self._store = _open(url, self._folder)
        except (BaseError, OSError, ValueError) as error:
            raise StoreUnavailable(str(error)) from error

    async def has(self, path: str) -> bool:
        """Return whether something is kept under a path, and outlives a power cut there.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        try:
            await obstore.head_async(self._store, path)
            await self._settle(path)
        except (NotFoundError, FileNotFoundError):
            return False
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error
        return True

    async def put(self, path: str, data: bytes) -> None:
        """Keep something; what is there already stays.

        Raises:
            StoreUnavailable: The store does not take it.
        """
        try:
            # What is there is the same, because its path says so; or found out when it is read.
            with contextlib.suppress(AlreadyExistsError):
                await obstore.put_async(self._store, path, data, mode="create")
            await self._settle(path)
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    async def get(self, path: str) -> bytes:
        """Return what is kept under a path.

        Raises:
            NotKept: The store answers, and has nothing there.
            StoreUnavailable: The store does not answer.
        """
        try:
            answer = await obstore.get_async(self._store, path)
            return bytes(await answer.bytes_async())
        except (NotFoundError, FileNotFoundError) as error:
            raise NotKept(str(error)) from error
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    async def _settle(self, path: str) -> None:
        if self._folder is not None:
            await asyncio.to_thread(_to_disk, self._folder / path)


def _open(url: str, folder: Path | None) -> ObjectStore:
    if folder is not None:
        return LocalStore(prefix=folder, mkdir=True)
    # Temporal and the ledger are our retries; an outcome does not wait for a store's own.
    return from_url(url, retry_config={"max_retries": 1})


def _to_disk(path: Path) -> None:
    """See to it that a file outlives a power cut: the commit that follows does."""
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
