"""Agents of LangChain whose model is a script; it counts how often it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, wrap_model_call, wrap_tool_call
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from surehand.agents.langchain import SurehandMiddleware, model, tool_node, tools
from tests.variants.agents_drill import STORY, call_id, count_turn, shares_of
from tests.variants.agents_drill import paying as refund_params

#: What a model says, by the order and what it was told.
Script = Callable[[str, list[str]], AIMessage]


class Scripted(BaseChatModel):
    """A model that counts a turn in the file that the prompt names, and does as its script says."""

    script: Script

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        order_id = count_turn(prompt_in(messages))
        told = [str(one.content) for one in messages if isinstance(one, ToolMessage)]
        said = self.script(order_id, told)
        said.usage_metadata = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        said.response_metadata = {"model_provider": "openai", "model_name": "gpt-5"}
        return ChatResult(generations=[ChatGeneration(message=said)])


def prompt_in(messages: list[BaseMessage]) -> str:
    return next(str(one.content) for one in messages if one.type == "human")


class Halting(Scripted):
    """A model that says nothing the first time it is asked, until its worker is killed."""

    async def _agenerate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        said = self._generate(messages)
        if Path(prompt_in(messages).split(" ")[1]).stat().st_size == 1:
            await asyncio.Event().wait()
        return said


def tell(order_id: str, told: list[str]) -> AIMessage:
    """Tell a story."""
    return AIMessage(STORY)


def calling(*calls: tuple[str, dict[str, Any]], turn: int) -> AIMessage:
    return AIMessage(
        "",
        tool_calls=[
            {"name": name, "args": params, "id": f"call-{turn}-{place}"}
            for place, (name, params) in enumerate(calls)
        ],
    )


def reading(order_id: str) -> tuple[str, dict[str, Any]]:
    return "orders_read", {"order_id": order_id}


def paying(order_id: str) -> tuple[str, dict[str, Any]]:
    return "payments_refund", refund_params(order_id)


def refund(order_id: str, told: list[str]) -> AIMessage:
    """Read an order, refund it, and say what came of it."""
    if not told:
        return calling(reading(order_id), turn=1)
    if len(told) == 1:
        return calling(paying(order_id), turn=2)
    return AIMessage(f"told: {told[-1]}")


HERE = "tests.variants.langchain_agents"
OURS = SurehandMiddleware(["orders.read", "payments.refund"])

refunding = Scripted(script=refund)
refunds = create_agent(
    model(f"{HERE}:refunding"),
    system_prompt="Refund what the customer asks for.",
    middleware=[OURS],
    name="refunds",
)

never_said = Halting(script=tell)
halting = create_agent(model(f"{HERE}:never_said"), middleware=[SurehandMiddleware([])])


@tool
def pay_at_once(order_id: str) -> str:
    """Pay, without anybody who keeps it from being done twice."""
    return order_id


careless = create_agent(model(f"{HERE}:refunding"), tools=[pay_at_once], middleware=[OURS])
unrecorded = create_agent(refunding, middleware=[OURS])
searcher = create_agent(
    model(f"{HERE}:refunding"), tools=[{"type": "web_search"}], middleware=[OURS]
)


@wrap_model_call
async def with_a_secret(request: Any, handler: Any) -> Any:
    """Give each turn a header that nobody may read."""
    headers = {"extra_headers": {"X-Key": "s3cret"}}
    return await handler(request.override(model_settings=headers))


secretive = create_agent(model(f"{HERE}:refunding"), middleware=[with_a_secret, OURS])


def both(order_id: str, told: list[str]) -> AIMessage:
    """Refund and read in one turn, and say what came of it."""
    if not told:
        return calling(paying(order_id), reading(order_id), turn=1)
    return AIMessage("; ".join(told))


def ask(order_id: str, told: list[str]) -> AIMessage:
    """Ask a human, and give up where the answer is no."""
    if not told:
        given = {"question": "Pay it back?", "answer": {"type": "boolean"}}
        return calling(("ask_human", given), turn=1)
    if told == ["false"]:
        return calling(("give_up", {"reason": "nobody wants it"}), turn=2)
    return AIMessage(f"told: {told[0].title()}")


asking = Scripted(script=ask)
asker = create_agent(model(f"{HERE}:asking"), middleware=[SurehandMiddleware([], human=True)])


def stumble(order_id: str, told: list[str]) -> AIMessage:
    """Call what is not there, then with what is no JSON, then say what was told."""
    if not told:
        return calling(("orders_delete", {}), turn=1)
    if len(told) == 1:
        broken = {"name": "orders_read", "args": "{order", "id": "call-2", "error": "no JSON"}
        return AIMessage("", invalid_tool_calls=[{"type": "invalid_tool_call", **broken}])
    return AIMessage("; ".join(told))


def begin_oddly(order_id: str, told: list[str]) -> AIMessage:
    """Ask for an order by a number that no canonical JSON has, then do as wanted."""
    if not told:
        return calling(("orders_read", {"order_id": 2**60}), turn=1)
    if len(told) == 1:
        return calling(reading(order_id), turn=2)
    return calling(paying(order_id), turn=3) if len(told) == 2 else AIMessage("paid")


def never_done(order_id: str, told: list[str]) -> AIMessage:
    return calling(reading(order_id), turn=len(told) + 1)


def long_talk(order_id: str, told: list[str]) -> AIMessage:
    """Read an order 200 times over, and talk about it at length."""
    if len(told) == 200:
        return AIMessage("done")
    said = calling(reading(order_id), turn=len(told) + 1)
    said.content = f"{len(told)}: " + "hm " * 150
    return said


talking = Scripted(script=long_talk)
talker = create_agent(model(f"{HERE}:talking"), middleware=[OURS])
beginning_oddly = Scripted(script=begin_oddly)
odd = create_agent(model(f"{HERE}:beginning_oddly"), middleware=[OURS])
in_parallel, stumbling, endless = (Scripted(script=one) for one in (both, stumble, never_done))
hasty = create_agent(model(f"{HERE}:in_parallel"), middleware=[OURS])
stumbler = create_agent(model(f"{HERE}:stumbling"), middleware=[OURS])
runner = create_agent(model(f"{HERE}:endless"), middleware=[OURS])
limited = runner.with_config(recursion_limit=7)


@tool
def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


def confirm(order_id: str, told: list[str]) -> AIMessage:
    """Refund and calculate in one turn, and say what came of it."""
    if not told:
        return calling(paying(order_id), ("shout", {"text": "late"}), turn=1)
    return AIMessage("; ".join(told))


confirming = Scripted(script=confirm)


class Told(MessagesState):
    """What the graph has come to know."""

    allowed: str


async def decide(state: Told) -> dict[str, Any]:
    clerk = model(f"{HERE}:confirming", own=["shout"])
    offered = [*await tools("payments.refund"), shout]
    return {"messages": [await clerk.bind_tools(offered).ainvoke(state["messages"])]}


def look(state: Told) -> dict[str, Any]:
    """Ask a human; a function like most, which is not async."""
    return {"allowed": interrupt({"question": "Go on?"})}


def wanted(state: Told) -> str:
    return "act" if state["messages"][-1].tool_calls else END


act = tool_node("payments.refund", own=[shout])
graph = (
    StateGraph(Told)
    .add_node("look", look)
    .add_node("decide", decide)
    .add_node("act", act)
    .add_edge(START, "look")
    .add_edge("look", "decide")
    .add_conditional_edges("decide", wanted)
    .add_edge("act", "decide")
    .compile(checkpointer=InMemorySaver())
)


async def refund_and_look(state: Told) -> dict[str, Any]:
    """Have an agent refund, and ask a human afterwards: the node runs again with the answer."""
    done = await refunds.ainvoke({"messages": state["messages"]})
    return {"messages": done["messages"][-1:], "allowed": interrupt("Tell the customer?")}


asks_afterwards = (
    StateGraph(Told)
    .add_node("refund", refund_and_look)
    .add_edge(START, "refund")
    .compile(checkpointer=InMemorySaver())
)


class Sharing(Scripted):
    """A model that tells each agent which is its tool its share of what it was told itself."""

    def _generate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        result = super()._generate(messages)
        prompts = shares_of(prompt_in(messages))
        for one in result.generations[0].message.tool_calls:  # type: ignore[attr-defined]
            if one["name"] in ("research", "pay"):
                one["args"] = {"input": prompts.pop(0)}
        return result


def again(*calls: tuple[str, dict[str, Any]], ids: tuple[int, ...]) -> AIMessage:
    """Call tools by ids that other turns have, too."""
    both = zip(calls, ids, strict=True)
    return AIMessage(
        "", tool_calls=[{"name": n, "args": args, "id": call_id(i)} for (n, args), i in both]
    )


def read_and_refund(order_id: str, told: list[str]) -> AIMessage:
    """Read an order and refund it, both by one call id, and say what came of it."""
    if told:
        return AIMessage(json.dumps(told))
    return again(reading(order_id), paying(order_id), ids=(0, 0))


def look_and_refund(order_id: str, told: list[str]) -> AIMessage:
    """Have another agent look at the order, refund it, and say what came of it."""
    if told:
        return AIMessage(json.dumps(told))
    return again(("research", {}), paying(order_id), ids=(0, 1))


def look_twice(order_id: str, told: list[str]) -> AIMessage:
    """Read an order twice."""
    if len(told) == 2:
        return AIMessage("looked")
    return again(reading(order_id), ids=(len(told),))


def share_out(order_id: str, told: list[str]) -> AIMessage:
    """Have a clerk for each of two orders pay it back, and say what came of it."""
    if told:
        return AIMessage(json.dumps(told))
    return again(("pay", {}), ("pay", {}), ids=(0, 1))


def pay_back(order_id: str, told: list[str]) -> AIMessage:
    """Refund an order, and say what came of it."""
    if told:
        return AIMessage(json.dumps(told))
    return again(paying(order_id), ids=(0,))


repeating, looking_twice, paying_back = (
    Scripted(script=one) for one in (read_and_refund, look_twice, pay_back)
)
sharing, looking_and_refunding = Sharing(script=share_out), Sharing(script=look_and_refund)
repeater = create_agent(model(f"{HERE}:repeating"), middleware=[OURS])
researcher = create_agent(
    model(f"{HERE}:looking_twice"), middleware=[SurehandMiddleware(["orders.read"])]
)
payer = create_agent(model(f"{HERE}:paying_back"), middleware=[OURS])


async def last_words(agent: Any, prompt: str) -> str:
    state = await agent.ainvoke({"messages": [{"role": "user", "content": prompt}]})
    return str(state["messages"][-1].text)


@tool
async def research(input: str) -> str:
    """Have another agent look at an order."""
    return await last_words(researcher, input)


@tool
async def pay(input: str) -> str:
    """Have a clerk pay an order back."""
    return await last_words(payer, input)


supervisor = create_agent(
    model(f"{HERE}:looking_and_refunding", own=["research"]), tools=[research], middleware=[OURS]
).with_config(max_concurrency=1)
overseer = create_agent(
    model(f"{HERE}:sharing", own=["pay"]), tools=[pay], middleware=[SurehandMiddleware([])]
)


@wrap_tool_call
async def redirect(request: Any, handler: Any) -> Any:
    """Put a refund in the place of each read."""
    order_id = request.tool_call["args"]["order_id"]
    name, args = paying(order_id)
    return await handler(
        request.override(tool_call={**request.tool_call, "name": name, "args": args})
    )


redirected = create_agent(model(f"{HERE}:looking_twice"), middleware=[redirect, OURS])
redirected_inside = create_agent(model(f"{HERE}:looking_twice"), middleware=[OURS, redirect])


def reviewed_by(*tools: str, **settings: Any) -> Any:
    return HumanInTheLoopMiddleware(dict.fromkeys(tools, True), **settings)


asked_first = create_agent(
    model(f"{HERE}:paying_back"), middleware=[reviewed_by("payments_refund"), OURS]
)
asked_inside = create_agent(
    model(f"{HERE}:paying_back"), middleware=[OURS, reviewed_by("payments_refund")]
)
asked_each = create_agent(
    model(f"{HERE}:paying_back"),
    middleware=[OURS, reviewed_by("payments_refund", interrupt_mode="per_call")],
)
swapped_first = create_agent(
    model(f"{HERE}:looking_twice"), middleware=[reviewed_by("orders_read"), OURS]
)
swapped_inside = create_agent(
    model(f"{HERE}:looking_twice"), middleware=[OURS, reviewed_by("orders_read")]
)


@tool
def confirm_it(question: str) -> str:
    """Ask a human."""
    return str(interrupt(question))


def ask_and_pay(state: MessagesState) -> dict[str, Any]:
    """Ask for two calls without a model."""
    order_id = count_turn(prompt_in(state["messages"]))
    calls = again(("confirm_it", {"question": "Go on?"}), paying(order_id), ids=(0, 1))
    return {"messages": [calls]}


def say_what_came(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("; ".join(str(one.content) for one in state["messages"][2:]))]}


without_model = (
    StateGraph(MessagesState)
    .add_node("ask", ask_and_pay)
    .add_node("act", tool_node("payments.refund", own=[confirm_it]))
    .add_node("say", say_what_came)
    .add_edge(START, "ask")
    .add_edge("ask", "act")
    .add_edge("act", "say")
    .compile(checkpointer=InMemorySaver())
)


ACTS = tool_node("orders.read", "payments.refund")


async def read_then_pay(state: MessagesState) -> dict[str, Any]:
    """Make two calls without a model, one after the other, and give both the same id."""
    order_id = count_turn(prompt_in(state["messages"]))
    told = list[BaseMessage]()
    for call in (reading(order_id), paying(order_id)):
        made = await ACTS.ainvoke({"messages": [again(call, ids=(0,))]})
        told += made["messages"]
    return {"messages": [AIMessage("; ".join(str(one.content) for one in told))]}


same_ids = StateGraph(MessagesState).add_node("act", read_then_pay).add_edge(START, "act").compile()
