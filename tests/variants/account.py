"""Tools of several kinds for one account, which notes when each of their calls begins and ends."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from surehand import READ, WRITE, Dedupes, ToolContext, tool
from surehand.activities.effects import leases

_LOOK_EVERY: Final = 0.02  # seconds
LEASE: Final = timedelta(seconds=3)
if "pytest" not in sys.modules:  # in a worker's own process, which may die with it
    leases._LEASE = LEASE  # type: ignore[misc]
ONE_AT_A_TIME: Final[dict[str, Any]] = {
    "resource": lambda params: ["account:7", "books"],
    "timeout": timedelta(seconds=20),
}


class Visit(BaseModel):
    """A call that lasts until somebody lets it go."""

    folder: str
    """What is outside: the record, and the leave to go on."""


def record(params: Visit) -> list[str]:
    """Return what the account has seen, in its order."""
    file = Path(params.folder) / "record"
    return file.read_text().splitlines() if file.exists() else []


def let_go(params: Visit) -> None:
    """Let all calls end, those to come too."""
    (Path(params.folder) / "go").touch()


async def visit(params: Visit, ctx: ToolContext) -> str:
    """Write down the beginning, wait for leave to go on, write down the end."""
    folder = Path(params.folder)
    with (folder / "record").open("a") as seen:
        print("begins", ctx.run_id, file=seen, flush=True)
        while not (folder / "go").exists():
            await asyncio.sleep(_LOOK_EVERY)
        print("ends", ctx.run_id, file=seen, flush=True)
    return "done"


@tool(
    "account.pay",
    effect=WRITE,
    dedupes=Dedupes(timedelta(hours=1)),
    irreversible=True,
    **ONE_AT_A_TIME,
)
async def pay(params: Visit, ctx: ToolContext) -> str:
    """Pay."""
    return await visit(params, ctx)


@tool("account.read", effect=READ, **ONE_AT_A_TIME)
async def read(params: Visit, ctx: ToolContext) -> str:
    """Read."""
    return await visit(params, ctx)


#: With a deadline that is far: only its lease can end it.
PATIENT: Final = {**ONE_AT_A_TIME, "timeout": timedelta(minutes=2)}


@tool("account.block", effect=READ, **PATIENT)
async def block(params: Visit, ctx: ToolContext) -> str:
    """Block the worker, so that nothing can be renewed or stopped."""
    with (Path(params.folder) / "record").open("a") as seen:
        print("begins", ctx.run_id, file=seen, flush=True)
    time.sleep(60)
    return "done"
