"""What a run may use, and what it has used: where it is used up, the run waits for more."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from temporalio import workflow

from surehand.workflows.contracts.runs import TopUp
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.contracts.values import Usage
from surehand.workflows.control.inbox import Control
from surehand.workflows.deliveries import Answer, Delivery
from surehand.workflows.state.run_state import RunData


class Spending:
    """Keeps the budget of one run."""

    def __init__(self, data: RunData, control: Control) -> None:
        self._data = data
        control.take_steering(Verb.TOP_UP, self._top_up)

    def add_usage(self, usage: Usage, *, calls: int = 1) -> None:
        """Add what one call has used; one that has failed counts for no call."""
        spent = self._data.spent
        spent.steps += calls
        spent.tokens += usage.tokens
        spent.money += Decimal(usage.money)

    def used_up(self, step_id: str | None = None) -> str | None:
        """Return what is used up, as one clause; ``None``: there is enough for another call.

        Args:
            step_id: The step that makes it: what is counted of its own is this call.
        """
        data = self._data
        limits, more, spent = data.request.plan.budget, data.more_budget, data.spent
        if limits.steps is not None:
            calls = self._calls_beside(step_id)
            if calls >= limits.steps + more.steps:
                return f"{calls} calls"
        if limits.tokens is not None and spent.tokens >= limits.tokens + more.tokens:
            return f"{spent.tokens} tokens"
        if limits.money is not None and spent.money >= Decimal(limits.money) + Decimal(more.money):
            return f"{spent.money} of money"
        if limits.time is not None and self._lasted() >= limits.time + more.time:
            return f"{self._lasted()} of time"
        return None

    def _calls_beside(self, step_id: str | None) -> int:
        """Return the calls that were made or are under way, but for that of one step."""
        data = self._data
        under_way = sum(at.counted for id_, at in data.progress.items() if id_ != step_id)
        return data.spent.steps + len(data.reported) + under_way

    def calls_left(self, step_id: str) -> int | None:
        """Return how many calls may follow one another unlooked at; ``None``: as many as come.

        Where a call itself says what it has used, that is one.

        Args:
            step_id: The step that makes the first of them.
        """
        limits = self._data.request.plan.budget
        if (limits.tokens, limits.money, limits.time) != (None, None, None):
            return 1
        if limits.steps is None:
            return None
        return limits.steps + self._data.more_budget.steps - self._calls_beside(step_id)

    def shown(self) -> dict[str, str | int | None]:
        """Return used and allowed, for the checkpoint."""
        data = self._data
        limits, more, spent = data.request.plan.budget, data.more_budget, data.spent
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

    def _lasted(self) -> timedelta:
        return workflow.now() - self._data.started_at

    async def _top_up(self, asked: TopUp, _: Delivery) -> Answer:
        if not (asked.steps or asked.tokens or Decimal(asked.money) or asked.time):
            return Answer(
                accepted=False, message="nothing was added: give steps, tokens, money or time"
            )
        more = self._data.more_budget
        self._data.more_budget = more.model_copy(
            update={
                "steps": more.steps + asked.steps,
                "tokens": more.tokens + asked.tokens,
                "money": str(Decimal(more.money) + Decimal(asked.money)),
                "time": more.time + asked.time,
            }
        )
        still = self.used_up()
        text = f"added; still used up: {still}" if still else "added"
        return Answer(accepted=True, message=text)
