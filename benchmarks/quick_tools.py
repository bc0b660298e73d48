"""Tools that do next to nothing: what a step of them costs is what its protection costs."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final

from pydantic import BaseModel, JsonValue

from surehand.activities.tools.answers import Dedupes
from surehand.activities.tools.failure_classes import Transient
from surehand.activities.tools.tool import ToolContext
from surehand.activities.tools.toolbox import READ, WRITE, tool

#: Short enough to be called inside the workflow task where a run's durability allows that.
DEADLINE: Final = timedelta(seconds=5)
_KEYS_KEPT: Final = Dedupes(timedelta(hours=24))


class Call(BaseModel):
    """Params of a call that succeeds at once."""

    takes: float = 0
    """Seconds that the call takes."""


async def answer(takes: float) -> dict[str, JsonValue]:
    """Return when the call began, by the machine's monotonic clock."""
    at = time.monotonic()
    if takes:
        await asyncio.sleep(takes)
    return {"at": at}


@tool("quick.read", effect=READ, timeout=DEADLINE)
async def read(params: Call, ctx: ToolContext) -> JsonValue:
    """Read nothing."""
    return dict(await answer(params.takes))


@tool("quick.write", effect=WRITE, timeout=DEADLINE, dedupes=_KEYS_KEPT, irreversible=True)
async def write(params: Call, ctx: ToolContext) -> JsonValue:
    """Change nothing."""
    return dict(await answer(params.takes))


@tool(
    "quick.leased",
    effect=WRITE,
    timeout=DEADLINE,
    dedupes=_KEYS_KEPT,
    irreversible=True,
    resource=lambda params: "room-1",
)
async def write_leased(params: Call, ctx: ToolContext) -> JsonValue:
    """Change nothing, holding a resource that is free."""
    return dict(await answer(params.takes))


class Repeated(BaseModel):
    """Params of a call that fails at first."""

    takes: float
    """Seconds that each attempt takes."""
    fails: int
    """Attempts that fail for now."""


#: When the attempts of a call began and ended, by the machine's monotonic clock.
Attempts = list[tuple[float, float]]
#: By the call; as long as this process lives.
_ATTEMPTS: Final[dict[str, Attempts]] = {}


async def attempt(call: str, params: Repeated) -> Attempts:
    """Make an attempt at a call; returns all of them.

    Raises:
        Transient: This one is one of those that fail.
    """
    began = time.monotonic()
    await asyncio.sleep(params.takes)
    attempts = _ATTEMPTS.setdefault(call, [])
    attempts.append((began, time.monotonic()))
    if len(attempts) <= params.fails:
        raise Transient("not yet")
    return attempts


@tool("quick.repeated", effect=WRITE, timeout=DEADLINE, dedupes=_KEYS_KEPT, irreversible=True)
async def write_at_last(params: Repeated, ctx: ToolContext) -> JsonValue:
    """Change nothing, after some attempts that fail for now."""
    return [list(one) for one in await attempt(ctx.idempotency_key, params)]
