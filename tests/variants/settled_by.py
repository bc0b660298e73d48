"""A write for each way to settle a doubt: by a lookup, by the provider's key, by a human.

And some whose declarations are wrong: what they say of themselves is not what the shop does.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from surehand import READ, WRITE, Dedupes, LookupAnswer, NotFound, ToolContext, Undo, tool
from surehand.examples.shop import tools as shop
from surehand.examples.shop.client import look_up, send
from surehand.examples.shop.params import CancelRefundParams, MailParams, Refund, RefundParams
from surehand.examples.shop.tools import *  # noqa: F403
from surehand.workflows.contracts.tools import Recovery

#: So short that "not found" counts soon.
SHORT: Final = {"timeout": timedelta(seconds=2)}
SOON: Final = {**SHORT, "settle": timedelta(seconds=1)}
DAY: Final = timedelta(hours=24)

restock = replace(shop.restock, **SOON)
undo_restock = replace(shop.undo_restock, **SOON)
send_mail = replace(shop.send_mail, **SHORT)
cancel_refund = replace(shop.cancel_refund, **SOON)
refund = replace(
    shop.refund, lookup=None, settle=None, recovery=Recovery.HUMAN, approval=None, **SHORT
)


async def order_as_it_is(params: MailParams, ctx: ToolContext) -> Any:
    """Return what a mail is approved for."""
    return (await send("GET", f"/orders/{params.order_id}", ctx)).json()


mail_as_it_is = replace(send_mail, name="mail.as_it_is", precondition=order_as_it_is)


async def pay(params: RefundParams, ctx: ToolContext) -> Any:
    """Pay money back."""
    return await shop.refund.fn(params, ctx)


async def find(params: RefundParams, ctx: ToolContext) -> LookupAnswer:
    return await look_up("refunds", Refund, ctx)


async def find_nothing(params: RefundParams, ctx: ToolContext) -> LookupAnswer:
    return NotFound()


async def undo_nothing(params: CancelRefundParams, ctx: ToolContext) -> None:
    """Say that a refund is taken back."""


def by_order(params: RefundParams) -> str:
    return f"{params.order_id}"


def undo_by(name: str) -> dict[str, Any]:
    ids = lambda params, receipt: {  # noqa: E731
        "refund_id": receipt["refund_id"],
        "order_id": params["order_id"],
    }
    return {"compensate": Undo(name, params=ids)}


RIGHT: Final[dict[str, Any]] = {"effect": WRITE, "key": by_order, **SOON, "lookup": find}
BY_KEY: Final[dict[str, Any]] = {
    "effect": WRITE,
    "key": by_order,
    "dedupes": Dedupes(DAY),
    "irreversible": True,
    **SHORT,
}

right = tool("pay.right", **RIGHT, **undo_by("payments.cancel_refund"))(pay)
no_undo = tool("pay.no_undo", **RIGHT)(pay)
broad = tool("pay.broad", **RIGHT | {"key": lambda params: "everybody"}, irreversible=True)(pay)
no_undo_works = tool("pay.undone_by_nothing", **RIGHT, **undo_by("pay.undo_nothing"))(pay)
undoes_nothing = tool("pay.undo_nothing", effect=WRITE, irreversible=True, dedupes=Dedupes(DAY))(
    undo_nothing
)
not_idempotent = tool("pay.not_idempotent", **BY_KEY)(pay)
no_read = tool("pay.no_read", effect=READ, **SHORT)(pay)
blind = tool("pay.blind", **RIGHT | {"lookup": find_nothing}, irreversible=True)(pay)
worded = tool(
    "pay.worded",
    **RIGHT | {"key": lambda params: f"{params.order_id} {params.reason}"},
    irreversible=True,
)(pay)
keyless = tool("pay.keyless", **RIGHT | {"key": None}, irreversible=True)(pay)
