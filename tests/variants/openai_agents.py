"""Agents of the OpenAI Agents SDK whose model is a script; it counts how often it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agents import (
    Agent,
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
from openai.types.responses.response_usage import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseUsage,
)

from surehand.agents.openai_agents import SurehandAgent, model
from tests.variants.agents_drill import count_turn

#: What the streaming model says, word by word.
SAYS = ["Once ", "upon ", "a ", "time."]
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
        return ModelResponse(output=[said], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Streaming(Scripted):
    """A model that says it word by word; the first time it stops until its worker is killed."""

    async def stream_response(
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> AsyncIterator[Any]:
        whole = await self.get_response(system_instructions, input, *rest, **more)
        told_first = Path(str(input[0]["content"]).split(" ")[1]).stat().st_size == 1
        for number, word in enumerate(SAYS):
            if number == 2 and told_first:
                await asyncio.Event().wait()
            yield SimpleNamespace(type="response.output_text.delta", delta=word)
        used = ResponseUsage(
            input_tokens=10,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens=5,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=15,
        )
        response = SimpleNamespace(output=whole.output, usage=used, id=None)
        yield SimpleNamespace(type="response.completed", response=response)


class Delegating(Scripted):
    """A model that tells an agent which is its tool what it was told itself."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        whole = await super().get_response(system_instructions, input, *rest, **more)
        for said in whole.output:
            if isinstance(said, ResponseFunctionToolCall):
                said.arguments = json.dumps({"input": input[0]["content"]})
        return whole


def tell(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Tell a story."""
    return assistant_message("".join(SAYS))


def calling(tool: str, turn: int, params: dict[str, Any]) -> Any:
    return function_call(tool, params, call_id=f"call-{turn}")


def refund(order_id: str, told: list[str], handoffs: list[Any]) -> Any:
    """Read an order, refund it, and say what came of it."""
    if not told:
        return calling("orders_read", 1, {"order_id": order_id})
    if len(told) == 1:
        params = {"order_id": order_id, "amount": "120.00", "currency": "EUR", "reason": "late"}
        return calling("payments_refund", 2, params)
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
        params = {"order_id": order_id, "amount": "120.00", "currency": "EUR", "reason": "late"}
        return calling("payments_refund", 3, params)
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


refunding, handing_over, taking_over = Scripted(refund), Scripted(hand_over), Scripted(take_over)
streaming, asking = Streaming(tell), Scripted(ask)
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
storyteller = SurehandAgent(name="storyteller", model=f"{HERE}:streaming", run_tools=[])
asker = SurehandAgent(name="asker", model=f"{HERE}:asking", human=True)
runner = SurehandAgent(name="runner", model=f"{HERE}:endless", run_tools=["orders.read"])

looker = SurehandAgent(name="looker", model=f"{HERE}:looking", run_tools=["orders.read"])
delegator = SurehandAgent(
    name="delegator",
    model=model(f"{HERE}:delegating", own=["research"]),
    tools=[looker.as_tool("research", "Looks at an order.")],
    run_tools=[],
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
