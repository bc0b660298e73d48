"""Bytes under a path, in a folder or in any object store that ``obstore`` reaches by URL.

Written atomically, and never changed: whoever keeps something names it by its content.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from surehand.process.files import to_disk
from surehand.workflows.payload_codec import NotKept, StoreUnavailable

#: What tells a store from every other one, whatever URL leads there. No tenant is called "_".
_STORE_ID: Final = "_/store-id"


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
        self.home_of: Callable[[str], Awaitable[str | None]] | None = None
        """Tells by its id in which store a run was opened, if anybody knows."""
        self._folder = None if "://" in url else Path(url).absolute()
        if self._folder is not None and not make and not self._folder.is_dir():
            raise StoreUnavailable(f"there is no folder {url!r} here")
        try:
            self._store = _open(url, self._folder)
        except (BaseError, OSError, ValueError) as error:
            raise StoreUnavailable(str(error)) from error

    async def has(self, path: str, size: int) -> bool:
        """Return whether that many bytes are kept under a path, and outlive a power cut there.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        try:
            found = await obstore.head_async(self._store, path)
            await self._settle(path)
        except (NotFoundError, FileNotFoundError):
            return False
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error
        return found["size"] == size

    async def put(self, path: str, data: bytes) -> None:
        """Keep something under a path that says by its digest what it is.

        Raises:
            StoreUnavailable: The store does not take it.
        """
        try:
            if not await self._create(path, data) and await self.get(path) != data:
                # A power cut has left its name without its content.
                await obstore.put_async(self._store, path, data, mode="overwrite")
            await self._settle(path)
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    async def _create(self, path: str, data: bytes) -> bool:
        try:
            await obstore.put_async(self._store, path, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

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

    async def remove(self, folder: str) -> None:
        """Remove all that is kept in a folder; what was kept by its content alone is in none.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        try:
            async for page in obstore.list(self._store, f"{folder}/"):
                with contextlib.suppress(NotFoundError, FileNotFoundError):
                    await obstore.delete_async(self._store, [one["path"] for one in page])
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error
        if self._folder is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread((self._folder / folder).rmdir)

    async def kept_in(self, folder: str) -> AsyncIterator[str]:
        """Yield the paths of all that is kept in a folder, and in those below it.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        try:
            async for page in obstore.list(self._store, f"{folder}/"):
                for one in page:
                    yield one["path"]
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    async def move(self, path: str, to: str) -> bool:
        """Move what is kept under a path; ``False``: nothing is there any more.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        try:
            await obstore.rename_async(self._store, path, to)
            await self._settle(to)
        except (NotFoundError, FileNotFoundError):
            return False
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error
        return True

    async def drop(self, path: str) -> None:
        """Remove what is kept under a path, if it is there.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        try:
            with contextlib.suppress(NotFoundError, FileNotFoundError):
                await obstore.delete_async(self._store, path)
        except (BaseError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    async def store_id(self, *, make: bool = False) -> str | None:
        """Return what tells this store from others; ``None``: it has nothing to tell.

        Args:
            make: Whether it is given something.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        if make:
            try:
                await self._create(_STORE_ID, uuid.uuid4().hex.encode())
                await self._settle(_STORE_ID)
            except (BaseError, OSError) as error:
                raise StoreUnavailable(str(error)) from error
        try:
            return (await self.get(_STORE_ID)).decode()
        except NotKept:
            return None

    async def elsewhere(self, run_id: str) -> str | None:
        """Return why this is not the run's artifact store; ``None`` if it may be.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        home = None if self.home_of is None else await self.home_of(run_id)
        if home is None or home == await self.store_id():
            return None
        return f"{self.url} is not the artifact store of run {run_id}, or is not mounted"

    async def _settle(self, path: str) -> None:
        if self._folder is not None:
            file = self._folder / path
            # The store makes the folders in between as they are needed.
            folders = (one for one in file.parents if one.is_relative_to(self._folder))
            await asyncio.to_thread(to_disk, file, *folders)


def _open(url: str, folder: Path | None) -> ObjectStore:
    if folder is not None:
        return LocalStore(prefix=folder, mkdir=True)
    # Temporal and the ledger are our retries; an outcome does not wait for a store's own.
    return from_url(url, retry_config={"max_retries": 1})
