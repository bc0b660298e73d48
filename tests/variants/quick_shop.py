"""The shop's tools, less patient: what a lost call leaves unknown is settled within two seconds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from surehand import Tool
from surehand.examples.shop import tools as shop


def _quick(tool: Tool) -> Tool:
    settle = timedelta(milliseconds=300) if tool.settle else None
    return replace(tool, timeout=timedelta(seconds=1), settle=settle)


read_order = shop.read_order
refund = _quick(shop.refund)
cancel_refund = _quick(shop.cancel_refund)
restock = _quick(shop.restock)
undo_restock = _quick(shop.undo_restock)
send_mail = _quick(shop.send_mail)
close_ticket = _quick(shop.close_ticket)
