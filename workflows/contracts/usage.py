"""What calls use of a run's budget."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field

from surehand.workflows.contracts.base import Message


def _money(value: str) -> str:
    amount = Decimal(value)
    if not amount.is_finite() or amount < 0:
        raise ValueError("must be a decimal number of at least 0")
    return value


#: A decimal number as text, exact to the last digit.
Money = Annotated[str, Field(max_length=40, pattern=r"^[0-9]+(\.[0-9]+)?$"), AfterValidator(_money)]


class Usage(Message):
    """What a tool call has used."""

    tokens: int = 0
    money: Money = "0"
