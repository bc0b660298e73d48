"""What a call says that it has used: added up exactly, and never a reason to fail it afterwards."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest

from surehand.activities.tools.call_reports import MOST_SPENT, metering, spend


def test_what_a_call_uses_is_added_up_exactly() -> None:
    with metering() as meter:
        for _ in range(10):
            spend(7, "0.1")

    assert (meter.usage().tokens, Decimal(meter.usage().money)) == (70, 1)


@pytest.mark.parametrize("money", ["-1", "NaN", "Infinity", "much", f"{MOST_SPENT}0"])
def test_what_cannot_be_spent_is_refused(money: str) -> None:
    with metering(), pytest.raises(ValueError, match=r"ctx\.spend"):
        spend(0, money)


@pytest.mark.parametrize(
    ("tokens", "money"),
    [(1.5, "0"), (float("nan"), "0"), ("7", "0"), (True, "0"), (10**30, "0"), (0, None)],
)
def test_what_is_no_number_of_tokens_nor_money_is_refused(tokens: Any, money: Any) -> None:
    with metering(), pytest.raises(ValueError, match=r"ctx\.spend"):
        spend(tokens, money)


def test_a_tool_that_changes_how_its_thread_computes_changes_no_sum() -> None:
    with metering() as meter, localcontext(prec=3):
        spend(1, "12345.678")

        assert meter.usage().money == "12345.678"


@pytest.mark.parametrize(
    "money", ["1e-50", str(MOST_SPENT), "0.333333333333333333333333333333333333333"]
)
def test_however_odd_the_sum_it_can_be_reported(money: str) -> None:
    with metering() as meter:
        spend(0, money)
        spend(0, money)

    assert len(meter.usage().money) <= 40


def test_outside_of_a_call_nothing_is_measured() -> None:
    spend(1, "1")
