"""An agent of pydantic-ai."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tests.variants.tried import AMOUNT, ORDER, refuse_effect


def decide_at_once(messages: list[Any], info: Any) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("paid back")])
    calls = (("refund", {"order_id": f"order-{n}"} | AMOUNT) for n in (2, 1))
    return ModelResponse(
        parts=[*(ToolCallPart(*call) for call in calls), ToolCallPart("get_order", ORDER)]
    )


at_once = Agent(FunctionModel(decide_at_once))


@at_once.tool_plain
def get_order(order_id: str) -> dict[str, str]:
    return {"order_id": order_id, "total": "12.50"}


@at_once.tool_plain
def refund(order_id: str, amount: str) -> str:
    return refuse_effect()
