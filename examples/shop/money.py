"""Amounts of money: decimals with two places, written as strings in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, Field

CENT: Final = Decimal("0.01")


def to_cents(amount: Decimal) -> Decimal:
    """Return the amount with exactly two places."""
    return amount.quantize(CENT)


#: One amount has one text: "120", "120.0" and "120.00" would otherwise be three different params.
Money = Annotated[Decimal, Field(ge=0, decimal_places=2, max_digits=14), AfterValidator(to_cents)]


def total(amounts: Iterable[str]) -> Decimal:
    """Return the sum of amounts as they are stored."""
    return to_cents(sum((Decimal(amount) for amount in amounts), Decimal(0)))
