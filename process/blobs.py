"""Bytes under a path, in a folder or in any object store that ``obstore`` reaches by URL.

Written atomically, and never changed: whoever keeps something names it by its content.

Files of the artifact store that nothing refers to are set aside first, and removed later: whoever
keeps a file says so in the ledger only afterwards, and does not write it again if it is there. So a
file without a row may be about to get one. It is set aside under its digest and the time. There it
can still be read, whoever keeps it again writes it again, and it comes back once a row refers to
it. After a whole day without a reference it is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Set
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from surehand.process.files import to_disk
from surehand.workflows.payload_codec import NotKept, StoreUnavailable, path_of

#: What tells a store from every other one, whatever URL leads there. No tenant is called "_".
_STORE_ID: Final = "_/store-id"


@contextlib.contextmanager
def _translate_errors(absent: type[StoreUnavailable] = StoreUnavailable) -> Iterator[None]:
    """Raise what the payload codec knows for whatever a store fails with."""
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise absent(str(error)) from error
    except (BaseError, OSError) as error:
        raise StoreUnavailable(str(error)) from error


class Blobs:
    """A folder or an object store.

    All methods raise `StoreUnavailable` if it does not answer.
    """

    def __init__(self, url: str, *, make: bool = True) -> None:
        """Open a folder by its path, or a store by a URL such as ``s3://bucket/path``."""
        self.url = url
        self.home_of: Callable[[str], Awaitable[str | None]] | None = None
        """Tells by its id in which store a run was opened, if anybody knows."""
        self._folder = None if "://" in url else Path(url).absolute()
        if self._folder is not None and not make and not self._folder.is_dir():
            raise StoreUnavailable(f"there is no folder {url!r} here")
        try:
            self._store: ObjectStore = (
                LocalStore(prefix=self._folder, mkdir=True)
                if self._folder is not None
                # Temporal and the ledger are our retries: no outcome waits for a store's own.
                else from_url(url, retry_config={"max_retries": 1})
            )
        except (BaseError, OSError, ValueError) as error:
            raise StoreUnavailable(str(error)) from error

    async def has(self, path: str, size: int) -> bool:
        """Return whether that many bytes are kept under a path, and outlive a power cut there."""
        try:
            with _translate_errors(NotKept):
                found = await obstore.head_async(self._store, path)
                await self._flush_to_disk(path)
        except NotKept:
            return False
        return found["size"] == size

    async def put(self, path: str, data: bytes) -> None:
        """Keep something under a path that names it by its digest."""
        with _translate_errors():
            if not await self._create(path, data) and await self.get(path) != data:
                # A power cut has left its name without its content.
                await obstore.put_async(self._store, path, data, mode="overwrite")
            await self._flush_to_disk(path)

    async def _create(self, path: str, data: bytes) -> bool:
        try:
            await obstore.put_async(self._store, path, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    async def get(self, path: str) -> bytes:
        with _translate_errors(NotKept):
            answer = await obstore.get_async(self._store, path)
            return bytes(await answer.bytes_async())

    async def remove(self, folder: str) -> None:
        """Remove all that is kept in a folder; what was kept by its content alone is in none."""
        with _translate_errors():
            async for page in obstore.list(self._store, f"{folder}/"):
                with contextlib.suppress(NotFoundError, FileNotFoundError):
                    await obstore.delete_async(self._store, [one["path"] for one in page])
        if self._folder is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread((self._folder / folder).rmdir)

    async def kept_in(self, folder: str) -> AsyncIterator[str]:
        """Yield the paths of all that is kept in a folder, and in those below it."""
        with _translate_errors():
            async for page in obstore.list(self._store, f"{folder}/"):
                for one in page:
                    yield one["path"]

    async def move(self, path: str, to: str) -> bool:
        """Move what is kept under a path; ``False``: nothing is there any more."""
        try:
            with _translate_errors(NotKept):
                await obstore.rename_async(self._store, path, to)
                await self._flush_to_disk(to)
        except NotKept:
            return False
        return True

    async def drop(self, path: str) -> None:
        with contextlib.suppress(NotKept), _translate_errors(NotKept):
            await obstore.delete_async(self._store, path)

    async def store_id(self, *, make: bool = False) -> str | None:
        """Return what tells this store from others, made if asked for; ``None``: nothing does."""
        if make:
            with _translate_errors():
                await self._create(_STORE_ID, uuid.uuid4().hex.encode())
                await self._flush_to_disk(_STORE_ID)
        try:
            return (await self.get(_STORE_ID)).decode()
        except NotKept:
            return None

    async def elsewhere(self, run_id: str) -> str | None:
        """Return why this is not the run's artifact store; ``None`` if it may be."""
        home = None if self.home_of is None else await self.home_of(run_id)
        if home is None or home == await self.store_id():
            return None
        return f"{self.url} is not the artifact store of run {run_id}, or is not mounted"

    async def _flush_to_disk(self, path: str) -> None:
        if self._folder is not None:
            file = self._folder / path
            # The store makes the folders in between as they are needed.
            folders = (one for one in file.parents if one.is_relative_to(self._folder))
            await asyncio.to_thread(to_disk, file, *folders)


#: Between a file and the row that refers to it lie seconds, or as long as the database is away.
SAFE_AGE: Final = timedelta(days=1)


@dataclass(frozen=True)
class Collected:
    """What was done with the files of a tenant."""

    aside: int = 0
    """Set aside: nothing refers to them."""
    back: int = 0
    removed: int = 0


async def read_kept(blobs: Blobs, path: str) -> bytes:
    """Return what is kept under an artifact's path, also where it was set aside."""
    try:
        return await blobs.get(path)
    except NotKept:
        tenant, sha256 = path.partition("/")[0], path.rpartition("/")[2]
        async for found in blobs.kept_in(_aside_folder(tenant)):
            if found.rpartition("/")[2].startswith(f"{sha256}-"):
                return await blobs.get(found)
        # Or it has come back meanwhile.
        return await blobs.get(path)


async def collect_unreferred(
    blobs: Blobs, tenant: str, referred: Set[str], now_ms: int
) -> Collected:
    """Set aside what nothing refers to, and remove what was set aside long ago."""
    aside = back = removed = 0
    oldest_ms = now_ms - SAFE_AGE // timedelta(milliseconds=1)
    async for path in blobs.kept_in(_aside_folder(tenant)):
        sha256, _, ms = path.rpartition("/")[2].partition("-")
        if sha256 in referred:
            back += await blobs.move(path, path_of(tenant, sha256))
        elif int(ms) <= oldest_ms:
            await blobs.drop(path)
            removed += 1
    async for path in blobs.kept_in(f"{tenant}/sha256"):
        sha256 = path.rpartition("/")[2]
        if sha256 not in referred:
            aside += await blobs.move(path, f"{_aside_folder(tenant)}/{sha256}-{now_ms}")
    return Collected(aside, back, removed)


def _aside_folder(tenant: str) -> str:
    return f"{tenant}/aside"
