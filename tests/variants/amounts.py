"""Tools whose params may be of several types; with the shop's tools."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from pydantic import BaseModel

from surehand import READ, ToolContext, tool
from surehand.examples.shop.tools import *  # noqa: F403


class Card(BaseModel):
    number: int


class Transfer(BaseModel):
    iban: str


class Payment(BaseModel):
    amount: Decimal | int
    when: date | datetime
    to: Card | Transfer
    parts: list[int] | int = 0


@tool("payments.price", effect=READ)
async def price(params: Payment, ctx: ToolContext) -> str:
    """Say what a payment costs."""
    return f"{params.amount} {params.when} {type(params.to).__name__} {params.parts}"


class Many(BaseModel):
    many: int


@tool("numbers.upto", effect=READ)
async def upto(params: Many, ctx: ToolContext) -> list[int]:
    """Say the numbers below one."""
    return list(range(params.many))
