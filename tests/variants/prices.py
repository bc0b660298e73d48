"""Reads that stay fresh for no time at all, or for long; a file says what they return."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from surehand import READ, ToolContext, tool
from surehand.activities.tools.failures import FailureClass
from surehand.examples.shop.tools import *  # noqa: F403

_GONE: Final = {FileNotFoundError: FailureClass.PERMANENT}


class From(BaseModel):
    file: str


class Amount(BaseModel):
    amount: str


async def _read(params: From) -> dict[str, str]:
    file = Path(params.file)
    with file.with_suffix(".count").open("a") as count:
        count.write("x")
    return {"amount": file.read_text()}


@tool("prices.read", effect=READ, fresh_for=timedelta(0), errors=_GONE)
async def read(params: From, ctx: ToolContext) -> dict[str, str]:
    """Read a price that may change at any time."""
    return await _read(params)


@tool("prices.lasting", effect=READ, fresh_for=timedelta(hours=1))
async def lasting(params: From, ctx: ToolContext) -> dict[str, str]:
    """Read a price that holds for an hour."""
    return await _read(params)


@tool("prices.whole", effect=READ)
async def whole(params: Amount, ctx: ToolContext) -> dict[str, str]:
    """Leave the cents out."""
    return {"amount": params.amount.partition(".")[0] + ".00"}
