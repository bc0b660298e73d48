"""Reads that wait until a test lets them go on, beside the prices and the shop."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from activities.toolbox import READ, ToolContext, tool
from tests.variants.prices import *  # noqa: F403


class Gate(BaseModel):
    file: str


@tool("gates.read", effect=READ, timeout=timedelta(seconds=40))
async def wait_open(params: Gate, ctx: ToolContext) -> None:
    """Say that it has begun, and wait until it is opened."""
    Path(f"{params.file}.began").touch()
    while not Path(f"{params.file}.open").exists():
        await asyncio.sleep(0.02)
