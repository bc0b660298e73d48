"""The Temporal CLI's program: where it is on this machine, and how to get it when it is not."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

CLI_VERSION: Final = "1.5.1"
"""Newest release that ``go install`` accepts: later ones have a ``replace`` in their go.mod."""
CLI_MODULE: Final = f"github.com/temporalio/cli/cmd/temporal@v{CLI_VERSION}"

#: Seconds. The download is tens of megabytes. Without a network it fails at once; behind a firewall
#: that drops packets it would hang. Then the build gets its turn.
DOWNLOAD_TIMEOUT: Final = 90.0

_DOWNLOAD: Final = """\
import asyncio, sys
from temporalio.testing import WorkflowEnvironment
async def main():
    server = await WorkflowEnvironment.start_local(download_dest_dir=sys.argv[1])
    await server.shutdown()
asyncio.run(main())
"""
_WHAT_TO_DO: Final = "install it (https://docs.temporal.io/cli) or name it in TEMPORAL_CLI_PATH"


class CliMissing(Exception):
    """There is no Temporal CLI and no way to get one; the message says what to do."""


def say(line: str) -> None:
    """Tell the person at the terminal, beside what the command itself prints."""
    print(line, file=sys.stderr, flush=True)


def find_cli(*, log: Callable[[str], object] = say) -> Path:
    """Find the Temporal CLI; download or build it when this machine has none.

    Looked for in this order: ``TEMPORAL_CLI_PATH``, ``temporal`` on PATH, the cache; then the
    SDK's download and a build with Go, both into the cache (once a machine, not once a checkout).

    Args:
        log: Told in one line about each thing that takes long.

    Raises:
        CliMissing: None of them worked.
    """
    if named := os.environ.get("TEMPORAL_CLI_PATH"):
        if not _is_program(Path(named)):
            raise CliMissing(f"TEMPORAL_CLI_PATH={named} is not a program that can be run")
        return Path(named).resolve()
    if on_path := shutil.which("temporal"):
        return Path(on_path).resolve()
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cached = Path(base, "surehand", f"temporal-{CLI_VERSION}")
        if not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            _fill(cached, log)
    except (OSError, RuntimeError) as error:  # no home, or none that can be written to
        raise CliMissing(
            f"The Temporal CLI is not on PATH and cannot be kept here ({error}); {_WHAT_TO_DO}"
        ) from error
    return cached


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _fill(cached: Path, log: Callable[[str], object]) -> None:
    """Put the CLI into the cache, or wait for the process that is doing so."""
    with open(f"{cached}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("Another process is getting the Temporal CLI; waiting for it (about 4 minutes)")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if cached.exists():
            return
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix="incoming-") as incoming:
            folder = Path(incoming)
            (_download(folder, log) or _build(folder, log)).rename(cached)


def _download(folder: Path, log: Callable[[str], object]) -> Path | None:
    """The SDK's own download; None when there is no network for it.

    In a process of its own, which can be ended at its time limit and keeps to itself what the
    SDK has to say about a missing network.
    """
    log(f"No Temporal CLI on this machine: downloading it (at most {DOWNLOAD_TIMEOUT:.0f} s, once)")
    command = [sys.executable, "-c", _DOWNLOAD, str(folder)]
    try:
        subprocess.run(command, capture_output=True, timeout=DOWNLOAD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return None
    return next(filter(_is_program, folder.iterdir()), None)


def _build(folder: Path, log: Callable[[str], object]) -> Path:
    go = shutil.which("go")
    if go is None:
        raise CliMissing(
            "The Temporal CLI is missing: it is not on PATH, could not be downloaded, and there"
            f" is no Go to build it with; {_WHAT_TO_DO}"
        )
    log(f"It cannot be downloaded: building it, go install {CLI_MODULE} (about 3 minutes, once)")
    began = time.monotonic()
    # Go refuses GOBIN when it is told to build for another platform than this one.
    environ = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH")}
    build = subprocess.run(
        [go, "install", CLI_MODULE],
        env=environ | {"GOBIN": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode != 0:
        reason = (build.stderr.strip().splitlines() or [f"exit code {build.returncode}"])[-1]
        raise CliMissing(
            "The Temporal CLI is missing: it is not on PATH, could not be downloaded, and"
            f" `go install {CLI_MODULE}` failed ({reason}); {_WHAT_TO_DO}"
        )
    log(f"Built the Temporal CLI in {time.monotonic() - began:.0f} s")
    return folder / "temporal"
