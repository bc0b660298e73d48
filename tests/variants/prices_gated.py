"""The same reads, and one that somebody has to approve."""

from __future__ import annotations

from pathlib import Path

from surehand import READ, ApprovalPolicy, ToolContext, tool
from tests.variants.prices import *  # noqa: F403
from tests.variants.prices import From


@tool("prices.secret", effect=READ, approval=ApprovalPolicy(), permission="prices")
async def secret(params: From, ctx: ToolContext) -> dict[str, str]:
    """Read a price that not everybody may know."""
    with Path(params.file).with_suffix(".secret").open("a") as count:
        count.write("x")
    return {"amount": Path(params.file).read_text()}
