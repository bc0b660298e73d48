"""An agent of pydantic-ai that refunds an order, as it is without Surehand."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

CALLS = (
    ("get_order", {"order_id": "order-1"}),
    ("refund", {"order_id": "order-1", "amount": "12.50"}),
    ("send_mail", {"to": "customer@example.org", "text": "12.50 EUR are on their way."}),
)


def decide(messages: list[Any], info: Any) -> ModelResponse:
    """Decide by rules, in place of a model: one call after the other."""
    turns = sum(message.kind == "response" for message in messages)
    part = ToolCallPart(*CALLS[turns]) if turns < len(CALLS) else TextPart("It is paid back.")
    return ModelResponse(parts=[part])


clerk = Agent(FunctionModel(decide))


@clerk.tool_plain
def get_order(order_id: str) -> dict[str, str]:
    """Read an order."""
    return {"order_id": order_id, "total": "12.50"}


@clerk.tool_plain
def refund(order_id: str, amount: str) -> str:
    """Pay money back for an order."""
    return f"re-{order_id}"


@clerk.tool_plain
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return "sent"
