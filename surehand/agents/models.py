"""How the worker asks models: each framework's by its name, what errors mean, what a turn costs.

A framework is imported when one of its models is first asked: each is an extra of its own.
"""

from __future__ import annotations

import importlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from surehand.activities.effects.model_turns import AskModel, Said, Tell, TurnRequest
from surehand.activities.tools.failures import (
    DependencyDown,
    Permanent,
    RateLimited,
    ToolFault,
    Transient,
    retry_after,
)

#: How long to wait where a provider says only that it was asked too often.
PAUSE: Final = timedelta(seconds=30)


def rate_limited(text: str, named: str | None) -> RateLimited:
    """Return the failure, with the pause of its ``Retry-After``."""
    return RateLimited(text, PAUSE if named is None else retry_after(named, datetime.now(UTC)))


def answered(text: str, status: int, retry_after: str | None) -> ToolFault:
    """Return the failure that a status of HTTP means."""
    if status == 429:
        return rate_limited(text, retry_after)
    if status in (503, 529):
        return DependencyDown(text)
    if status >= 500 or status in (408, 409):
        return Transient(text)
    return Permanent(text)


def cost(provider: str, model: str, usage: dict[str, int]) -> Decimal:
    """Return a turn's cost in dollars; 0 if no price is known: a guess would stop runs."""
    from genai_prices import Usage, calc_price  # of the frameworks' extras

    try:
        return calc_price(Usage(**usage), model, provider_id=provider).total_price
    except (LookupError, ValueError):
        return Decimal(0)


def _asking(framework: str) -> AskModel:
    async def ask(asked: TurnRequest, tell: Tell | None) -> Said:
        try:
            module = importlib.import_module(f"surehand.agents.{framework.replace('-', '_')}")
        except ImportError as error:
            remedy = f"pip install 'surehand[{framework}]' for the worker"
            raise Permanent(f"{framework} cannot be imported ({error}): {remedy}") from error
        said: Said = await module.ask(asked, tell)
        return said

    return ask


FRAMEWORKS: Final = {name: _asking(name) for name in ("pydantic-ai", "openai-agents", "langchain")}
