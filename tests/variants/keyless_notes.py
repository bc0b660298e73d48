"""The shop's tools, and one whose effects have no business key: each step makes its own."""

from __future__ import annotations

from datetime import timedelta

from surehand import WRITE, Dedupes, No, ToolContext, tool
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import Mailed, MailParams

read_order = shop.read_order
calculate_refund = shop.calculate_refund
refund = shop.refund
cancel_refund = shop.cancel_refund
restock = shop.restock
undo_restock = shop.undo_restock
send_mail = shop.send_mail


@tool("notes.send", effect=WRITE, dedupes=Dedupes(window=timedelta(hours=24)), irreversible=True)
async def send_note(params: MailParams, ctx: ToolContext) -> Mailed | No:
    """Send a mail, as often as a plan says so."""
    return await shop.send_mail.fn(params, ctx)
