"""Files of the artifact store to which nothing refers: set aside first, removed later.

Whoever keeps a file says so in the ledger only afterwards, and what is there already is not written
once more. So a file without a row may be about to get one. It is set aside under its digest and the
time. There it can still be read, whoever keeps it again makes it anew, and it comes back once a row
refers to it. What nothing has referred to for a whole day is removed.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from surehand.process.blobs import Blobs
from surehand.workflows.payload_codec import NotKept, path_of

#: Between a file and the row that refers to it lie seconds, or as long as the database is away.
SAFE_AGE: Final = timedelta(days=1)


@dataclass(frozen=True)
class Collected:
    """What was done with the files of a tenant."""

    aside: int = 0
    """Set aside: nothing refers to them."""
    back: int = 0
    removed: int = 0


async def get(blobs: Blobs, path: str) -> bytes:
    """Return what is kept under an artifact's path, also where it was set aside.

    Raises:
        NotKept: It is in neither place.
        StoreUnavailable: The store does not answer.
    """
    try:
        return await blobs.get(path)
    except NotKept:
        tenant, sha256 = path.partition("/")[0], path.rpartition("/")[2]
        async for found in blobs.kept_in(_folder(tenant)):
            if found.rpartition("/")[2].startswith(f"{sha256}-"):
                return await blobs.get(found)
        # Or it has come back meanwhile.
        return await blobs.get(path)


async def collect(
    blobs: Blobs, tenant: str, referred: Set[str], now_ms: int, safe_age: timedelta = SAFE_AGE
) -> Collected:
    """Set aside what nothing refers to, and remove what was set aside long ago.

    Args:
        blobs: The artifact store.
        tenant: Whose files.
        referred: The digests to which the ledger's rows refer now.
        now_ms: The database's clock.
        safe_age: For how long nothing has to refer to a file before it is removed.

    Raises:
        StoreUnavailable: The store does not answer; what was done is done.
    """
    aside = back = removed = 0
    oldest_ms = now_ms - safe_age // timedelta(milliseconds=1)
    async for path in blobs.kept_in(_folder(tenant)):
        sha256, _, ms = path.rpartition("/")[2].partition("-")
        if sha256 in referred:
            back += await blobs.move(path, path_of(tenant, sha256))
        elif int(ms) <= oldest_ms:
            await blobs.drop(path)
            removed += 1
    async for path in blobs.kept_in(f"{tenant}/sha256"):
        sha256 = path.rpartition("/")[2]
        if sha256 not in referred:
            aside += await blobs.move(path, f"{_folder(tenant)}/{sha256}-{now_ms}")
    return Collected(aside, back, removed)


def _folder(tenant: str) -> str:
    return f"{tenant}/aside"
