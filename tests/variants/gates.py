"""Reads that wait until a test lets them go on, beside the prices and the shop."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from surehand import READ, No, ToolContext, tool
from tests.variants.prices import *  # noqa: F403


class Gate(BaseModel):
    file: str


@tool("gates.read", effect=READ, timeout=timedelta(seconds=40))
async def wait_open(params: Gate, ctx: ToolContext) -> None:
    """Say that it has begun, and wait until it is opened."""
    await _opened(params.file)


@tool("gates.price", effect=READ, timeout=timedelta(seconds=40))
async def read_late(params: Gate, ctx: ToolContext) -> dict[str, str]:
    """Read a price; the first attempt tells it only when it is let go on."""
    amount = Path(params.file).read_text()
    if ctx.attempt == 1:
        await _opened(params.file)
    return {"amount": amount}


@tool("gates.answer", effect=READ)
async def read_answer(params: Gate, ctx: ToolContext) -> dict[str, str] | No:
    """Say no until there is an answer."""
    file = Path(params.file)
    return {"amount": file.read_text()} if file.exists() else No("not yet", code="not_yet")


@tool("gates.orders", effect=READ, fresh_for=timedelta(0))
async def read_orders(params: Gate, ctx: ToolContext) -> dict[str, list[str]]:
    """Read which orders there are now."""
    return {"orders": Path(params.file).read_text().split()}


async def _opened(file: str) -> None:
    Path(f"{file}.began").touch()
    while not Path(f"{file}.open").exists():
        await asyncio.sleep(0.02)
