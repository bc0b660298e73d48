"""Reads that return what stays inline, and a tool that takes all of it; with the shop's tools."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from surehand import READ, ToolContext, tool
from tests.variants.refund_ungated import *  # noqa: F403


class Page(BaseModel):
    """Which page, and how long it is."""

    n: int
    length: int = 8000


class Pages(BaseModel):
    """Some pages."""

    pages: list[JsonValue]


@tool("pages.read", effect=READ)
async def read_page(params: Page, ctx: ToolContext) -> JsonValue:
    """Read a page."""
    return {"n": params.n, "text": "x" * params.length}


@tool("pages.count", effect=READ)
async def count_pages(params: Pages, ctx: ToolContext) -> JsonValue:
    """Count pages."""
    return len(params.pages)
