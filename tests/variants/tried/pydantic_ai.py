"""An agent of pydantic-ai."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tests.variants.tried import AMOUNT, ORDER, refuse_effect


def decide(messages: list[Any], info: Any) -> ModelResponse:
    last = messages[-1].parts[-1]
    calls = {"user-prompt": ("get_order", ORDER), "get_order": ("refund", ORDER | AMOUNT)}
    call = calls.get(getattr(last, "tool_name", last.part_kind))
    return ModelResponse(parts=[ToolCallPart(*call) if call else TextPart("paid back")])


def decide_at_once(messages: list[Any], info: Any) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("paid back")])
    calls = (("refund", {"order_id": f"order-{n}"} | AMOUNT) for n in (2, 1))
    return ModelResponse(
        parts=[*(ToolCallPart(*call) for call in calls), ToolCallPart("notify", ORDER)]
    )


clerk = Agent(FunctionModel(decide))
at_once = Agent(FunctionModel(decide_at_once))


@clerk.tool_plain
def get_order(order_id: str) -> dict[str, str]:
    return {"order_id": order_id, "total": "12.50"}


@at_once.tool_plain
@clerk.tool_plain
def refund(order_id: str, amount: str) -> str:
    return refuse_effect()


@at_once.tool_plain
def notify(order_id: str) -> str:
    return refuse_effect()
