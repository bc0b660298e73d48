"""What a tool says that its call has used, for the run's budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from workflows.contracts import Usage


@dataclass
class Meter:
    """Adds up what one call uses."""

    tokens: int = 0
    money: Decimal = Decimal(0)

    def add(self, tokens: int, money: str | Decimal) -> None:
        """Add to it.

        Raises:
            ValueError: Less than nothing, or no number.
        """
        try:
            amount = Decimal(money)
        except InvalidOperation as error:
            raise ValueError(f"ctx.spend: money={money!r} is no decimal number") from error
        if tokens < 0 or not amount.is_finite() or amount < 0:
            raise ValueError("ctx.spend: nothing is given back")
        self.tokens += tokens
        self.money += amount

    def usage(self) -> Usage:
        """Return it as the run gets it."""
        return Usage(tokens=self.tokens, money=format(self.money, "f"))


#: The meter of the call under way; the tasks that a call starts have it, too.
_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metering() -> Iterator[Meter]:
    """Measure one call."""
    meter = Meter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def spend(tokens: int, money: str | Decimal) -> None:
    """Add to the meter of the call under way; outside of one nothing is measured."""
    meter = _METER.get()
    if meter is not None:
        meter.add(tokens, money)
