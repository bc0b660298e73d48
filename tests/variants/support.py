"""The support agent, whose script counts how often it is asked in the file that the input names."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from surehand.agents.pydantic_ai import Surehand
from surehand.examples.support.agent import INSTRUCTIONS, TOOLS, prompt, script


def counted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Count a turn, and decide as the example does."""
    given = json.loads(prompt(messages).partition("Input:\n")[2])
    with Path(given["count"]).open("a") as file:
        file.write("x")
    return script(messages, info)


scripted = FunctionModel(counted)
agent = Agent(
    scripted,
    name="support",
    instructions=INSTRUCTIONS,
    capabilities=[Surehand(TOOLS, human=True, model="tests.variants.support:scripted")],
)
