"""What a tool's own model refuses is said in plain words, with its place."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from surehand.activities.tools.tool import explain


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)


class Params(BaseModel):
    amount: Decimal = Field(default=Decimal(1), gt=0, decimal_places=2)
    colour: Colour = Colour.RED
    lines: list[Line] = []
    when: date | None = None
    urgent: bool = False
    order_id: str = "order-1"

    @field_validator("order_id")
    @classmethod
    def _known(cls, value: str) -> str:
        if not value.startswith("order-"):
            raise ValueError("must begin with order-")
        return value


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"amount": "a lot"}, 'amount: must be a number such as "12.50"'),
        ({"amount": [1]}, 'amount: must be a number such as "12.50"'),
        ({"amount": "0"}, "amount: must be greater than 0"),
        ({"amount": "1.234"}, "amount: must have at most 2 decimal places"),
        ({"colour": "green"}, "colour: must be 'red' or 'blue'"),
        ({"lines": {}}, "lines: must be a list"),
        ({"lines": [7]}, "lines.0: must be a mapping of names to values"),
        (
            {"lines": [{"count": 0}]},
            "lines.0.sku: is missing; lines.0.count: must be greater than or equal to 1",
        ),
        ({"when": "tomorrow"}, "when: must be a date such as 2026-12-31"),
        ({"urgent": "very"}, "urgent: must be true or false"),
        ({"order_id": "7"}, "order_id: must begin with order-"),
    ],
)
def test_params_that_do_not_fit_are_named_in_plain_words(params: Any, says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Params.model_validate(params)

    assert explain(refused.value).startswith(says)
