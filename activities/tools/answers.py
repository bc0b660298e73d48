"""What tools and their lookups answer, and how an effect is undone: values of the user's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import JsonValue

from surehand.activities.tools.output_json import clean_text


@dataclass(frozen=True)
class No:
    """The tool's answer is no (not found, already shipped): a value, never retried.

    Example:
        >>> answer = No("order-7 was shipped already", code="shipped")
        >>> answer.code
        'shipped'
    """

    reason: str
    code: str = "no"

    def cleaned(self) -> No:
        """Return the answer as ledger and history can carry it, whatever the tool has put in."""
        return No(clean_text(str(self.reason), 2000), clean_text(str(self.code), 80))


@dataclass(frozen=True)
class Dedupes:
    """The provider honours our key.

    Example:
        >>> @tool("shop.pay", effect=WRITE, dedupes=Dedupes(timedelta(hours=24)), irreversible=True)
        ... async def pay(params: Order, ctx: ToolContext) -> str:
        ...     return f"paid under {ctx.idempotency_key}"
        >>> pay.dedupes.window
        datetime.timedelta(days=1)
    """

    window: timedelta
    """For how long after the first call; later only a lookup or a human can tell."""


@dataclass(frozen=True)
class Undo:
    """How an effect is undone: another tool, with params made from the call and its receipt.

    Example:
        >>> undo = Undo("shop.refund", lambda params, receipt: {"payment": receipt["id"]})
        >>> undo.params({"order_id": "order-7"}, {"id": "pay-1"})
        {'payment': 'pay-1'}
    """

    tool: str
    params: Callable[[dict[str, Any], Any], Mapping[str, Any]]
    """``(params, receipt) -> params of the undoing tool``, all in JSON form."""
    version: str = ""
    """Of ``params``, where it may change while the tool's own version stays."""


@dataclass(frozen=True)
class Found:
    """Lookup: the effect happened; ``receipt`` is what the call would have returned.

    Example:
        >>> async def find(params: Order, ctx: ToolContext) -> LookupAnswer:
        ...     payments = {"key-1": {"id": "pay-1"}}
        ...     paid = payments.get(ctx.idempotency_key)
        ...     return Found(paid) if paid else NotFound()
        >>> await find(Order(order_id="order-7"), ctx)
        Found(receipt={'id': 'pay-1'})
    """

    receipt: JsonValue


@dataclass(frozen=True)
class NotFound:
    """Lookup: there is no such effect (yet).

    Example:
        >>> async def find(params: Order, ctx: ToolContext) -> LookupAnswer:
        ...     return NotFound()
        >>> await find(Order(order_id="order-7"), ctx)
        NotFound()
    """


@dataclass(frozen=True)
class Partial:
    """Lookup: the effect happened in part.

    Example:
        >>> async def find(params: Order, ctx: ToolContext) -> LookupAnswer:
        ...     return Partial("1 of 2 parcels was sent", receipt={"parcels": ["p-1"]})
        >>> (await find(Order(order_id="order-7"), ctx)).details
        '1 of 2 parcels was sent'
    """

    details: str
    receipt: JsonValue = None
    """What the part would have returned; a compensation that a human asks for is given it."""


@dataclass(frozen=True)
class Unknown:
    """Lookup: the outside system cannot tell.

    Example:
        >>> async def find(params: Order, ctx: ToolContext) -> LookupAnswer:
        ...     return Unknown("the shop keeps payments for a day only")
        >>> (await find(Order(order_id="order-7"), ctx)).reason
        'the shop keeps payments for a day only'
    """

    reason: str


#: A ``No``: the outside system was asked, and has refused.
LookupAnswer = Found | NotFound | Partial | Unknown | No
