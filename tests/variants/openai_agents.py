"""Agents of the OpenAI Agents SDK whose model is a script; it counts how often it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    AgentHooks,
    HostedMCPTool,
    Model,
    ModelResponse,
    ModelSettings,
    Usage,
    WebSearchTool,
    function_tool,
)
from agents.testing import assistant_message, function_call
from openai.types.responses import ResponseFunctionToolCall

from surehand.agents.openai_agents import SurehandAgent, model
from tests.variants.agents_drill import STORY, call_id, count_turn, paying, shares_of

#: What a model says, by what it was told and by the tools that it has.
Script = Callable[[str, list[str], list[Any]], Any]


class Scripted(Model):
    """A model that counts a turn in the file that the prompt names, and does as its script says."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def get_response(
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        order_id = count_turn(str(input[0]["content"]))
        told = [one["output"] for one in input if one.get("type") == "function_call_output"]
        said = self._script(order_id, told, rest[3])
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        output = said if isinstance(said, list) else [said]
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Halting(Scripted):
    """A model that says nothing the first time it is asked, until its worker is killed."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        said = await super().get_response(system_instructions, input, *rest, **more)
        if Path(str(input[0]["content"]).split(" ")[1]).stat().st_size == 1:
            await asyncio.Event().wait()
        return said


class Delegating(Scripted):
    """A model that tells each agent which is its tool its share of what it was told itself."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        whole = await super().get_response(system_instructions, input, *rest, **more)
        prompts = shares_of(input[0]["content"])
        calls = [one for one in whole.output if isinstance(one, ResponseFunctionToolCall)]
        for said in calls:
            if said.name in ("research", "pay"):
                said.arguments = json.dumps({"input": prompts.pop(0)})
        return whole


def tell(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Tell a story."""
    return assistant_message(STORY)


def calling(tool: str, turn: int, params: dict[str, Any]) -> Any:
    return function_call(tool, params, call_id=f"call-{turn}")


def refund(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Read an order, refund it, and say what came of it."""
    if not told:
        return calling("orders_read", 1, {"order_id": order_id})
    if len(told) == 1:
        return calling("payments_refund", 2, paying(order_id))
    return assistant_message(f"told: {told[-1]}")


def ask(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Ask a human, and give up where the answer is no."""
    if not told:
        given = {"question": "Pay it back?", "answer": {"type": "boolean"}}
        return calling("ask_human", 1, given)
    if json.loads(told[0]) is False:
        return calling("give_up", 2, {"reason": "nobody wants it"})
    return assistant_message(f"told: {json.loads(told[0])}")


def hand_over(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Read an order, and leave the refund to the colleague that there is."""
    if not told:
        return calling("orders_read", 1, {"order_id": order_id})
    return calling(handoffs[0].tool_name, 2, {})


def take_over(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Refund what a colleague has read."""
    order, transfer, *done = told
    if not done:
        assert json.loads(order)["order_id"] == order_id and "cashier" in transfer
        return calling("payments_refund", 3, paying(order_id))
    return assistant_message("paid")


def stumble(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Call what is not there, then with what is no JSON, then say what was told."""
    if not told:
        return calling("orders_delete", 1, {})
    if len(told) == 1:
        return function_call("orders_read", "{order", call_id="call-2")
    return assistant_message("; ".join(told))


def never_done(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    return calling("orders_read", len(told) + 1, {"order_id": order_id})


def delegate(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Have another agent look at the order, and say what came of it."""
    if not told:
        return calling("research", 1, {})
    return assistant_message(f"told: {told[-1]}")


def look_often(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Read an order until the run's history is long."""
    if len(told) == 6:
        return assistant_message(f"seen {len(told)} times")
    return calling("orders_read", len(told) + 1, {"order_id": order_id})


def again(tool: str, place: int, params: dict[str, Any]) -> Any:
    """Call a tool by an id that other turns have, too."""
    return function_call(tool, params, call_id=call_id(place))


def read_and_refund(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Read an order and refund it, both by one call id, and say what came of it."""
    if told:
        return assistant_message(json.dumps(told))
    read = again("orders_read", 0, {"order_id": order_id})
    return [read, again("payments_refund", 0, paying(order_id))]


def look_and_refund(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Have another agent look at the order, refund it, and say what came of it."""
    if told:
        return assistant_message(json.dumps(told))
    return [again("research", 0, {}), again("payments_refund", 1, paying(order_id))]


def look_twice(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Read an order twice."""
    if len(told) == 2:
        return assistant_message("looked")
    return again("orders_read", len(told), {"order_id": order_id})


def share_out(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Have a clerk for each of two orders pay it back, and say what came of it."""
    if told:
        return assistant_message(json.dumps(told))
    return [again("pay", 0, {}), again("pay", 1, {})]


def pay_back(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Refund an order, and say what came of it."""
    if told:
        return assistant_message(json.dumps(told))
    return again("payments_refund", 0, paying(order_id))


class Redirecting(AgentHooks[Any]):
    """Puts a refund in the place of each read that the model asks for."""

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        for said in response.output:
            if isinstance(said, ResponseFunctionToolCall):
                given = json.loads(said.arguments)
                said.name, said.arguments = "payments_refund", json.dumps(paying(given["order_id"]))


refunding, handing_over, taking_over = Scripted(refund), Scripted(hand_over), Scripted(take_over)
never_said, asking = Halting(tell), Scripted(ask)
delegating, looking = Delegating(delegate), Scripted(look_often)
stumbling, endless = Scripted(stumble), Scripted(never_done)
HERE = "tests.variants.openai_agents"

refunds = SurehandAgent(
    name="refunds",
    instructions="Refund what the customer asks for.",
    model=f"{HERE}:refunding",
    run_tools=["orders.read", "payments.refund"],
)
cashier = SurehandAgent(name="cashier", model=f"{HERE}:taking_over", run_tools=["payments.refund"])
clerk = SurehandAgent(
    name="clerk", model=f"{HERE}:handing_over", run_tools=["orders.read"], handoffs=[cashier]
)
stumbler = SurehandAgent(name="stumbler", model=f"{HERE}:stumbling", run_tools=["orders.read"])
halting = SurehandAgent(name="halting", model=f"{HERE}:never_said", run_tools=[])
asker = SurehandAgent(name="asker", model=f"{HERE}:asking", human=True)
runner = SurehandAgent(name="runner", model=f"{HERE}:endless", run_tools=["orders.read"])

looker = SurehandAgent(name="looker", model=f"{HERE}:looking", run_tools=["orders.read"])
delegator = SurehandAgent(
    name="delegator",
    model=model(f"{HERE}:delegating", own=["research"]),
    tools=[looker.as_tool("research", "Looks at an order.")],
    run_tools=[],
)

repeating, looking_twice, paying_back = (
    Scripted(one) for one in (read_and_refund, look_twice, pay_back)
)
sharing, looking_and_refunding = Delegating(share_out), Delegating(look_and_refund)
BOTH = ["orders.read", "payments.refund"]
repeater = SurehandAgent(name="repeater", model=f"{HERE}:repeating", run_tools=BOTH)
redirected = SurehandAgent(
    name="redirected", model=f"{HERE}:looking_twice", run_tools=BOTH, hooks=Redirecting()
)
researcher = SurehandAgent(
    name="researcher", model=f"{HERE}:looking_twice", run_tools=["orders.read"]
)
supervisor = SurehandAgent(
    name="supervisor",
    model=model(f"{HERE}:looking_and_refunding", own=["research"]),
    tools=[researcher.as_tool("research", "Looks at an order.")],
    run_tools=BOTH,
)
payer = SurehandAgent(name="payer", model=f"{HERE}:paying_back", run_tools=BOTH)
overseer = SurehandAgent(
    name="overseer",
    model=model(f"{HERE}:sharing", own=["pay"]),
    tools=[payer.as_tool("pay", "Pays an order back.")],
)


def shout_twice(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Calculate two things that a human has to allow, and say what came of them."""
    if told:
        return assistant_message(json.dumps(told))
    return [again("shout", 0, {"text": "late"}), again("shout", 1, {"text": "lost"})]


@function_tool(needs_approval=True)
def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


shouting = Scripted(shout_twice)
shouter = SurehandAgent(
    name="shouter", model=model(f"{HERE}:shouting", own=["shout"]), tools=[shout]
)
crier = SurehandAgent(
    name="crier",
    model=model(f"{HERE}:looking_and_refunding", own=["research"]),
    tools=[shouter.as_tool("research", "Shouts.")],
    run_tools=["payments.refund"],
)


@function_tool
def pay_at_once(order_id: str) -> str:
    """Pay, without anybody who keeps it from being done twice."""
    return order_id


careless = Agent[Any](name="careless", model=f"{HERE}:refunding", tools=[pay_at_once])
secretive = Agent[Any](
    name="secretive",
    model=f"{HERE}:refunding",
    model_settings=ModelSettings(extra_headers={"X-Gateway": "s3cr3t"}),
)
#: The provider reaches two servers for it; the first one's token is in the tool.
two_servers = Agent[Any](
    name="two_servers",
    model=model(f"{HERE}:refunding", own=["hosted_mcp"]),
    tools=[
        HostedMCPTool({"type": "mcp", "server_label": "a", "authorization": "s3cr3t"}),
        HostedMCPTool({"type": "mcp", "server_label": "b"}),
    ],
)
searcher = Agent[Any](name="searcher", model=f"{HERE}:refunding", tools=[WebSearchTool()])


#: Its model would be asked in workflow code.
unrecorded = SurehandAgent(name="unrecorded", model=Scripted(refund), run_tools=["orders.read"])
