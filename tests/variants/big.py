"""Tools that return a megabyte each; what happened is noted in ``UNDONE`` and ``TEXTS``."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from surehand import READ, WRITE, Permanent, ToolContext, Undo, tool

#: The receipts that undoing was given, and the texts that were sent. Only for tests in one process.
UNDONE: Final[list[str]] = []
TEXTS: Final[list[str]] = []


class Page(BaseModel):
    """Which page."""

    page: int


class Text(BaseModel):
    """A text."""

    text: str


def megabyte(page: int) -> dict[str, Any]:
    """Return the output for a page."""
    return {"page": page, "report": f"{page} " * 400_000, "lines": [{"sku": f"sku-{page}"}]}


@tool("pages.read", effect=READ)
async def read(params: Page, ctx: ToolContext) -> dict[str, Any]:
    """Read a page."""
    return megabyte(params.page)


@tool(
    "pages.write",
    effect=WRITE,
    recovery="human",
    key=lambda params: f"page:{params.page}",
    compensate=Undo(
        "pages.unwrite", params=lambda _, receipt: {"text": receipt["lines"][0]["sku"]}
    ),
)
async def write(params: Page, ctx: ToolContext) -> dict[str, Any]:
    """Write a page."""
    return megabyte(params.page)


@tool("pages.unwrite", effect=WRITE, recovery="human", irreversible=True)
async def unwrite(params: Text, ctx: ToolContext) -> str:
    """Undo the writing of a page."""
    UNDONE.append(params.text)
    return "undone"


@tool("pages.send", effect=WRITE, recovery="human", irreversible=True)
async def send(params: Text, ctx: ToolContext) -> str:
    """Send a text."""
    TEXTS.append(params.text)
    return "sent"


@tool("pages.refuse", effect=WRITE, recovery="human", irreversible=True)
async def refuse(params: Text, ctx: ToolContext) -> str:
    """Fail for good."""
    raise Permanent("refused")
