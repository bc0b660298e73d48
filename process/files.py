"""Files that are there whole or not at all, and outlive a power cut."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def replace_whole(file: Path, text: str, *, mode: int | None = None) -> None:
    """Write a file, as ``replacing`` does, with a text of which there is enough memory.

    Args:
        file: The file; its folder is there.
        text: What it says from now on.
        mode: Who may read and write it.

    Raises:
        OSError: It cannot be written; it is as it was.
    """
    with replacing(file, mode=mode) as written:
        written.write(text.encode())


@contextmanager
def replacing(file: Path, *, mode: int | None = None, new: bool = False) -> Iterator[BinaryIO]:
    """Write a file part by part: whoever reads it meanwhile finds all of it, old or new.

    Args:
        file: The file; its folder is there.
        mode: Who may read and write it; ``None``: who may already, and of a new one whoever the
            process's own mask lets.
        new: Whether nothing is written over: the folder has to know hard links.

    Raises:
        FileExistsError: Somebody else has made the new file meanwhile.
        OSError: It cannot be written; it is as it was.
    """
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    if mode is None and file.exists():
        mode = stat.S_IMODE(file.stat().st_mode)
    created = 0o666 if mode is None else 0o600
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, created)
    try:
        with os.fdopen(descriptor, "wb") as written:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield written
            written.flush()
            os.fsync(descriptor)
        if new:
            os.link(fresh, file)
            fresh.unlink()
        else:
            os.replace(fresh, file)
        to_disk(file.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing, so that they outlive a power cut.

    Raises:
        OSError: It cannot be made.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    to_disk(*(one.parent for one in missing))


def to_disk(*places: Path) -> None:
    """See to it that files, and what folders list, outlive a power cut."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
