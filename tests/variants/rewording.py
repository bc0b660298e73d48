"""A model that asks for the same refund in other words, each time that it is asked."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.variants.agents import prompt_of
from tests.variants.model import told


def reword(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask whether to go on, refund the order that a file names, and say what came of it."""
    given = json.loads(prompt_of(messages).partition("Input:\n")[2])
    count = Path(given["count"])
    with count.open("a") as file:
        file.write("x")
    match told(messages):
        case []:
            return ModelResponse(parts=[ToolCallPart("ask_human", {"question": "Go on?"})])
        case [answer]:
            order_id = Path(given["order_file"]).read_text()
            reason = f"{answer}, reference {count.stat().st_size}"
            params = {"order_id": order_id, "amount": "120.00", "currency": "EUR", "reason": reason}
            return ModelResponse(parts=[ToolCallPart("payments_refund", params)])
        case returned:
            return ModelResponse(parts=[TextPart(json.dumps(returned[1:]))])


rewording = FunctionModel(reword)
