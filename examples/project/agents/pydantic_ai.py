"""An agent that refunds an order. Its tool is called by Surehand, as approved and once."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from surehand.agents.pydantic_ai import Surehand


def decide(messages: list[Any], info: Any) -> ModelResponse:
    """Decide by rules, so that you can begin without an API key."""
    pay = ToolCallPart("refunds_pay", {"order_id": "order-1", "amount": "12.50"})
    return ModelResponse(parts=[pay if len(messages) == 1 else TextPart("paid")])


rules = FunctionModel(decide)
# With a real model: Agent("anthropic:claude-sonnet-4-5", capabilities=[Surehand(["refunds.pay"])])
clerk = Agent(rules, capabilities=[Surehand(["refunds.pay"], model="clerk:rules")])
