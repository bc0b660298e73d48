"""Programs of others that tests use unmodified: installed once a machine, by locks.

They go into the cache beside the Temporal CLI, each set under the digest of its locks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

#: Installs what ``package-lock.json`` says; nothing of it runs meanwhile.
NPM: Final = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
_LONGEST_S: Final = 300


class PackagesMissing(Exception):
    """Something cannot be installed here; the message says why."""


def installed(name: str, locks: Sequence[Path], commands: Iterable[Sequence[str]]) -> Path:
    """Return the folder of what is installed, by this process or by an earlier one.

    Args:
        name: What the folder's name begins with.
        locks: Files that say what is installed: copied into the folder.
        commands: What installs it there; a program with a slash lies in the folder.

    Raises:
        PackagesMissing: A program is not there, or a registry does not answer.
    """
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cached = Path(base, "surehand", f"{name}-{digest}")
    cached.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{cached}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = cached / "done"
        if not done.exists():
            shutil.rmtree(cached, ignore_errors=True)
            cached.mkdir()
            for one in locks:
                shutil.copy(one, cached)
            for command in commands:
                _run(command, cached)
            done.touch()
    return cached


def _run(command: Sequence[str], folder: Path) -> None:
    program, *arguments = command
    here = folder / program if "/" in program else None
    found = shutil.which(here or program)
    if found is None:
        raise PackagesMissing(f"{program} is not on PATH: install it")
    try:
        subprocess.run(
            [found, *arguments],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
        )
    except subprocess.CalledProcessError as error:
        raise PackagesMissing(f"{program} {arguments[0]}: {error.stderr[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise PackagesMissing(f"{program} {arguments[0]}: no end after {_LONGEST_S} s") from error
