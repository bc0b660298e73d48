"""Reads of which a file says what they return."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel

from surehand import READ, ToolContext, tool
from surehand.activities.tools.failures import FailureClass
from surehand.examples.shop.tools import *  # noqa: F403

_GONE: Final = {FileNotFoundError: FailureClass.PERMANENT}


class From(BaseModel):
    file: str


@tool("prices.read", effect=READ, errors=_GONE)
async def read(params: From, ctx: ToolContext) -> dict[str, str]:
    """Read a price that may change at any time."""
    file = Path(params.file)
    with file.with_suffix(".count").open("a") as count:
        count.write("x")
    return {"amount": file.read_text()}
