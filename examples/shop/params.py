"""The params and outputs of the shop's tools; amounts of money are decimals, as strings in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

CENT: Final = Decimal("0.01")


def to_cents(amount: Decimal) -> Decimal:
    """Return the amount with exactly two places."""
    return amount.quantize(CENT)


#: One amount has one text: "120", "120.0" and "120.00" would otherwise be three different params.
Money = Annotated[Decimal, Field(ge=0, decimal_places=2, max_digits=14), AfterValidator(to_cents)]


def total(amounts: Iterable[str]) -> Decimal:
    """Return the sum of amounts as they are stored."""
    return to_cents(sum((Decimal(amount) for amount in amounts), Decimal(0)))


Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Params(BaseModel):
    """Base of the params. A field nobody knows is refused: an approver must not read past it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Receipt(BaseModel):
    """Base of what tools return; what the shop adds some day is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Line(Receipt):
    """How many of an article."""

    sku: str
    quantity: int


class OrderParams(Params):
    """Which order."""

    order_id: Id


class Order(Receipt):
    """An order as the shop knows it."""

    order_id: str
    status: str
    currency: str
    paid: Money
    refunded: Money
    customer_email: str
    lines: tuple[Line, ...]


class CalculateParams(Params):
    """What is to be refunded for."""

    order_id: Id
    paid: Money


class Refundable(Receipt):
    """What the order is refunded with."""

    amount: Money


class RefundParams(Params):
    """A refund to the customer of an order."""

    order_id: Id
    amount: Annotated[Money, Field(gt=0)]
    currency: str = Field(default="EUR", pattern=r"^[A-Z]{3}$")
    reason: str = "returned"


class Refund(Receipt):
    """A refund that was paid."""

    refund_id: str
    order_id: str
    amount: Money
    currency: str


class CancelRefundParams(Params):
    """A refund to take back."""

    refund_id: Id
    order_id: Id


class RefundCancelled(Receipt):
    """A refund that was taken back."""

    cancellation_id: str
    refund_id: str
    amount: Money


class RestockParams(Params):
    """Articles of an order that go back on the shelf."""

    order_id: Id
    lines: tuple[Line, ...] = Field(min_length=1)


class Restocked(Receipt):
    """Articles that went back on the shelf."""

    restock_id: str
    order_id: str
    lines: tuple[Line, ...]


class UndoRestockParams(Params):
    """A restock to take back."""

    restock_id: Id


class RestockUndone(Receipt):
    """A restock that was taken back."""

    undo_id: str
    restock_id: str


class MailParams(Params):
    """A mail to a customer."""

    order_id: Id
    kind: Id
    """What the mail is for, such as ``refund_notice``: an order gets one mail of a kind."""
    to: str = Field(pattern=r"^[^@\s]+@[^@\s]+$")
    subject: str = Field(min_length=1)
    body: str = Field(min_length=1)


class Mailed(Receipt):
    """A mail that was sent."""

    mail_id: str
    to: str


class CloseTicketParams(Params):
    """Which ticket."""

    ticket_id: Id


class TicketClosed(Receipt):
    """A ticket that was closed."""

    ticket_id: str
    status: str
