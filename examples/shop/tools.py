"""The shop's tools, as a user of Surehand writes them.

Loaded with ``SUREHAND_TOOL_MODULES=surehand.examples.shop.tools``; the shop is found at
``SHOP_URL``. A tool says at its decorator what it does to the world and how an unknown outcome can
be settled; its body makes one request and knows nothing of retries, crashes or approvals.
"""

from __future__ import annotations

from datetime import timedelta

from surehand import READ, WRITE, ApprovalPolicy, Dedupes, LookupAnswer, No, ToolContext, Undo, tool
from surehand.examples.shop.client import look_up, said_no, send
from surehand.examples.shop.params import (
    CalculateParams,
    CancelRefundParams,
    CloseTicketParams,
    Mailed,
    MailParams,
    Order,
    OrderParams,
    Refund,
    Refundable,
    RefundCancelled,
    RefundParams,
    Restocked,
    RestockParams,
    RestockUndone,
    TicketClosed,
    UndoRestockParams,
)

#: Deadline of one call. The shop answers in milliseconds; whoever waits longer waits in vain.
CALL = timedelta(seconds=5)
#: How long after the deadline a request on the wire may still be applied.
SETTLE = timedelta(seconds=1)
#: The shop forgets idempotency keys after a day.
KEYS_KEPT = timedelta(hours=24)


@tool("orders.read", effect=READ, timeout=CALL)
async def read_order(params: OrderParams, ctx: ToolContext) -> Order | No:
    """Read an order."""
    response = await send("GET", f"/orders/{params.order_id}", ctx)
    return said_no(response) or Order.model_validate(response.json())


@tool("refunds.calculate", effect=READ, timeout=CALL)
async def calculate_refund(params: CalculateParams, ctx: ToolContext) -> Refundable | No:
    """Calculate what a returned order is refunded with.

    Whether *we* have paid it already is not asked here: the ledger knows, and replays the receipt.
    """
    response = await send("GET", f"/orders/{params.order_id}", ctx)
    if no := said_no(response):
        return no
    order = Order.model_validate(response.json())
    if order.status == "shipped":
        return No(f"{order.order_id} is on its way to the customer", code="already_shipped")
    if order.status == "refunded":
        return No(f"{order.order_id} was refunded by hand", code="already_refunded")
    return Refundable(amount=params.paid)


async def find_refund(params: RefundParams, ctx: ToolContext) -> LookupAnswer:
    """Ask whether a refund was paid."""
    return await look_up("refunds", Refund, ctx)


@tool(
    "payments.refund",
    effect=WRITE,
    timeout=CALL,
    # One refund an order, whichever run asks for it and however often.
    key=lambda params: f"refund:{params.order_id}",
    lookup=find_refund,
    settle=SETTLE,
    compensate=Undo(
        "payments.cancel_refund",
        params=lambda params, receipt: {
            "refund_id": receipt["refund_id"],
            "order_id": params["order_id"],
        },
    ),
    approval=ApprovalPolicy(expires_in=timedelta(hours=24)),
    describe=lambda params: f"Refund {params.amount} {params.currency} for {params.order_id}",
)
async def refund(params: RefundParams, ctx: ToolContext) -> Refund | No:
    """Pay money back to the customer of an order."""
    response = await send("POST", "/refunds", ctx, params.model_dump(mode="json"))
    return said_no(response) or Refund.model_validate(response.json())


async def find_refund_cancellation(params: CancelRefundParams, ctx: ToolContext) -> LookupAnswer:
    """Ask whether a refund was taken back."""
    return await look_up("refund_cancellations", RefundCancelled, ctx)


@tool(
    "payments.cancel_refund",
    effect=WRITE,
    timeout=CALL,
    key=lambda params: f"cancel-refund:{params.refund_id}",
    # The lookup is for a run that went on after the shop forgot the key.
    dedupes=Dedupes(window=KEYS_KEPT),
    lookup=find_refund_cancellation,
    settle=SETTLE,
    irreversible=True,
    describe=lambda params: f"Take back refund {params.refund_id} of {params.order_id}",
)
async def cancel_refund(params: CancelRefundParams, ctx: ToolContext) -> RefundCancelled | No:
    """Take a refund back."""
    response = await send("POST", f"/refunds/{params.refund_id}/cancel", ctx)
    return said_no(response) or RefundCancelled.model_validate(response.json())


async def find_restock(params: RestockParams, ctx: ToolContext) -> LookupAnswer:
    """Ask whether the articles were put back."""
    return await look_up("restocks", Restocked, ctx)


@tool(
    "inventory.restock",
    effect=WRITE,
    timeout=CALL,
    key=lambda params: f"restock:{params.order_id}",
    lookup=find_restock,
    settle=SETTLE,
    compensate=Undo(
        "inventory.undo_restock",
        params=lambda params, receipt: {"restock_id": receipt["restock_id"]},
    ),
    describe=lambda params: f"Put the articles of {params.order_id} back on the shelf",
)
async def restock(params: RestockParams, ctx: ToolContext) -> Restocked | No:
    """Put the articles of a returned order back on the shelf."""
    response = await send("POST", "/restocks", ctx, params.model_dump(mode="json"))
    return said_no(response) or Restocked.model_validate(response.json())


async def find_restock_undo(params: UndoRestockParams, ctx: ToolContext) -> LookupAnswer:
    """Ask whether a restock was taken back."""
    return await look_up("restock_undos", RestockUndone, ctx)


@tool(
    "inventory.undo_restock",
    effect=WRITE,
    timeout=CALL,
    key=lambda params: f"undo-restock:{params.restock_id}",
    lookup=find_restock_undo,
    settle=SETTLE,
    irreversible=True,
    describe=lambda params: f"Take restock {params.restock_id} off the shelf again",
)
async def undo_restock(params: UndoRestockParams, ctx: ToolContext) -> RestockUndone | No:
    """Take the articles of a restock off the shelf again."""
    response = await send("POST", f"/restocks/{params.restock_id}/undo", ctx)
    return said_no(response) or RestockUndone.model_validate(response.json())


@tool(
    "mail.send",
    effect=WRITE,
    timeout=CALL,
    key=lambda params: f"mail:{params.order_id}:{params.kind}",
    dedupes=Dedupes(window=KEYS_KEPT),
    irreversible=True,
    describe=lambda params: f"Mail {params.to}: {params.subject}",
)
async def send_mail(params: MailParams, ctx: ToolContext) -> Mailed | No:
    """Send a mail to a customer."""
    response = await send("POST", "/mails", ctx, params.model_dump(mode="json"))
    return said_no(response) or Mailed.model_validate(response.json())


@tool(
    "tickets.close",
    effect=WRITE,
    timeout=CALL,
    key=lambda params: f"close-ticket:{params.ticket_id}",
    dedupes=Dedupes(window=KEYS_KEPT),
    irreversible=True,
    describe=lambda params: f"Close {params.ticket_id}",
)
async def close_ticket(params: CloseTicketParams, ctx: ToolContext) -> TicketClosed | No:
    """Close a customer's ticket."""
    response = await send("POST", f"/tickets/{params.ticket_id}/close", ctx)
    return said_no(response) or TicketClosed.model_validate(response.json())
