"""What the shop's endpoints take: the bodies of its requests."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from surehand.examples.shop.money import Money


class Body(BaseModel):
    """Base of all bodies: a field the shop does not know is refused, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Line(Body):
    """How many of an article."""

    sku: str = Field(min_length=1)
    quantity: int = Field(gt=0)


class NewOrder(Body):
    """An order to create; the shop makes up what is left out."""

    order_id: str | None = None
    status: Literal["paid", "shipped", "refunded"] = "paid"
    """``shipped`` is on its way to the customer and cannot be refunded yet; ``refunded`` was paid
    back by hand."""
    paid: Money = Decimal("120.00")
    currency: str = "EUR"
    customer_email: str = "ada@example.com"
    lines: tuple[Line, ...] | None = None


class RefundBody(Body):
    """Pays money back to the customer of an order."""

    order_id: str
    amount: Annotated[Money, Field(gt=0)]
    currency: str
    reason: str = ""


class CancelRefundBody(Body):
    """Takes a refund back."""

    refund_id: str


class MailBody(Body):
    """Sends a mail about an order."""

    order_id: str
    kind: str
    to: str
    subject: str
    body: str


class RestockBody(Body):
    """Puts the articles of a returned order back on the shelf."""

    order_id: str
    lines: tuple[Line, ...] = Field(min_length=1)


class UndoRestockBody(Body):
    """Takes the articles of a restock off the shelf again."""

    restock_id: str


class CloseTicketBody(Body):
    """Closes a customer's ticket."""

    ticket_id: str
