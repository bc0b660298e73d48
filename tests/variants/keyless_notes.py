"""The shop's tools, and one whose effects have no business key: each step makes its own."""

from __future__ import annotations

from datetime import timedelta

from surehand import WRITE, Dedupes, No, ToolContext, tool
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import Mailed, MailParams
from surehand.examples.shop.tools import *  # noqa: F403


@tool("notes.send", effect=WRITE, dedupes=Dedupes(window=timedelta(hours=24)), irreversible=True)
async def send_note(params: MailParams, ctx: ToolContext) -> Mailed | No:
    """Send a mail, as often as a plan says so."""
    return await shop.send_mail.fn(params, ctx)
