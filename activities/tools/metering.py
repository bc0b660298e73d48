"""What a tool says that its call has used, for the run's budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import Final

from surehand.workflows.contracts.usage import Usage

#: Of money in one call, and the smallest part of it that counts.
MOST: Final = 10**12
SMALLEST: Final = Decimal("1e-12")
#: Not the thread's own, which a tool may have changed.
_EXACT: Final = Context(prec=60)


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
        except (InvalidOperation, TypeError) as error:
            raise ValueError(f"ctx.spend: money={money!r} is no decimal number") from error
        if type(tokens) is not int:
            raise ValueError(f"ctx.spend: tokens={tokens!r} is no whole number")
        if not 0 <= tokens <= MOST or not amount.is_finite() or not 0 <= amount <= MOST:
            raise ValueError(f"ctx.spend: from nothing to {MOST}, and nothing is given back")
        self.tokens += tokens
        with localcontext(_EXACT):
            self.money += amount

    def usage(self) -> Usage:
        """Return it as the run gets it."""
        # After the call: what it has used must not fail it, however odd the sum.
        with localcontext(_EXACT):
            money = min(self.money, Decimal(MOST)).quantize(SMALLEST).normalize()
        return Usage(tokens=self.tokens, money=format(money, "f"))


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
