"""A tool that pays a bill as often as it is called: nothing outside knows a payment again."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

from surehand import WRITE, ToolContext, tool


class Bill(BaseModel):
    bill: str


@tool(
    "bills.pay",
    effect=WRITE,
    key=lambda params: f"bill:{params.bill}",
    irreversible=True,
    recovery="human",
)
async def pay(params: Bill, ctx: ToolContext) -> str:
    """Pay a bill."""
    with Path(os.environ["BILLS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(f"{params.bill}\n")
    return params.bill
