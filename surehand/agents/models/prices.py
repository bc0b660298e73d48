"""What a turn costs by the published prices of models, where its framework does not know it."""

from __future__ import annotations

from decimal import Decimal

from genai_prices import Usage, calc_price


def cost(provider: str, model: str, usage: dict[str, int]) -> Decimal:
    """Return what a turn has cost, in dollars; nothing where no price is known: a guess stops runs.

    Args:
        provider: Whose model it is, such as ``openai``.
        model: The model, as its provider names it.
        usage: Its tokens, by kind.
    """
    try:
        return calc_price(Usage(**usage), model, provider_id=provider).total_price
    except (LookupError, ValueError):
        return Decimal(0)
