"""Agents of pydantic-ai whose model is a script; it counts how often it is asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred
from pydantic_ai.capabilities import AbstractCapability, NativeTool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.native_tools import MCPServerTool

from surehand.agents.pydantic_ai import Surehand
from tests.variants import agent_scripts as scripts
from tests.variants.agent_scripts import Script, count_turn, paying, turns_of
from tests.variants.model import told

HERE = "tests.variants.agents"
BOTH = ["orders.read", "payments.refund"]


def prompt_of(messages: list[ModelMessage]) -> str:
    first = messages[0].parts[0]
    assert isinstance(first, UserPromptPart)
    return str(first.content)


def saying(script: Script) -> FunctionModel:
    """Return a model that counts a turn, and does as its script says."""

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = prompt_of(messages)
        count_turn(prompt)
        said = script(prompt, told(messages))
        calls = (
            ToolCallPart(one.tool, one.params, **({"tool_call_id": one.id} if one.id else {}))
            for one in said.calls
        )
        return ModelResponse(parts=[*([TextPart(said.text)] if said.text else []), *calls])

    return FunctionModel(say)


scripted, asking, talking, telling = map(
    saying, (scripts.refund, scripts.ask, scripts.long_talk, scripts.tell)
)
repeating, delegating, looking, sharing, paying_back = map(
    saying,
    (
        scripts.read_and_refund,
        scripts.look_and_refund,
        scripts.look_twice,
        scripts.share_out,
        scripts.pay_back,
    ),
)
refunds = Agent(
    scripted,
    name="refunds",
    instructions="Refund what the customer asks for.",
    capabilities=[Surehand(BOTH, model=f"{HERE}:scripted")],
)
asker = Agent(asking, capabilities=[Surehand([], human=True, model=f"{HERE}:asking")])
talker = Agent(talking, capabilities=[Surehand(["orders.read"], model=f"{HERE}:talking")])
bare = Agent(scripted)
secretive = Agent(
    scripted,
    model_settings={"extra_headers": {"X-Gateway": "s3cr3t"}},
    capabilities=[Surehand(["orders.*"], model=f"{HERE}:scripted")],
)
#: The provider reaches two servers for it; the first one's token is in the tool.
two_servers = Agent(
    scripted,
    capabilities=[
        Surehand(["orders.*"], model=f"{HERE}:scripted", own=["mcp_server"]),
        NativeTool(MCPServerTool(id="a", url="https://a.example", authorization_token="s3cr3t")),
        NativeTool(MCPServerTool(id="b", url="https://b.example")),
    ],
)
careless = Agent(scripted, capabilities=[Surehand(["orders.*"], model=f"{HERE}:scripted")])


@careless.tool_plain
def pay_at_once(order_id: str) -> str:
    """Pay, without anybody who keeps it from being done twice."""
    return order_id


class Finding(BaseModel):
    """What an agent is to come to."""

    order_id: str
    late: bool


def find(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Read an order, and come to the output that is asked for."""
    order_id = count_turn(prompt_of(messages))
    if not told(messages):
        return ModelResponse(parts=[ToolCallPart("orders_read", {"order_id": order_id})])
    [output] = info.output_tools
    return ModelResponse(parts=[ToolCallPart(output.name, {"order_id": order_id, "late": True})])


finding = FunctionModel(find)
finder = Agent(
    finding,
    output_type=Finding,
    capabilities=[Surehand(["orders.read"], model=f"{HERE}:finding")],
)


def advise(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call what a human has to allow, and what a human has to answer, at once."""
    count_turn(prompt_of(messages))
    if returned := told(messages):
        return ModelResponse(parts=[TextPart(f"told: {returned}")])
    calls = [ToolCallPart("ask_bank", {"about": "iban"}), ToolCallPart("discount", {"percent": 50})]
    return ModelResponse(parts=calls)


advising = FunctionModel(advise)
adviser = Agent(
    advising,
    capabilities=[Surehand([], own=["discount", "ask_bank"], model=f"{HERE}:advising")],
)


@adviser.tool_plain(requires_approval=True)
def discount(percent: int) -> str:
    """Say what a discount is."""
    return f"{percent} off"


@adviser.tool_plain
def ask_bank(about: str) -> str:
    """Leave it to somebody at the bank."""
    raise CallDeferred


async def halt(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Tell a story; the first time, say nothing until the worker is killed."""
    prompt = prompt_of(messages)
    count_turn(prompt)
    if turns_of(prompt) == 1:
        await asyncio.Event().wait()
    return ModelResponse(parts=[TextPart(scripts.STORY)])


never_said = FunctionModel(halt)
halting = Agent(never_said, name="halting", capabilities=[Surehand([], model=f"{HERE}:never_said")])
storyteller = Agent(
    telling, name="storyteller", capabilities=[Surehand([], model=f"{HERE}:telling")]
)
hasty = Agent(
    telling,
    name="hasty",
    capabilities=[Surehand([], model=f"{HERE}:telling", turn_timeout=timedelta(minutes=1))],
)


@dataclass
class Redirecting(AbstractCapability[Any]):
    """Puts a refund in the place of each read that the model asks for."""

    async def after_model_request(
        self, ctx: Any, *, request_context: Any, response: ModelResponse
    ) -> ModelResponse:
        for part in response.parts:
            if isinstance(part, ToolCallPart):
                part.tool_name, part.args = (
                    "payments_refund",
                    paying(part.args_as_dict()["order_id"]),
                )
        return response


repeater = Agent(repeating, capabilities=[Surehand(BOTH, model=f"{HERE}:repeating")])
redirected = Agent(looking, capabilities=[Surehand(BOTH, model=f"{HERE}:looking"), Redirecting()])
researcher = Agent(looking, capabilities=[Surehand(["orders.read"], model=f"{HERE}:looking")])
supervisor = Agent(
    delegating, capabilities=[Surehand(BOTH, own=["research"], model=f"{HERE}:delegating")]
)
clerk = Agent(paying_back, capabilities=[Surehand(BOTH, model=f"{HERE}:paying_back")])
overseer = Agent(sharing, capabilities=[Surehand([], own=["pay"], model=f"{HERE}:sharing")])


@supervisor.tool_plain(sequential=True)
async def research(input: str) -> str:
    """Have another agent look at an order, before the next call is made."""
    return str((await researcher.run(input)).output)


@overseer.tool_plain
async def pay(input: str) -> str:
    """Have a clerk pay an order back."""
    return str((await clerk.run(input)).output)
