"""Tools that are worse than they say: a drill that calls one of them good is wrong.

Each appends to a file, which is their world. They know that they are drilled.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from surehand import WRITE, Dedupes, Found, LookupAnswer, NotFound, Permanent, ToolContext, tool
from surehand.activities.worker import watchdog

if TYPE_CHECKING:
    from surehand import Context

_DRILLED: Final = "SUREHAND_CRASH_AT"
_TIMEOUT: Final = timedelta(seconds=2)
#: Between the end of the run, which has called again after five, and the last look at the world.
_LATE_S: Final = 8
#: The file that a worker makes right before it freezes.
_FROZEN: Final = "SUREHAND_CRASH_ONCE"
#: From that file until the worker is frozen, with time to spare. One that was thawed is behind it.
_THREAD_S: Final = 0.6


class Note(BaseModel):
    """What is to be written, and where."""

    file: str
    text: str


def _append(params: Note, text: str) -> None:
    with Path(params.file).open("a") as file:
        file.write(f"{text}\n")


@tool("cheats.otherwise", effect=WRITE, recovery="human", irreversible=True, timeout=_TIMEOUT)
async def otherwise(params: Note, ctx: ToolContext) -> None:
    """Write something else where a worker is about to die."""
    _append(params, "otherwise" if _DRILLED in os.environ else params.text)


@tool(
    "cheats.helpless",
    effect=WRITE,
    dedupes=Dedupes(window=timedelta(hours=1)),
    irreversible=True,
    timeout=_TIMEOUT,
)
async def helpless(params: Note, ctx: ToolContext) -> None:
    """Recognise a repeated call, and refuse it."""
    if params.text in Path(params.file).read_text():
        raise Permanent("it was called before")
    _append(params, params.text)


async def is_written(params: Note, ctx: ToolContext) -> LookupAnswer:
    """Look for the key of the call."""
    return Found(None) if ctx.idempotency_key in Path(params.file).read_text() else NotFound()


@tool(
    "cheats.late",
    effect=WRITE,
    lookup=is_written,
    settle=timedelta(milliseconds=100),
    irreversible=True,
    timeout=timedelta(seconds=5),
)
async def late(params: Note, ctx: ToolContext) -> None:
    """Where a worker is about to die, leave it to a process that writes later than it should."""
    note = f"{ctx.idempotency_key} {params.text}"
    if _DRILLED in os.environ and ctx.attempt == 1:
        wait = f"sleep {_LATE_S}; echo {note} >> {params.file}"
        subprocess.Popen(["/bin/sh", "-c", wait], start_new_session=True)
    else:
        _append(params, note)


@tool(
    "cheats.threaded",
    effect=WRITE,
    lookup=is_written,
    settle=timedelta(milliseconds=100),
    irreversible=True,
    timeout=_TIMEOUT,
)
async def threaded(params: Note, ctx: ToolContext) -> None:
    """Write in a thread, which goes on with nobody waiting for it.

    The worker of the drill is frozen before it writes, however late the freeze comes. At the thaw
    the watchdog would end the worker: whether before or behind the thread is chance, so it sleeps.
    """
    watchdog.INTERVAL = 600

    def write() -> None:
        while _DRILLED in os.environ and not _is_older(Path(os.environ[_FROZEN]), _THREAD_S):
            time.sleep(0.01)
        _append(params, f"{ctx.idempotency_key} {params.text}")

    await asyncio.to_thread(write)


def _is_older(file: Path, seconds: float) -> bool:
    return file.exists() and file.stat().st_mtime + seconds < time.time()


@tool("cheats.twice", effect=WRITE, recovery="human", irreversible=True, timeout=_TIMEOUT)
async def twice(params: Note, ctx: ToolContext) -> None:
    """Write everything twice."""
    _append(params, params.text)
    _append(params, params.text)


def fresh(context: Context) -> dict[str, Any]:
    """Make an empty file for one more run."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        return {"file": file.name}


def world(context: Context) -> dict[str, Any]:
    """Return what was written for a run, without keys."""
    lines = Path(str(context.input["file"])).read_text().splitlines()
    notes = [line.split()[-1] for line in lines]
    return {"notes": notes, "effects": {"notes": len(notes)}}
