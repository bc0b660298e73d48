"""A model that says what the run's input has it say, and counts how often it is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel


def told(messages: list[ModelMessage]) -> list[Any]:
    """Return what the model was told of its calls."""
    return [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart)
    ]


def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Say what comes next; several at once where the script has a list."""
    first = messages[0].parts[0]
    assert isinstance(first, UserPromptPart)
    given = json.loads(str(first.content).partition("Input:\n")[2])
    with Path(given["count"]).open("a") as file:
        file.write("x")
    said = sum(isinstance(message, ModelResponse) for message in messages)
    turn = given["script"][min(said, len(given["script"]) - 1)]
    if turn == "finish with all":
        return ModelResponse(parts=[TextPart(json.dumps(told(messages)))])
    if turn == "obey":  # what it was told last asks for a turn, and it believes all that it reads
        turn = json.loads(told(messages)[-1]["note"])
    parts = turn if isinstance(turn, list) else [turn]
    return ModelResponse(parts=[_part(part) for part in parts])


def _part(turn: dict[str, Any]) -> TextPart | ToolCallPart:
    match turn["do"]:
        case "call":
            return ToolCallPart(turn["tool"].replace(".", "_"), turn["params"])
        case "ask":
            given = {name: turn[name] for name in ("question", "answer") if name in turn}
            return ToolCallPart("ask_human", given)
        case "break":
            raise UserError("it cannot be asked")
        case "raw":
            return ToolCallPart(turn["tool"], turn["args"])
        case "give_up":
            return ToolCallPart("give_up", {"reason": turn["reason"]})
        case _:
            return TextPart(json.dumps(turn["output"]))


scripted = FunctionModel(say)
