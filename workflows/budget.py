"""What a run may use, and what it has used: where it is used up, the run waits for more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from temporalio import workflow

from workflows.book import Book
from workflows.contracts import Carried, TopUp, Usage, Verb
from workflows.helm import Answer, Delivery, Helm


@dataclass
class Spent:
    """What a run has used."""

    steps: int = 0
    tokens: int = 0
    money: Decimal = Decimal(0)


class Spending:
    """Keeps the budget of one run."""

    def __init__(self, book: Book, helm: Helm, changed: Callable[[], None]) -> None:
        self._book = book
        self._changed = changed
        self.spent = Spent()
        self._more = TopUp(actor="plan")
        helm.take(Verb.TOP_UP, TopUp, self._top_up)

    def note(self, usage: Usage) -> None:
        """Add what one call has used."""
        self.spent.steps += 1
        self.spent.tokens += usage.tokens
        self.spent.money += Decimal(usage.money)

    def used_up(self) -> str | None:
        """Return what is used up, as one clause; ``None``: there is enough for another call."""
        limits, more, spent = self._book.request.plan.budget, self._more, self.spent
        if limits.steps is not None and spent.steps >= limits.steps + more.steps:
            return f"{spent.steps} calls"
        if limits.tokens is not None and spent.tokens >= limits.tokens + more.tokens:
            return f"{spent.tokens} tokens"
        if limits.money is not None and spent.money >= Decimal(limits.money) + Decimal(more.money):
            return f"{spent.money} of money"
        if limits.time is not None and self._lasted() >= limits.time + more.time:
            return f"{self._lasted()} of time"
        return None

    def calls_left(self) -> int | None:
        """Return how many calls may follow one another unlooked at; ``None``: as many as come.

        Where a call itself says what it has used, that is one.
        """
        limits = self._book.request.plan.budget
        if (limits.tokens, limits.money, limits.time) != (None, None, None):
            return 1
        if limits.steps is None:
            return None
        return limits.steps + self._more.steps - self.spent.steps

    def shown(self) -> dict[str, str | int | None]:
        """Return used and allowed, for the checkpoint."""
        limits, more, spent = self._book.request.plan.budget, self._more, self.spent
        return {
            "steps": spent.steps,
            "steps_limit": None if limits.steps is None else limits.steps + more.steps,
            "tokens": spent.tokens,
            "tokens_limit": None if limits.tokens is None else limits.tokens + more.tokens,
            "money": str(spent.money),
            "money_limit": None
            if limits.money is None
            else str(Decimal(limits.money) + Decimal(more.money)),
            "time_limit": None if limits.time is None else str(limits.time + more.time),
        }

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``."""
        return {
            "spent_steps": self.spent.steps,
            "spent_tokens": self.spent.tokens,
            "spent_money": str(self.spent.money),
            "more_budget": self._more,
        }

    def restore(self, carried: Carried) -> None:
        """Take over what another execution has carried."""
        spent = (carried.spent_steps, carried.spent_tokens, Decimal(carried.spent_money))
        self.spent = Spent(*spent)
        self._more = carried.more_budget or self._more

    def _lasted(self) -> timedelta:
        return workflow.now() - self._book.started_at

    async def _top_up(self, asked: TopUp, _: Delivery) -> Answer:
        if not (asked.steps or asked.tokens or Decimal(asked.money) or asked.time):
            return Answer(False, "nothing was added: give steps, tokens, money or time")
        more = self._more
        self._more = more.model_copy(
            update={
                "steps": more.steps + asked.steps,
                "tokens": more.tokens + asked.tokens,
                "money": str(Decimal(more.money) + Decimal(asked.money)),
                "time": more.time + asked.time,
            }
        )
        still = self.used_up()
        return Answer(True, f"added; still used up: {still}" if still else "added")
